"""Forms of constant operands that kernels read in their place, each made once."""

from __future__ import annotations

import threading
from collections.abc import MutableMapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, Protocol, cast
from weakref import WeakValueDictionary

from gemmkit.dtypes import FLOAT_BYTES, Precision
from gemmkit.loading import load
from gemmkit.ops.arrays import GpuLibrary, Library
from gemmkit.ops.operands import Operand

Side = Literal["a", "b"]

# What holds prepared operands, by keys that compiled programs have in their place.
holders: MutableMapping[str, Any] = WeakValueDictionary()
_numbers = count()


def new_key(holder: object) -> str:
    """A key of a holder, by which `holders` has it as long as it lives."""
    key = str(next(_numbers))
    holders[key] = holder
    return key


class Maker(Protocol):
    """How a form is made: its name, its bytes, and what fills it, of one operand or of groups."""

    @property
    def form(self) -> str:
        """What it is called."""

    @property
    def nbytes(self) -> int:
        """What it takes."""

    def fill(self, operand: int, form: int, stream: int) -> None:
        """Make the form, at an address, and wait until it is there; `operand` is the address of the
        first operand."""

    def refuse_capture(self, stream: int) -> None:
        """Refuse to work on a stream that is being captured.

        Raises:
            UsageError: it is.
        """


class Forms(Protocol):
    """Where forms are, which are made if they are not there."""

    def address(self, making: Maker, stream: int) -> int:
        """As `Store.address`."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a kernel reads in place of the operand: memory of the operand's library, and how it is
    filled."""

    memory: Operand
    nbytes: int
    making: Maker


class Store:
    """Constant operands, one or those of groups, with the forms of them that have been made.

    Any number of threads may use it.
    """

    def __init__(
        self,
        operands: tuple[Operand, ...],
        library: Library,
        side: Side,
        precision: Precision,
    ) -> None:
        self.operands, self.library = operands, library
        self.side, self.precision = side, precision
        self.forms: dict[str, Form] = {}
        self.key = new_key(self)
        # A signal handler may come to it in the thread that holds it.
        self._lock = threading.RLock()

    @property
    def first(self) -> Operand:
        """The operand, or the first of them."""
        return self.operands[0]

    def address(self, making: Maker, stream: int) -> int:
        """Where a form is; it is made now, and waited for, if it is not there yet.

        Raises:
            UsageError: the stream is being captured into a graph.
            DeviceError: there is not enough memory, or the launch failed.
        """
        form = self.forms.get(making.form)
        if form is None:
            with self._lock:
                form = self.forms.get(making.form) or self._made(making, stream)
        return form.memory.address

    def _made(self, making: Maker, stream: int) -> Form:
        making.refuse_capture(stream)
        library = cast(GpuLibrary, self.library)
        shape = (-(-making.nbytes // FLOAT_BYTES),)
        memory = library.empty(self.first, shape, "float32", stream)
        form = Form(memory, making.nbytes, making)
        self._fill(form, stream)
        self.forms[making.form] = form
        return form

    def _fill(self, form: Form, stream: int) -> None:
        library = cast(GpuLibrary, self.library)
        for each in self.operands:
            library.wait_for(each, stream)
        form.making.fill(self.first.address, form.memory.address, stream)
        library.written_on(form.memory, stream)

    def refresh(self, stream: int) -> None:
        """Make all forms anew, in the memory that they have."""
        with self._lock:
            for form in self.forms.values():
                self._fill(form, stream)


def stream_of(operand: Operand, library: Library, stream: Any) -> int:
    """The handle of the stream that is meant.

    Raises:
        UsageError: it is no stream of the operand's GPU.
    """
    load("gemmkit.ops.making")
    from gemmkit.devices.context import context_of
    from gemmkit.devices.streams import check_stream, stream_handle

    assert operand.device is not None
    if stream is None:
        return cast(GpuLibrary, library).current_stream(operand.device)
    handle = stream_handle(stream)
    check_stream(handle, context_of(operand.device))
    return handle
