"""`prepare_groups`: constant operands of `grouped_matmul`, such as the weights of experts.

What kernels read in their place is made once, in one piece for all products.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gemmkit.dtypes import Precision, default_result_type
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.loading import load
from gemmkit.ops.arrays import Glances, GpuLibrary, Library, WarmLibrary, library_of
from gemmkit.ops.groups import argument, listed, low_bits
from gemmkit.ops.operands import Operand, alignment
from gemmkit.ops.overlaps import Extents
from gemmkit.ops.precision import settled
from gemmkit.ops.prepared_forms import Maker, Store, stream_of
from gemmkit.ops.prepared_operands import USUAL_ROWS, read_rows
from gemmkit.units import counted

if TYPE_CHECKING:
    from gemmkit.ops.grouped_gpu import GroupsMaker


# Of prepared operands, in the order in which they are made.
_numbers = count()


class PreparedGroups:
    """Constant matrices as `gemmkit.prepare_groups` makes them, to be multiplied as `bs` of
    `grouped_matmul`.

    It holds the arrays themselves, from which products are computed where no kernel reads another
    form, and those forms. Nothing notices that an array is changed in place: `refresh` must be
    called then. None must be changed while a product reads it on another stream.

    Raises:
        UsageError: it is called: only `gemmkit.prepare_groups` makes one.
    """

    __slots__ = ("_glances", "_number", "_store")

    _store: Store
    _number: int
    _glances: Glances | None

    def __init__(self) -> None:
        raise UsageError("prepared operands are what gemmkit.prepare_groups makes of arrays")

    @classmethod
    def _of(cls, store: Store) -> PreparedGroups:
        made = object.__new__(cls)
        made._store, made._number, made._glances = store, next(_numbers), None
        return made

    def glances(self, library: WarmLibrary) -> tuple[Glances, int] | None:
        """What the arrays look like, which stays so, and a number that no others have; None where
        whether they may be multiplied depends on whether gradients are recorded.

        Args:
            library: that of the arrays.

        Raises:
            TypeError, ValueError: as `WarmLibrary.glance_at_many`.
        """
        if self._glances is None:
            arrays = self.arrays
            if any(getattr(each, "requires_grad", False) for each in arrays):
                return None
            self._glances = library.glance_at_many(arrays)
        return self._glances, self._number

    @property
    def arrays(self) -> list[Any]:
        """The arrays that are multiplied: those that were prepared, their transposes, or copies of
        those whose rows are not contiguous beside others whose rows are."""
        return [each.array for each in self._store.operands]

    def __len__(self) -> int:
        return len(self._store.operands)

    @property
    def precision(self) -> Precision:
        """The precision of their products."""
        return self._store.precision

    @property
    def forms(self) -> tuple[str, ...]:
        """What has been made of them, by the kernel that makes it and its size."""
        return tuple(self._store.forms)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that these forms take, the arrays apart."""
        return sum(each.nbytes for each in self._store.forms.values())

    def refresh(self, *, stream: Any = None) -> None:
        """Make all forms anew from the arrays, once these have been changed in place.

        Args:
            stream: the stream on which they were changed; by default their library's current one.

        Raises:
            UsageError: the stream is not one of this GPU, or is being captured.
            DeviceError: a launch failed.
        """
        store = self._store
        if store.operands and store.first.device is not None:
            store.refresh(stream_of(store.first, store.library, stream))

    def address(self, making: Maker, stream: int) -> int:
        """Where a form is, which is made if it is not there.

        Args:
            making: what makes the form.
            stream: the handle of the stream on which it is made and read.

        Raises:
            UsageError: the stream is being captured into a graph.
            DeviceError: there is not enough memory, or a launch failed.
        """
        return self._store.address(making, stream)

    def __repr__(self) -> str:
        held = f"{self.nbytes / 1e6:,.1f} MB in {counted(len(self.forms), 'form')}"
        return (
            f"PreparedGroups({counted(len(self), 'operand')}, precision {self.precision!r}, "
            f"{held if self.forms else 'read in place'})"
        )


