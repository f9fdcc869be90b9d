"""Launches that lie ready: of one kernel, its parameters packed, so that only addresses change."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from gemmkit.devices.cuda_errors import cuda_errors, explain
from gemmkit.devices.packing import ParameterSpace, bound_values, entry_parameters, packed
from gemmkit.errors import DeviceError
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import LaunchPlan
from gemmkit.ops import driver
from gemmkit.ops.context import Context
from gemmkit.ops.scratch import Scratch

# The operands of a product, in the order in which `Launch.run` takes their addresses.
ROLES = ("a", "b", "out", "bias", "residual", "auxiliary")

# Answers of the driver where the calling thread has no context, or another GPU's
# (CUDA_ERROR_INVALID_CONTEXT and CUDA_ERROR_INVALID_HANDLE of cuda.h).
_NO_CONTEXT, _OTHER_CONTEXT = 201, 400


Temporary = Callable[[int, int], tuple[object, int] | None]


def no_memory(nbytes: int, device: int) -> None:
    """What a library gives that keeps no memory apart for graphs."""


class Launch:
    """One kernel's launch, for one thread.

    Args:
        context: the GPU.
        plan: what is launched.
        binary: its code.
        arguments: the value of each argument; addresses are 0.
        places: for each argument that is an address, the role of its operand and the offset from
            its element 0, in bytes.
        temporary: gives so many bytes of a GPU that belong to the graph being captured, or None.

    Raises:
        DeviceError: the driver refuses the binary.
    """

    __slots__ = (
        "_arrivals_word",
        "_busy",
        "_configuration",
        "_context",
        "_extra",
        "_function",
        "_last_scratch",
        "_last_stream",
        "_launch",
        "_name",
        "_needs",
        "_parameters",
        "_patches",
        "_pointer",
        "_query",
        "_status",
        "_status_pointer",
        "_temporary",
        "_word_a",
        "_word_b",
        "_word_out",
        "_words",
        "_workspace_word",
        "plain",
    )

    def __init__(
        self,
        context: Context,
        plan: LaunchPlan,
        binary: Binary,
        arguments: Mapping[str, int | float],
        places: Mapping[str, tuple[str, int]],
        temporary: Temporary = no_memory,
    ) -> None:
        self._context, self._name, self._temporary = context, plan.kernel, temporary
        self._function = ctypes.c_void_p(context.function(plan, binary))
        self._parameters = ParameterSpace(packed(binary, bound_values(binary, plan, arguments)))
        self._words, self._extra = self._parameters.words, self._parameters.pointer
        self._configuration = driver.LaunchConfiguration(
            (ctypes.c_uint * 3)(*plan.grid), (ctypes.c_uint * 3)(*plan.block), plan.shared_bytes
        )
        self._pointer = ctypes.c_void_p(ctypes.addressof(self._configuration))
        spaces = entry_parameters(binary.ptx, binary.entry)
        word = {name: spaces[place].offset // 8 for place, name in enumerate(plan.signature)}
        self._patches = tuple(
            (word[name], ROLES.index(role), offset) for name, (role, offset) in places.items()
        )
        found = {ROLES[place]: (word, offset) for word, place, offset in self._patches}
        self.plain = all(found.get(role, (0, 1))[1] == 0 for role in ("a", "b", "out"))
        self.plain &= len(self._patches) == 3
        if self.plain:
            self._word_a, self._word_b, self._word_out = (
                found[role][0] for role in ("a", "b", "out")
            )
        self._needs = plan.workspace_bytes, plan.arrivals
        scratched = any(self._needs)
        self._workspace_word = word["workspace"] if scratched else -1
        self._arrivals_word = word["arrivals"] if scratched else -1
        self._last_stream: int | None = None
        self._last_scratch: Scratch | None = None
        self._launch = driver.launcher()
        self._query = driver.capture_query()
        self._status = ctypes.c_int(0)
        self._status_pointer = ctypes.byref(self._status)
        self._busy = False

    def run(self, addresses: Sequence[int], stream: int) -> None:
        """Put it on a stream; addresses are those of element 0 of each operand.

        Raises:
            DeviceError: the driver refuses the launch, or memory for it is missing.
        """
        if self._busy:
            with self._interrupted():
                self.run(addresses, stream)
            return
        self._busy = True
        try:
            words = self._words
            for word, operand, offset in self._patches:
                words[word] = addresses[operand] + offset
            if self._workspace_word >= 0:
                self._set_scratch(stream)
            self._configuration.stream = stream
            error = self._launch(self._pointer, self._function, None, self._extra)
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
            if self._workspace_word >= 0:
                self._set_scratch(stream)
            self._configuration.stream = stream
            error = self._launch(self._pointer, self._function, None, self._extra)
            if error:
                self._again(error)
        finally:
            self._busy = False

    @contextmanager
    def _interrupted(self) -> Iterator[None]:
        """For a launch by a signal handler that came while this thread prepared another one."""
        words, stream, status = self._words.tolist(), self._configuration.stream, self._status.value
        last_stream, last_scratch = self._last_stream, self._last_scratch
        self._busy = False
        try:
            yield
        finally:
            self._busy = True
            for word, value in enumerate(words):
                self._words[word] = value
            self._configuration.stream, self._status.value = stream, status
            self._last_stream, self._last_scratch = last_stream, last_scratch

    def _set_scratch(self, stream: int) -> None:
        """Have the workspace and the counters of this stream."""
        words = self._words
        known = self._query(ctypes.c_void_p(stream), self._status_pointer) == 0
        if known and self._status.value:
            self._set_captured_scratch(stream)
            return
        scratch = self._last_scratch
        if scratch is None or stream != self._last_stream:
            scratch = self._context.scratch.of(stream, False, *self._needs)
            self._last_scratch, self._last_stream = scratch, stream
        words[self._workspace_word] = scratch.workspace
        words[self._arrivals_word] = scratch.arrivals

    def _set_captured_scratch(self, stream: int) -> None:
        """Have memory that is the graph's into which the stream is being captured."""
        nbytes, arrivals = self._needs
        made = self._temporary(nbytes, self._context.ordinal) if nbytes else None
        own = nbytes if made is None else 0
        scratch = self._context.scratch.of(stream, True, own, arrivals)
        # What the library gave belongs to the graph, which may use it again for what comes next.
        self._words[self._workspace_word] = scratch.workspace if made is None else made[1]
        self._words[self._arrivals_word] = scratch.arrivals

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
            error = self._launch(self._pointer, self._function, None, self._extra)
        elif error == _OTHER_CONTEXT:
            with cuda_errors(doing), self._context.current():
                error = self._launch(self._pointer, self._function, None, self._extra)
        if error:
            raise _explained(doing, error)


def _explained(doing: str, error: int) -> DeviceError:
    from cuda.bindings import driver as bindings

    return explain(doing, bindings.CUresult(error).name)
