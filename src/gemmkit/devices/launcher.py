"""Launches that lie ready: of one kernel or several, packed, so that only addresses change."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from gemmkit.devices import driver
from gemmkit.devices.context import Context
from gemmkit.devices.cuda_errors import cuda_errors, explain
from gemmkit.devices.device import Value
from gemmkit.devices.packing import (
    ParameterSpace,
    argument_offsets,
    bound_values,
    entry_parameters,
    launch_before,
    packed,
    with_tensor_maps,
)
from gemmkit.devices.patches import (
    ROLES,
    Places,
    copy_patches,
    map_patches,
    with_addresses,
    word_of,
    workspace_words,
)
from gemmkit.devices.scratch import LaunchScratch, Temporary, no_memory
from gemmkit.devices.tensor_maps import driver_encoded
from gemmkit.errors import DeviceError
from gemmkit.gpu import GpuSpec
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import Dim3, LaunchPlan

# Answers of the driver where the calling thread has no context, or another GPU's
# (CUDA_ERROR_INVALID_CONTEXT and CUDA_ERROR_INVALID_HANDLE of cuda.h).
_NO_CONTEXT, _OTHER_CONTEXT = 201, 400


class PreparedLaunch:
    """One kernel's launch, for one thread.

    Where `arguments` name no scratch memory, the launch has that of the stream on which it runs.

    Args:
        context: the GPU.
        plan: what is launched.
        binary: its code.
        arguments: the value of each argument; of those in `places` it does not matter.
        places: arguments that are addresses of operands, which each run gives anew.
        temporary: memory for the workspace of launches that are captured into a graph.

    Raises:
        DeviceError: the driver refuses the binary.
    """

    __slots__ = (
        "_busy",
        "_configuration",
        "_context",
        "_each",
        "_early",
        "_function",
        "_launch",
        "_map_words",
        "_name",
        "_parameters",
        "_patches",
        "_pointer",
        "_scratch",
        "_semaphores_words",
        "_word_a",
        "_word_b",
        "_word_out",
        "_words",
        "_workspace_words",
        "needs",
        "plain",
    )

    def __init__(
        self,
        context: Context,
        plan: LaunchPlan,
        binary: Binary,
        arguments: Mapping[str, Value],
        places: Places | None = None,
        temporary: Temporary = no_memory,
    ) -> None:
        self._context, self._name = context, plan.kernel
        self._function = ctypes.c_void_p(context.function(plan, binary))
        given = bool(arguments.get("workspace") or arguments.get("semaphores"))
        arguments = with_tensor_maps(plan, with_addresses(plan, arguments, places), driver_encoded)
        bound = {"semaphores": 0, **dict.fromkeys(places or (), 0), **arguments}
        starts = [each.offset for each in entry_parameters(binary.ptx, binary.entry)]
        values = packed(binary, bound_values(binary, plan, bound))
        self._parameters = ParameterSpace(values, starts)
        self._words, self._each = self._parameters.words, self._parameters.pointer
        self._configuration = driver.LaunchConfiguration.of(plan)
        self._pointer = ctypes.c_void_p(ctypes.addressof(self._configuration))
        early = plan.dependent and driver.records_dependent_launches()
        self._early = context.dependent_launches if early else None
        offsets = argument_offsets(binary, plan)
        patches = tuple(
            (word_of(plan, offsets, name), ROLES.index(role), offset)
            for name, (role, offset) in (places or {}).items()
            if name in offsets
        )
        found = {ROLES[place]: (word, offset) for word, place, offset in patches}
        self.plain = all(found.get(role, (0, 1))[1] == 0 for role in ("a", "b", "out"))
        self.plain &= len(patches) == 3
        self._word_a, self._word_b, self._word_out = (
            found.get(role, (0, 0))[0] for role in ("a", "b", "out")
        )
        maps = tuple(map_patches(plan, offsets, arguments, places or {}))
        copies = tuple(copy_patches(plan, offsets, arguments, places or {}))
        self.plain &= not copies
        self._patches = (*patches, *maps, *copies)
        self._map_words = tuple((word, place) for word, place, _ in maps)
        self.needs = (0, 0) if given else (plan.workspace_bytes, plan.semaphores)
        self._scratch: LaunchScratch | None = None
        self._workspace_words: tuple[tuple[int, int], ...] = ()
        self._semaphores_words: tuple[int, ...] = ()
        if any(self.needs):
            self._scratch = LaunchScratch(context, context.scratch, *self.needs, temporary)
            self._workspace_words = tuple(workspace_words(plan, offsets, bound))
            if "semaphores" in offsets:
                self._semaphores_words = (word_of(plan, offsets, "semaphores"),)
        self._launch = driver.launcher()
        self._busy = False

    @property
    def spec(self) -> GpuSpec:
        """The board that it is for."""
        return self._context.spec

    def run(
        self, addresses: Sequence[int], stream: int, scratch: tuple[int, int] | None = None
    ) -> None:
        """Put it on a stream; addresses are those of element 0 of each operand.

        `scratch` are the addresses of workspace and semaphores where they are not to be those of
        the stream.

        Raises:
            DeviceError: the driver refuses the launch, or memory for it is missing.
        """
        if self._busy:
            with self._interrupted():
                self.run(addresses, stream, scratch)
            return
        self._busy = True
        try:
            words = self._words
            for word, operand, offset in self._patches:
                words[word] = addresses[operand] + offset
            if self._scratch is not None:
                workspace, semaphores = self._scratch.on(stream) if scratch is None else scratch
                for word, offset in self._workspace_words:
                    words[word] = workspace + offset
                for word in self._semaphores_words:
                    words[word] = semaphores
            self._configuration.stream = stream
            error = self._put(stream)
            if error:
                self._again(error)
        finally:
            self._busy = False

    def run_plain(self, a: int, b: int, out: int, stream: int) -> None:
        """The same for the addresses of three operands alone; `plain` says whether that will do.

        Raises:
            DeviceError: as `run`.
        """
        if self._busy:
            with self._interrupted():
                self.run_plain(a, b, out, stream)
            return
        self._busy = True
        try:
            words = self._words
            words[self._word_a] = a
            words[self._word_b] = b
            words[self._word_out] = out
            for word, operand in self._map_words:
                words[word] = (a, b, out)[operand]
            if self._scratch is not None:
                workspace, semaphores = self._scratch.on(stream)
                for word, offset in self._workspace_words:
                    words[word] = workspace + offset
                for word in self._semaphores_words:
                    words[word] = semaphores
            self._configuration.stream = stream
            error = self._put(stream)
            if error:
                self._again(error)
        finally:
            self._busy = False

    def _put(self, stream: int) -> int:
        """Launch; an error's number, or 0.

        Raises:
            DeviceError: the capture of the stream has failed.
        """
        if self._early is not None:
            return self._early.launch(self._configuration, self._now, stream)
        return self._now()

    def _now(self) -> int:
        error: int = self._launch(self._pointer, self._function, self._each, None)
        return error

    def resized(self, grid: Dim3, values: Mapping[int, bytes]) -> PreparedLaunch:
        """The same launch with another grid, and other bytes at some places of its parameters, as
        `argument_offsets` gives them."""
        made = object.__new__(type(self))
        for name in _SHARED:
            setattr(made, name, getattr(self, name))
        made._parameters = self._parameters.changed(values)
        made._words, made._each = made._parameters.words, made._parameters.pointer
        made._configuration = self._configuration.with_grid(grid)
        made._pointer = ctypes.c_void_p(ctypes.addressof(made._configuration))
        made._busy = False
        return made

    @contextmanager
    def _interrupted(self) -> Iterator[None]:
        """For a launch by a signal handler that came while this thread prepared another one."""
        words, configuration = self._words.tolist(), self._configuration
        stream, attributes = configuration.stream, configuration.attribute_count
        self._busy = False
        try:
            yield
        finally:
            self._busy = True
            for word, value in enumerate(words):
                self._words[word] = value
            configuration.stream, configuration.attribute_count = stream, attributes

    def _again(self, error: int) -> None:
        """Launch in the GPU's context, if the thread had none or another one.

        Raises:
            DeviceError: that was not it.
        """
        doing = f"'{self._name}'"
        if error == _NO_CONTEXT:
            # As CUDA's runtime does for a thread's first call.
            with cuda_errors(doing):
                self._context.make_current()
            error = self._now()
        elif error == _OTHER_CONTEXT:
            with cuda_errors(doing), self._context.current():
                error = self._now()
        if error:
            raise _explained(doing, error)


# What a launch has in common with those of other sizes.
_SHARED = tuple(
    {*PreparedLaunch.__slots__}
    - {"_parameters", "_words", "_each", "_configuration", "_pointer", "_busy"}
)


def prepared_launches(
    context: Context,
    plan: LaunchPlan,
    binary: Binary,
    arguments: Mapping[str, Value],
    places: Places | None = None,
    temporary: Temporary = no_memory,
) -> tuple[PreparedLaunch, ...]:
    """The launches of a plan in their order, for the arguments of `PreparedLaunch`; none where
    grids are empty.

    Raises:
        DeviceError: as `PreparedLaunch`.
    """
    if plan.blocks == 0:
        return ()
    own = PreparedLaunch(context, plan, binary, arguments, places, temporary)
    first = launch_before(plan, binary)
    if first is None:
        return (own,)
    return (*prepared_launches(context, *first, arguments, places, temporary), own)


class LaunchSequence:
    """A launch of several kernels, for one thread: they follow each other on the stream.

    They share their scratch memory, to which no other launch comes before the last of them is on
    the stream: one may leave in the workspace what the next one reads.
    """

    __slots__ = ("_context", "_launches", "_scratch")

    plain = False

    def __init__(
        self,
        context: Context,
        launches: Sequence[PreparedLaunch],
        temporary: Temporary = no_memory,
    ) -> None:
        self._context, self._launches = context, tuple(launches)
        workspace, semaphores = (max(sizes, default=0) for sizes in _columns(self._launches))
        self._scratch: LaunchScratch | None = None
        if workspace or semaphores:
            self._scratch = LaunchScratch(
                context, context.scratch, workspace, semaphores, temporary
            )

    def run(self, addresses: Sequence[int], stream: int) -> None:
        """As `PreparedLaunch.run`.

        Raises:
            DeviceError: the driver refuses one of them, or memory for them is missing.
        """
        if self._scratch is None:
            for launch in self._launches:
                launch.run(addresses, stream)
            return
        with self._context.held_scratch.pool() as pool:
            scratch = self._scratch.on(stream, pool)
            for launch in self._launches:
                launch.run(addresses, stream, scratch)


def _columns(launches: Sequence[PreparedLaunch]) -> tuple[list[int], list[int]]:
    return [each.needs[0] for each in launches], [each.needs[1] for each in launches]


def _explained(doing: str, error: int) -> DeviceError:
    from cuda.bindings import driver as bindings

    return explain(doing, bindings.CUresult(error).name)
