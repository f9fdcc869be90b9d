"""`prepare`: constant operands, of which what kernels read in their place is made once.

Kernels of tensor cores read other forms of a matrix than users have: two parts of fp16, rows along
k, rows that begin at multiples of 16 bytes. Of other operands a launch before each product makes
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from gemmkit.dtypes import Precision, default_result_type
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.ops.arrays import GpuLibrary, library_of
from gemmkit.ops.operands import View, alignment
from gemmkit.ops.placement import Copied, Terms, layout_of, place
from gemmkit.ops.precision import settled
from gemmkit.ops.prepared_forms import Side, Store, holders, stream_of
from gemmkit.units import counted

if TYPE_CHECKING:
    from gemmkit.ops.making import Making

# Rows of the other operand for which forms are made at once, where nothing else is said.
USUAL_ROWS = 1024


class PreparedOperand:
    """A constant matrix as `gemmkit.prepare` makes it, to be multiplied by `matmul` and `gemm`.

    It holds the array itself, from which products are computed where no kernel reads another form,
    and those forms. Nothing notices that the array is changed in place: `refresh` must be called
    then. It must not be changed while a product reads it on another stream.

    Raises:
        UsageError: it is called: only `gemmkit.prepare` makes one.
    """

    __slots__ = ("_is_transpose", "_other", "_store", "shape")

    ndim = 2

    shape: tuple[int, int]
    _store: Store
    _is_transpose: bool
    _other: PreparedOperand | None

    def __init__(self) -> None:
        raise UsageError("a prepared operand is what gemmkit.prepare makes of an array")

    @classmethod
    def _of(cls, store: Store, other: PreparedOperand | None = None) -> PreparedOperand:
        """That of a store, or with `other` the transpose of that one."""
        made = object.__new__(cls)
        made._store, made._is_transpose, made._other = store, other is not None, other
        rows, columns = store.first.view.shape
        made.shape = (columns, rows) if other is not None else (rows, columns)
        return made

    @property
    def array(self) -> Any:
        """The array that was prepared, or a copy of it if neither its rows nor its columns were
        contiguous; of `T` it is that of the matrix itself."""
        return self._store.first.array

    @property
    def dtype(self) -> Any:
        """The type of its elements, as its library has it."""
        return self.array.dtype

    @property
    def key(self) -> str:
        """What compiled programs have in its place, see `held_by`."""
        return self._store.key

    @classmethod
    def held_by(cls, key: str) -> PreparedOperand | None:
        """The operand that has a key, if it is still there."""
        store = holders.get(key)
        return cls._of(store) if isinstance(store, Store) else None

    @property
    def side(self) -> Side:
        """Which operand of products it is for: "a" or "b"."""
        return self._store.side

    @property
    def precision(self) -> Precision:
        """The precision of its products, unless its type has none but "ieee"."""
        return self._store.precision

    @property
    def forms(self) -> tuple[str, ...]:
        """What has been made of it, by the kernel that makes it, type, sizes and pitch."""
        return tuple(self._store.forms)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that these forms take, the array itself apart."""
        return sum(each.nbytes for each in self._store.forms.values())

    @property
    def T(self) -> PreparedOperand:
        """Its transpose, as functions take it that transpose it back: `gemm` with `transb`, and
        `nn.linear`."""
        if self._other is None:
            self._other = PreparedOperand._of(self._store, self)
        return self._other

    def refresh(self, *, stream: Any = None) -> None:
        """Make all forms anew from the array, once that has been changed in place.

        Launches that a CUDA graph replays read the new ones.

        Args:
            stream: the stream on which the array was changed; by default its library's current one.

        Raises:
            UsageError: the stream is not one of this GPU, or is being captured.
            DeviceError: a launch failed.
        """
        store = self._store
        if store.first.device is not None:
            store.refresh(stream_of(store.first, store.library, stream))

    @property
    def is_transpose(self) -> bool:
        """Whether it is the transpose of what products read."""
        return self._is_transpose

    def __repr__(self) -> str:
        store = self._store
        transposed = "the transpose of " if self._is_transpose else ""
        held = f", {self.nbytes / 1e6:,.1f} MB in {counted(len(store.forms), 'form')}"
        return (
            f"PreparedOperand({transposed}{store.side} of {store.first.view.shape}, "
            f"{store.first.dtype}, precision {store.precision!r}, in {store.first.where}"
            f"{held if store.forms else ', read in place'})"
        )


class Held(NamedTuple):
    """The prepared operands of a call; None for an operand that is an array."""

    a: PreparedOperand | None
    b: PreparedOperand | None

    @property
    def sides(self) -> str:
        """Which operands are prepared: "a", "b" or "ab"."""
        return "a" * (self.a is not None) + "b" * (self.b is not None)

    def addresses(self, makings: Sequence[Making], stream: int) -> tuple[int, int]:
        """Where the forms are that launches on a stream read; those that are not there are made.

        Raises:
            UsageError: the stream is being captured into a graph.
            DeviceError: there is not enough memory, or a launch failed.
        """
        found = [0, 0]
        for each in makings:
            operand = self.a if each.role == "a" else self.b
            assert operand is not None
            found[each.role == "b"] = operand._store.address(each, stream)
        return found[0], found[1]


