"""`data_loads`: the volatile, relaxed and atomic loads of data, rather than of flags, in global
memory.

A thread may read data by the same kind of load as the flag that announces them. An atomic that
changes nothing, such as `atomicAdd(p, 0)`, is such a load too. A load is for a flag if a loop
repeats it at one address, if it acquires, or if its value is only tested. All others are for data,
if the kernel has a flag at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from gemmkit.emulator.codegen.addresses import space_of
from gemmkit.emulator.codegen.loops import Loops
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.ordering import ATOMICS, Ordering, loads_atomically
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.module import Address, Register, Symbol

_GLOBAL = ("global", "generic")
# What hands a value on to other threads.
_MEETINGS = frozenset(["vote", "ballot", "shuffle", "barrier"])


def data_loads(
    flow: ControlFlow, actions: Sequence[Action], waits: Collection[int]
) -> frozenset[int]:
    """The numbers of these instructions; none if no flag can announce the data.

    Args:
        flow: the kernel.
        actions: its instructions.
        waits: the loads by which threads wait for flags (`flag_waits`).
    """
    strong = [each for each in actions if Ordering.of(each).strong]
    loads = [
        each
        for each in strong
        if (each.operation == "load" or loads_atomically(each))
        and space_of(each) in _GLOBAL
        and not Ordering.of(each).scope
        and not Ordering.of(each).acquires
    ]
    writes = [
        each
        for each in strong
        if each.operation != "load" and not loads_atomically(each) and space_of(each) in _GLOBAL
    ]
    if not loads or not writes:
        return frozenset()
    polls = _Polls(flow, actions)
    uses = _Uses(actions)
    flags = [
        each for each in loads if each.number in waits or polls.has(each) or uses.are_tests(each)
    ]
    # A loop that is rotated looks once before it begins.
    of_flags = {each.address for each in flags}
    data = frozenset(each.number for each in loads if each.address not in of_flags)
    looks = any(
        each.operation in ("load", "atomic", "compare_and_swap") and each.number not in data
        for each in strong
    )
    return data if looks else frozenset()


class _Uses:
    """Tells what the values of loads are for."""

    def __init__(self, actions: Sequence[Action]) -> None:
        self._readers: defaultdict[str, list[Action]] = defaultdict(list)
        # The loads of each variable in shared memory.
        self._variables: defaultdict[Address, list[Action]] = defaultdict(list)
        for action in actions:
            for register in action.registers_read():
                self._readers[register.name].append(action)
            if action.operation == "load" and _is_variable(action):
                self._variables[action.addresses[0]].append(action)

    def are_tests(self, load: Action) -> bool:
        """Whether a loaded value is only tested: by this thread, by others that meet it, or by way
        of a variable in shared memory."""
        seen: set[str] = set()
        waiting = [each.name for each in load.dests if each is not None]
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            for reader in self._readers[name]:
                if reader.pure or reader.operation in _MEETINGS:
                    results = [reader]
                elif reader.operation == "store" and _is_variable(reader):
                    results = self._variables[reader.addresses[0]]
                elif _guards(name, reader):
                    results = []
                else:
                    return False
                waiting += [each.name for by in results for each in by.dests if each is not None]
        return True


def _is_variable(action: Action) -> bool:
    """Whether an access is to a variable in shared memory."""
    (address, *_) = action.addresses
    return space_of(action) == "shared" and isinstance(address.base, Symbol)


def _guards(name: str, action: Action) -> bool:
    """Whether an instruction reads a register only to decide whether to execute."""
    values = (each for each in action.sources if isinstance(each, Register))
    bases = (each.base for each in action.addresses if isinstance(each.base, Register))
    return name not in {each.name for each in (*values, *bases)}


class _Polls:
    """Tells the loads that a loop repeats at one address until others have changed the value."""

    def __init__(self, flow: ControlFlow, actions: Sequence[Action]) -> None:
        self._flow, self._actions, self._loops = flow, actions, Loops(flow)

    def has(self, load: Action) -> bool:
        """Whether a load is one of these: a loop around it stores nothing to global memory, and its
        address stays the same."""
        block = self._flow.block_of(load.number)
        return any(
            self._only_looks(loop) and self._stays(load, loop) for loop in self._loops.around(block)
        )

    def _inside(self, loop: Collection[int]) -> list[Action]:
        blocks = (self._flow.blocks[each] for each in loop)
        return [self._actions[at] for each in blocks for at in range(each.start, each.end)]

    def _only_looks(self, loop: Collection[int]) -> bool:
        return not any(
            (each.operation in ATOMICS and not loads_atomically(each))
            or (each.operation == "store" and space_of(each) in _GLOBAL)
            or each.operation.startswith("bulk_")
            for each in self._inside(loop)
        )

    def _stays(self, load: Action, loop: Collection[int]) -> bool:
        """Whether a loop repeats a load at one address."""
        base = load.address.base if load.address is not None else None
        if not isinstance(base, Register):
            return True
        made: dict[str, list[Action]] = {}
        for action in self._inside(loop):
            for dest in action.dests:
                if dest is not None:
                    made.setdefault(dest.name, []).append(action)
        return self._is_constant(base.name, made, frozenset())

    def _is_constant(
        self, name: str, made: dict[str, list[Action]], passed: frozenset[str]
    ) -> bool:
        """Whether a loop gives a register the same value each time."""
        if name in passed:
            return False
        by = made.get(name, [])
        return not by or (
            len(by) == 1
            and by[0].pure
            and by[0].guard is None
            and all(
                self._is_constant(each.name, made, passed | {name})
                for each in by[0].registers_read()
            )
        )
