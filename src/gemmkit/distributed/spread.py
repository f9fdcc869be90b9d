"""A product over ranks, as one of them asks for it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gemmkit.distributed.local import LocalProduct
from gemmkit.distributed.placements import Word
from gemmkit.distributed.strategy import Strategy
from gemmkit.distributed.team import Team
from gemmkit.dtypes import OPERAND_TYPES
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.ops.carriers import compute_device
from gemmkit.ops.libraries import torch as torch_library
from gemmkit.ops.libraries.torch import check_kind, read
from gemmkit.ops.libraries.torch_checks import check_alike, check_together, result_type
from gemmkit.ops.operands import known_dtype, read_dtype, same_memory
from gemmkit.ops.precision import settled
from gemmkit.ops.product import check_device
from gemmkit.ops.request import check_writable, share_memory

# The types of devices on whose tensors products are computed.
COMPUTES = ("cpu", "cuda")

# Of the result of a product with nothing after it.
_PLAIN = Epilogue()


@dataclass(frozen=True, slots=True)
class SpreadProduct:
    """A product over ranks: this rank's parts, and for each dimension of the mesh a team and the
    placements of A, B and the result, None for what follows from A and B. `whole` are the sizes of
    all of A and B, where the caller knows them; `part` the rows and columns that this rank is to
    have of the result, by default as `torch.chunk` spreads them. `out` is where it goes, `scale_a`
    and `scale_b` are the scales of this rank's parts, two-dimensional; `placed` are the names and
    placements of arrays that must be placed as the result, where they have placements of their own.
    """

    a: Any
    b: Any
    teams: tuple[Team, ...]
    placements: tuple[tuple[Word, Word], ...]
    wanted: tuple[Word | None, ...]
    product: LocalProduct = field(default_factory=LocalProduct)
    out_dtype: Any = None
    strategy: Strategy | None = None
    whole: tuple[int, ...] = ()
    part: tuple[int, ...] = ()
    out: Any = None
    scale_a: Any = None
    scale_b: Any = None
    placed: tuple[tuple[str, tuple[Word, ...]], ...] = ()

    @property
    def arrays_beside(self) -> tuple[tuple[str, Any], ...]:
        """The names of arrays beside A and B, and this rank's parts of them, None of those that
        there are not."""
        product = self.product
        return (
            ("bias", product.bias),
            ("residual", product.residual),
            ("c", product.c),
            ("out", self.out),
            ("scale_a", self.scale_a),
            ("scale_b", self.scale_b),
        )

    @property
    def shapes_beside(self) -> tuple[tuple[str, tuple[int, ...] | None], ...]:
        """Their names and shapes."""
        return tuple(
            (name, None if each is None else tuple(each.shape)) for name, each in self.arrays_beside
        )

    def check(self) -> None:
        """Refuse what is wrong with this rank's arguments, whatever the other ranks have.

        All that the rank's own products would refuse later, when others wait for its transfers.

        Raises:
            UsageError: there is something.
            DeviceError: a GPU is asked for that is not there.
        """
        for name, each in (("a", self.a), ("b", self.b)):
            if each.dim() != 2:
                raise UsageError(f"{name} has {each.dim()} dimensions: over ranks, matrices have 2")
        for name, each in (("a", self.a), ("b", self.b), *self.arrays_beside):
            if each is not None:
                check_dense(name, each)
        check_alike(a=self.a, b=self.b)
        self._check_options()
        beside = {name: each for name, each in self.arrays_beside if each is not None}
        if not beside:
            return
        check_together(a=self.a, **beside)
        known, result = known_dtype(_name(self.a.dtype), "a"), self.dtype
        for name, each in beside.items():
            wanted = torch.float32 if name.startswith("scale") else result
            if each.dtype != wanted:
                raise UnsupportedType(
                    f"{name} has type {each.dtype} and must have {wanted}: convert it with .to()"
                )
            if name.startswith("scale") and known not in OPERAND_TYPES:
                raise UsageError(
                    f"{name} is for a and b of {' and '.join(OPERAND_TYPES)}, not "
                    f"{known}: alpha scales products of other types"
                )
        if self.out is not None:
            self._check_written()

    def _check_options(self) -> None:
        """Refuse types, precisions and devices that there are not."""
        product = self.product
        known = known_dtype(_name(self.a.dtype), "a")
        if self.out_dtype is not None:
            read_dtype(self.out_dtype)
        if product.precision is not None:
            settled(product.precision, known)
        if product.device is None:
            return
        if self.a.is_cuda:
            check_device(product.device, self.a.get_device())
        else:
            compute_device(product.device)

    def _check_written(self) -> None:
        """Refuse an `out` that cannot be written, or not without changing what is still read."""
        check_writable(torch_library, self.out, "out")
        out = read(self.out.detach(), "out")
        if not out.writable:
            raise UsageError("out cannot be written: it is read-only")
        if out.overlaps_itself:
            raise UsageError("out has elements that share memory: give an array of its own")
        for name, each in (("a", self.a), ("b", self.b), *self.arrays_beside):
            if each is None or name == "out":
                continue
            other = read(each.detach(), name)
            if name in ("c", "residual") and same_memory(out, other):
                continue
            if share_memory(out, other):
                raise UsageError(
                    f"out overlaps {name} in memory, which is still read when out is written: "
                    "give another array"
                )

    @property
    def dtype(self) -> Any:
        """The type of the result."""
        if self.out_dtype is None and self.out is not None:
            return self.out.dtype
        if self.out_dtype is None:
            return result_type(self.a)
        return getattr(torch, read_dtype(self.out_dtype))

    @property
    def epilogue(self) -> Epilogue:
        """What follows the complete sums."""
        chosen = self.product.epilogue or _PLAIN
        if self.product.bias is not None and not chosen.bias:
            chosen = replace(chosen, bias="column")
        if self.product.residual is not None and not chosen.residual:
            chosen = replace(chosen, residual=True)
        return chosen


def check_dense(name: str, array: Any) -> None:
    """Refuse tensors whose elements do not lie in strides, or are on no device that computes.

    Raises:
        UsageError: this is one.
    """
    if array.device.type not in COMPUTES:
        raise UsageError(f"{name} is on {array.device}; gemmkit computes on CUDA and on the CPU")
    # What an operation of DTensors has not finished yet has a class of torch.distributed too.
    if not type(array).__module__.startswith("torch.distributed"):
        check_kind(array, name)


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