def prepare(
    array: Any,
    *,
    side: Side = "b",
    transpose: bool = False,
    precision: str | None = None,
    rows: int | Iterable[int] = USUAL_ROWS,
    stream: Any = None,
) -> PreparedOperand:
    """Prepare a constant matrix, such as a layer's weight, for many products.

    `gemmkit.matmul(x, w)` then does to `x` alone what a launch before the product otherwise does to
    both operands: it splits them into two parts of fp16 (precision "fp32" on Hopper), or copies
    them into rows that its kernel can load. Results are the same to the bit as those of the same
    kernel without preparation; as that costs less, another kernel may be chosen.

    Args:
        array: a matrix of any library that `gemmkit.matmul` takes, and of any type that it takes.
            It is kept, and must stay as it is; if it is changed in place, products are computed
            from the old elements, or from old and new ones, until `refresh` is called.
        side: "b" for products x · array, "a" for products array · x.
        transpose: prepare the transpose for products, as `gemmkit.nn.linear` and `gemm` with
            `transb` (or `transa`) multiply it. The result's shape is that of the array.
        precision: that of its products, as of `gemmkit.matmul`; by default the setting.
        rows: how many rows the other operand of typical products has (for side "a", columns): one
            number or several. What their kernels read is made at once, what other products' kernels
            read is made at the first such product. Usually it is the same.
        stream: the stream on which the array is ready; by default the current one of its library.

    Returns:
        The prepared operand. A GPU has finished the work on it. Of arrays in host memory, which
        each product brings to the device anew, nothing is made.

    Raises:
        UsageError: it is not a matrix, or an option is not valid.
        UnsupportedProblem: no kernel takes such products.
        CompileError, CompilerMissing: as `gemmkit.matmul`.
        DeviceError: there is not enough memory.
    """
    if side not in ("a", "b"):
        raise UsageError(f"side = {side!r}: use 'b' for products x · array, 'a' for array · x")
    numbers = read_rows(rows)
    if isinstance(array, PreparedOperand):
        raise UnsupportedType("this operand is prepared already: give its array")
    library = library_of(array, side)
    operand = library.read(array, side)
    found = settled(precision, operand.dtype)
    if len(operand.view.shape) != 2:
        sizes = counted(len(operand.view.shape), "dimension")
        raise UsageError(
            f"{side} has {sizes}: prepared operands are matrices, one for all products"
        )
    if transpose:
        if not hasattr(array, "T"):
            raise UnsupportedType(
                f"{side}, a {type(array).__name__}, has no T: transpose it yourself"
            )
        operand = library.read(array.T, side)
    if operand.device is not None and layout_of(operand.view) is None:
        gpu = cast(GpuLibrary, library)
        operand = gpu.copied(operand, operand.view.shape, by_columns=False)
    store = Store((operand,), library, side, found)
    if operand.device is not None:
        handle = stream_of(operand, library, stream)
        for making in _makings(store, numbers):
            store.address(making, handle)
    elif stream is not None:
        raise UsageError("stream is for arrays on a GPU")
    prepared = PreparedOperand._of(store)
    return prepared.T if transpose else prepared


def read_rows(rows: Any) -> list[int]:
    """Numbers of rows, each once.

    Raises:
        UsageError: they are none.
    """
    given = [rows] if isinstance(rows, Integral) else rows
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise UnsupportedType(f"rows = {rows!r}: use a number of rows, or several")
    numbers = list(given)
    for each in numbers:
        if isinstance(each, bool) or not isinstance(each, Integral) or each < 0:
            raise UsageError(f"rows = {rows!r}: numbers of rows are integers from 0 on")
    return list(dict.fromkeys(map(int, numbers)))


def _makings(store: Store, numbers: Iterable[int]) -> list[Making]:
    """What makes the forms that products with so many rows of the other operand read."""
    from gemmkit.devices.context import context_of
    from gemmkit.ops.making import makings

    operand, side = store.first, store.side
    assert operand.device is not None
    context = context_of(operand.device)
    rows, columns = operand.view.shape
    terms = Terms(
        dtype=operand.dtype,
        out_dtype=default_result_type(operand.dtype),
        alignment=alignment(operand.address),
        precision=store.precision,
        prepared=side,
    )
    found: dict[str, Making] = {}
    for number in numbers:
        if side == "b":
            shapes = {"a": (number, rows), "b": (rows, columns), "out": (number, columns)}
        else:
            shapes = {"a": (rows, columns), "b": (columns, number), "out": (rows, number)}
        views = {role: View.tight(shape) for role, shape in shapes.items()}
        steps = place({**views, side: operand.view}, terms)
        assert not isinstance(steps, Copied)
        for step in steps:
            found |= {each.form: each for each in makings(step, context)}
    return list(found.values())


def taken(a: Any, b: Any, precision: str | None) -> tuple[Any, Any, str | None, Held | None]:
    """The arrays of a call, its precision, and which of them are prepared operands.

    Raises:
        UsageError: one was prepared for the other side, or is the transpose of what was, or for
            another precision.
    """
    given: Mapping[Side, Any] = {"a": a, "b": b}
    for role, operand in given.items():
        if not isinstance(operand, PreparedOperand):
            continue
        if operand.is_transpose:
            raise UsageError(
                f"{role} is the transpose of what was prepared: multiply its T, or prepare the "
                "array without transpose=True"
            )
        if operand.side != role:
            raise UsageError(
                f"{role} was prepared as side '{operand.side}': prepare it with side='{role}'"
            )
        if precision is not None and precision != operand.precision:
            raise UsageError(
                f"{role} was prepared for precision '{operand.precision}', not {precision!r}: "
                f"leave precision out, or prepare it with precision={precision!r}"
            )
    own = [each.precision for each in given.values() if isinstance(each, PreparedOperand)]
    if not own:
        return a, b, precision, None
    if len(set(own)) > 1:
        raise UsageError(
            f"a was prepared for precision '{own[0]}' and b for '{own[1]}': prepare both for one"
        )
    held = Held(*(each if isinstance(each, PreparedOperand) else None for each in (a, b)))
    a, b = (each.array if isinstance(each, PreparedOperand) else each for each in (a, b))
    return a, b, own[0], held
