"""`SanitizedRuns`: how often a launch runs with the sanitizers, and with which code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from gemmkit.emulator.codegen.kernel import LoadedKernel
from gemmkit.emulator.launch import Execution, LaunchRequest
from gemmkit.emulator.machine.memory import Allocation, Bytes, DeviceMemory
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.module import Variable
from gemmkit.emulator.sanitizer.explanations import explained
from gemmkit.emulator.sanitizer.left_counters import left_variable
from gemmkit.emulator.sanitizer.left_flags import FLAG_LEFT_SET, decided
from gemmkit.emulator.sanitizer.monitor import Sanitizer
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.emulator.sanitizer.traits import Traits
from gemmkit.errors import DeviceError
from gemmkit.findings import Finding

Snapshot = list[tuple[Bytes, Bytes]]
# A block was stopped, which proves nothing about the flags.
_ENDLESS = "endless"
# What memory holds after a launch, or why the launch failed.
_Outcome = list[bytes] | DeviceError
# A block that was stopped does not only take longer than before if that took so much less.
_FEWER_STEPS = 8
# Runs a launch with the code of a kernel.
Run = Callable[..., Execution]


@dataclass
class SanitizedRuns:
    """Those of one kernel.

    Attributes:
        load: the kernel's code, with or without sanitizers.
        flow: its instructions.
        variables: those of module scope, by name.
        host_sets: the names of those that the host sets before launches.
    """

    load: Callable[..., LoadedKernel]
    flow: ControlFlow
    variables: Mapping[str, Variable]
    host_sets: Collection[str]
    # By whether undefined bits are tracked.
    _traits: dict[bool, Traits] = field(default_factory=dict)

    def run(
        self, run: Run, kernel: LoadedKernel, request: LaunchRequest, memory: DeviceMemory
    ) -> tuple[Execution, Snapshot, bool]:
        """Run with sanitizers; run again from the start if they need more information from the
        start. Returns also what memory held before, and whether the order in which a fault shows
        can be explained."""
        readers: frozenset[int] = frozenset()
        before = memory.snapshot()
        while True:
            traits = self.traits_of(kernel)
            sanitizer = Sanitizer(traits, self.flow, request, memory, readers)
            sanitizer.before, sanitizer.variables = before, self.variables
            sanitizer.host_sets = frozenset(self.host_sets)
            execution = run(kernel, sanitizer=sanitizer)
            if not sanitizer.runs_again:
                return execution, before, traits.explains and not sanitizer.stalled
            readers |= sanitizer.readers_wanted
            if sanitizer.tracking_wanted:
                kernel = self.load(sanitize=True, track=True)
            memory.restore(before)

    def traits_of(self, kernel: LoadedKernel) -> Traits:
        """What the sanitizers know of a kernel, made once."""
        tracks = kernel.compiled.tracks
        if tracks not in self._traits:
            self._traits[tracks] = Traits(kernel)
        return self._traits[tracks]

    def explain(
        self,
        run: Run,
        execution: Execution,
        before: Snapshot,
        request: LaunchRequest,
        memory: DeviceMemory,
    ) -> Execution:
        """Add interleavings to findings, by recording the blocks in which they were first seen;
        these are the runs of the kernel with stops."""
        kernel = self.load(sanitize=True, track=False)
        again = partial(run, kernel, threads=1, progress=None, schedule=None)
        traits = self.traits_of(kernel)
        return explained(execution, again, traits, self.flow, request, memory, before)

    def decide_flags(
        self,
        run: Run,
        kernel: LoadedKernel,
        execution: Execution,
        before: Snapshot,
        request: LaunchRequest,
        memory: DeviceMemory,
        kept: Mapping[str, Allocation],
    ) -> Execution:
        """Keep findings of flags left set only if a second launch, which finds the variables `kept`
        as this one has left them, or a third one after that gives something else, or the second one
        has other findings.

        They are kept as they are if the launch itself does not end well, and left out if it was
        stopped: it might have cleared the flags.
        """
        flags = [each for each in execution.findings if each.kind == FLAG_LEFT_SET]
        if not flags:
            return execution
        others = tuple(each for each in execution.findings if each.kind != FLAG_LEFT_SET)
        if any(each.kind == _ENDLESS for each in others):
            return replace(execution, findings=others)
        after = memory.snapshot()
        held = _held(memory, kept)
        try:
            memory.restore(before)
            how = self._differs(run, before, memory, kept, held)
            if how == "":
                # Blocks that no longer wait may find the right data, left by the first launch.
                _as_left(before, memory, kept, held)
                alone = partial(run, progress=None, schedule=None)
                again, *_ = self.run(alone, kernel, request, memory)
                how = _new_finding(others, again.findings)
        finally:
            memory.restore(after)
        if how is None:
            return execution
        found = tuple(decided(each, how) for each in flags if how)
        return replace(execution, findings=others + found)

    def launch_again(
        self,
        run: Run,
        execution: Execution,
        before: Snapshot,
        request: LaunchRequest,
        memory: DeviceMemory,
        kept: Mapping[str, Allocation],
    ) -> Execution:
        """Add a finding if a second launch on the same arrays, which finds the module's variables
        as this one has left them, or a third one after that gives something else.

        `kept` are the variables that the host does not set before each launch. They matter only if
        they have changed.
        """
        after = memory.snapshot()
        held = _held(memory, kept)
        memory.restore(before)
        changed = [
            at
            for name, each in kept.items()
            if (at := _first_change(each, memory, held[name])) is not None
        ]
        try:
            how = self._differs(run, before, memory, kept, held) if changed else ""
        finally:
            memory.restore(after)
        if not how:
            return execution
        actions = self.load(quick=True).actions
        names = Names(self.flow, actions, request, memory)
        found = [left_variable(names, memory, execution.regions, at, how) for at in changed]
        return replace(
            execution, findings=execution.findings + tuple(each for each in found if each)
        )

    def _differs(
        self,
        run: Run,
        before: Snapshot,
        memory: DeviceMemory,
        kept: Mapping[str, Allocation],
        held: Mapping[str, Bytes],
    ) -> str | None:
        """What is different in a second or third launch, in words; None if the first one does not
        end well.

        The first one is made once more, as atomics in another order may round differently. One that
        the limit of steps has stopped proves nothing, unless the first one ends far below it."""
        kernel = self.load(quick=True)
        places = {each.address for each in kept.values()}

        def outcome(**limit: int) -> _Outcome:
            try:
                run(kernel, threads=1, progress=None, schedule=None, **limit)
            except DeviceError as error:
                return error
            left = memory.snapshot()
            return [now.tobytes() for data, now in left if data.ctypes.data not in places]

        first = outcome()
        if isinstance(first, DeviceError):
            return None if first.steps is None else ""
        for number in ("second", "third"):
            _as_left(before, memory, kept, held)
            later = outcome()
            if isinstance(later, DeviceError):
                if later.steps is None:
                    return f"a {number} launch does not end well ({later})"
                memory.restore(before)
                few = later.steps // _FEWER_STEPS
                if isinstance(outcome(max_steps=few), DeviceError):
                    return ""
                return (
                    f"a {number} launch does not end within {later.steps:,} steps, and this one "
                    f"does within {few:,}"
                )
            if first != later:
                return f"a {number} launch gives another result"
            # A counter that this launch leaves set may spoil another one in the next launch, which
            # only the one after that depends on.
            earlier, held = held, _held(memory, kept)
            if all(np.array_equal(earlier[name], held[name]) for name in kept):
                break
        return ""


def _held(memory: DeviceMemory, kept: Mapping[str, Allocation]) -> dict[str, Bytes]:
    """What variables hold now."""
    return {name: memory.view(each.address, each.nbytes).copy() for name, each in kept.items()}


def _as_left(
    before: Snapshot,
    memory: DeviceMemory,
    kept: Mapping[str, Allocation],
    held: Mapping[str, Bytes],
) -> None:
    """Make memory as a second launch on the same arrays finds it."""
    memory.restore(before)
    for name, each in kept.items():
        memory.view(each.address, each.nbytes)[:] = held[name]


def _new_finding(first: Collection[Finding], second: Collection[Finding]) -> str:
    """What the sanitizers find in a second launch but not in the first one, in words."""
    known = {(each.kind, each.array) for each in first}
    for each in second:
        told = (FLAG_LEFT_SET, _ENDLESS)
        if each.kind not in told and (each.kind, each.array) not in known:
            of = f" of '{each.array}'" if each.array else ""
            at = f" at {each.here}" if each.here else ""
            return f"a second launch goes wrong ({each.check}: {each.kind}{of}{at})"
    return ""


def _first_change(where: Allocation, memory: DeviceMemory, held: Bytes) -> int | None:
    """The address of the first word of an allocation that does not hold the same any more."""
    now = memory.view(where.address, where.nbytes)
    odd = (now != held).nonzero()[0]
    return where.address + int(odd[0]) // 4 * 4 if len(odd) else None