def prepare_groups(
    bs: Iterable[Any],
    *,
    transpose: bool = False,
    precision: str | None = None,
    rows: int | Iterable[int] = USUAL_ROWS,
    stream: Any = None,
) -> PreparedGroups:
    """Prepare constant matrices, such as the weights of experts, for many grouped products.

    `gemmkit.grouped_matmul(xs, w)` then does to `xs` alone what a launch before the products
    otherwise does to all operands: it splits them into two parts of fp16 (precision "fp32" on
    Hopper). Results are the same to the bit as those of the same kernel without preparation.

    Args:
        bs: matrices of k×n elements, all of one library, type and device. They are kept, and must
            stay as they are; see `PreparedGroups.refresh`.
        transpose: prepare their transposes: matrices of n×k elements, as layers have them.
        precision: that of their products, as of `gemmkit.matmul`; by default the setting.
        rows: how many rows each of the other operands has in typical calls: one number or several.
            What their kernels read is made at once, the rest at the first such call.
        stream: the stream on which the arrays are ready; by default the current one of their
            library.

    Returns:
        The prepared operands. Of arrays in host memory, which each call brings to the device anew,
        nothing is made.

    Raises:
        UsageError: they do not go together, or an option is not valid.
        UnsupportedProblem, CompileError, CompilerMissing, DeviceError: as `gemmkit.prepare`.
    """
    numbers, arrays = read_rows(rows), listed("b", bs)
    if not arrays:
        raise UsageError("there is nothing to prepare: bs is empty")
    library = library_of(arrays[0], f"{argument('b')}[0]")
    operands = [_read(library, each, place, transpose) for place, each in enumerate(arrays)]
    first = operands[0]
    for place, each in enumerate(operands):
        if (each.dtype, each.device) != (first.dtype, first.device):
            raise UsageError(
                f"bs[0] is of {first.dtype} in {first.where}, and bs[{place}] of {each.dtype} in "
                f"{each.where}: prepared operands are of one type and in one place"
            )
    found = settled(precision, first.dtype)
    if first.device is None:
        if stream is not None:
            raise UsageError("stream is for arrays on a GPU")
        return PreparedGroups._of(Store(tuple(operands), library, "b", found))
    store = Store(tuple(_alike(operands, cast(GpuLibrary, library))), library, "b", found)
    handle = stream_of(first, library, stream)
    for maker in _makers(store, numbers):
        store.address(maker, handle)
    return PreparedGroups._of(store)


def _read(library: Library, array: Any, place: int, transpose: bool) -> Operand:
    name = f"{argument('b')}[{place}]"
    if library_of(array, name) is not library:
        raise UnsupportedType(f"{name} is not of the library of bs[0]: convert it")
    if transpose:
        if not hasattr(array, "T"):
            raise UnsupportedType(
                f"{name}, a {type(array).__name__}, has no T: transpose it yourself"
            )
        array = array.T
    operand = library.read(array, name)
    if len(operand.view.shape) != 2:
        sizes = counted(len(operand.view.shape), "dimension")
        raise UsageError(f"{name} has {sizes}; each product is of two matrices")
    return operand


def _alike(operands: list[Operand], library: GpuLibrary) -> list[Operand]:
    """All in rows or all in columns, so that one launch reads them."""
    extents = Extents.of(operands)
    if extents.in_rows.all() or extents.in_columns.all():
        return operands
    return [
        each if in_rows else library.copied(each, each.view.shape, by_columns=False)
        for each, in_rows in zip(operands, extents.in_rows.tolist(), strict=True)
    ]


def _makers(store: Store, numbers: Iterable[int]) -> Iterator[GroupsMaker]:
    """What makes the forms that products with so many rows each read."""
    load("gemmkit.ops.grouped_gpu")
    from gemmkit.devices.context import context_of
    from gemmkit.devices.tensor_maps import DRIVER_MAPS
    from gemmkit.groups import Groups
    from gemmkit.ops.grouped_gpu import groups_launch
    from gemmkit.problem import GemmProblem

    extents = Extents.of(list(store.operands))
    columns = not bool(extents.in_rows.all())
    k, n = extents.places[:, 2:4].T
    addresses = extents.places[:, 0]
    assert store.first.device is not None
    for number in numbers:
        m = np.full(k.size, number)
        problem = GemmProblem.of_groups(
            Groups.of(m, n, k, k, extents.leading(columns=columns), n),
            transb=columns,
            dtype=store.first.dtype,
            out_dtype=default_result_type(store.first.dtype),
            precision=store.precision,
            prepared="b",
            alignment=alignment(low_bits([addresses])),
        )
        launch = groups_launch(problem, context_of(store.first.device))
        if launch is not None and launch.maker is not None:
            yield launch.maker.of(launch.table.at({"B": addresses}, launch.sized, DRIVER_MAPS))


def taken_groups(
    prepared: PreparedGroups, precision: str | None
) -> tuple[list[Any], str, PreparedGroups]:
    """The arrays of prepared operands, and their precision.

    Raises:
        UsageError: they were prepared for another precision.
    """
    own = prepared.precision
    if precision is not None and precision != own:
        raise UsageError(
            f"bs were prepared for precision '{own}', not {precision!r}: leave precision out, or "
            f"prepare them with precision={precision!r}"
        )
    return prepared.arrays, own, prepared
