"""`GemmProblem`: the product to compute, independent of any kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gemmkit.dtypes import (
    ITEM_BYTES,
    LARGEST_DOUBLE,
    Dtype,
    Precision,
    default_result_type,
    is_narrow,
)
from gemmkit.epilogue import LARGEST_FLOAT, Epilogue
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.problem_counts import ProblemCounts
from gemmkit.problem_fields import (
    are_usual,
    check_narrow_result,
    converted,
    known_operands,
    known_precision,
    known_result_type,
    known_scales,
    known_type,
    transpositions,
)
from gemmkit.problem_matrices import (
    BROADCAST,
    batch_strides,
    largest_of_groups,
    leading_dimensions,
)
from gemmkit.scales import UNSCALED, Scales
from gemmkit.units import read_shape, shape_text

if TYPE_CHECKING:
    from gemmkit.groups import Groups

__all__ = ["BROADCAST", "GemmProblem", "Shape", "read_problem"]


@dataclass(frozen=True, slots=True)
class GemmProblem(ProblemCounts):
    """C ← epilogue(α·A·B + β·C), row-major.

    A is m×k, B is k×n and C is m×n; α is `alpha` and β is `beta`. Element (row, col) of X is at
    offset `row * ldx + col`, where `ldx` is `lda`, `ldb` or `ldc`, in elements. With `transa`,
    memory holds the transpose of A, k×m, with leading dimension `lda`: element (row, col) is at
    offset `col * lda + row`. `transb` and `transc` do the same for B and C; all three together are
    the column-major product. A leading dimension of 0 means contiguous rows. By the rules of BLAS,
    C is not read if β = 0, and neither A nor B if α = 0.

    A and B have elements of `dtype`; C, bias, residual and auxiliary output have `out_dtype`, by
    default the same, for A and B of 8 bits float32. Accumulation is in fp32, for float64 matrices
    in fp64. `alignment` is the alignment of the addresses of all matrices, in bytes; each is also
    aligned to its element size.

    Results of 8 bits are rounded to nearest, ties to even, as `cvt.rn.satfinite` does: what is too
    large, infinities as well, becomes the largest number of the type, and NaN stays NaN. They go
    with β = 0 and a bias of float32, and without a residual or an auxiliary output.

    `precision` says how float32 is multiplied at least: "ieee" in fp32, "fp32" in any way whose
    error bound is that of fp32 sums or smaller, such as several narrower products on tensor cores,
    "tf32" of operands that are rounded to TF32 (8 bits of exponent, 10 of mantissa), with sums in
    fp32. A kernel of a higher precision serves as well. Of A and B of 8 bits, "fast" lets tensor
    cores add up all products with the few bits that they keep of such sums (14 on Hopper; "fast
    accumulation"); with "ieee", fp32 takes their sums every 128 of k. Other types have none but
    "ieee".

    `scales` say that elements of A and B of 8 bits stand for their products with fp32 scales, each
    shared by many of them: see `Scales.parse` for the words. Those of a batch have scales for each
    product, where the products do not share the operand, and so have groups. With scales of chunks
    of 128 of k, "fast" means "ieee".

    A batch is that many products with the same α, β and epilogue: the matrix X of product i starts
    at `i * stride_x`, that is `stride_a`, `stride_b` or `stride_c`, in elements. A stride of 0
    means that matrices are contiguous, and `BROADCAST` that the products share one A, or one B.
    Matrices may be interleaved, and those of A and B may overlap. A single product has no strides:
    they become 0.

    With `groups`, each product has its own size and leading dimensions, and everything else is
    shared; the matrices can be anywhere in memory. `m`, `n`, `k` and the leading dimensions are
    then the largest of all and need not be given: see `of_groups`. Ragged groups share one A and
    one C, of which each has its own rows, and B is a stack (see `gemmkit.ragged_matmul`).

    `further_aligned` says whether rows and matrices of residual and auxiliary output start at
    multiples of 16 bytes, which TMA needs.

    `prepared` names operands, "a", "b" or "ab", that are constant: what kernels read in place of
    them, such as their two parts of fp16, was made before and is not part of the work.

    Raises:
        UsageError: a size is negative, a leading dimension is smaller than the row, matrices of C
            overlap, a stride is not a number of elements, α or β is not a finite fp32 number
            (for float64 matrices fp64), a type or a precision is unknown, a precision is not of
            the type, scales are unknown or not of the type, an alignment is not a power of two, or
            groups are also a batch, have a prepared A, or results of 8 bits, or are ragged with
            scales of blocks of A; results of 8 bits have what they go without, or others a scale in
            memory.
        UnsupportedType: a field has another type. NumPy's numbers count as Python's, and an
            epilogue may be given in words. Or products of float64 have results of 8 bits.
    """

    m: int
    n: int
    k: int
    alpha: float = 1.0
    beta: float = 0.0
    lda: int = 0
    ldb: int = 0
    ldc: int = 0
    epilogue: Epilogue = field(default_factory=Epilogue)
    batch: int = 1
    stride_a: int = 0
    stride_b: int = 0
    stride_c: int = 0
    transa: bool = False
    transb: bool = False
    dtype: Dtype = "float32"
    out_dtype: Dtype | None = None
    alignment: int = 256
    transc: bool = False
    groups: Groups | None = None
    precision: Precision = "ieee"
    prepared: str = ""
    scales: Scales = UNSCALED
    further_aligned: bool = True

    def __post_init__(self) -> None:
        if not are_usual(self):
            self._fill_in(converted(self))
        if self.alignment < 1 or self.alignment & (self.alignment - 1):
            raise UsageError(
                f"alignment = {self.alignment} is not a power of two: addresses are aligned to 1, "
                "2, 4 … bytes"
            )
        if self.groups is not None:
            self._fill_in(largest_of_groups(self, self.groups))
        if self.dtype not in ITEM_BYTES:
            object.__setattr__(self, "dtype", known_type("dtype", self.dtype))
        if self.out_dtype is None:
            object.__setattr__(self, "out_dtype", default_result_type(self.dtype))
        if self.out_dtype not in ITEM_BYTES:
            object.__setattr__(self, "out_dtype", known_result_type(str(self.out_dtype)))
        if self.precision != "ieee":
            object.__setattr__(self, "precision", known_precision(self.precision, self.dtype))
        if self.prepared:
            object.__setattr__(self, "prepared", known_operands(self.prepared))
            if self.groups is not None and self.prepared != "b":
                raise UsageError(f"prepared = '{self.prepared}': of groups, B alone can be")
        if self.scales is not UNSCALED:
            self._fill_in({"scales": known_scales(self)})
        for name in ("m", "n", "k", "batch"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} = {getattr(self, name)}: sizes must be 0 or more")
        if is_narrow(self.out_dtype) or self.epilogue.scale_result:
            check_narrow_result(self.dtype, self.beta, self.epilogue, self.result_dtype)
            if self.groups is not None:
                raise UsageError(f"groups of products have no results of {self.out_dtype}")
        double = self.sum_dtype == "float64"
        for name in ("alpha", "beta"):
            if not abs(getattr(self, name)) <= (LARGEST_DOUBLE if double else LARGEST_FLOAT):
                kind = "fp64" if double else "fp32"
                raise UsageError(f"{name} = {getattr(self, name)} is not a finite {kind} number")
        self._fill_in(leading_dimensions(self))
        if self.batch > 1 or self.stride_a or self.stride_b or self.stride_c:
            self._fill_in(batch_strides(self))

    def _fill_in(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_shape(cls, text: str, **rest: object) -> GemmProblem:
        """A problem from the text of a shape.

        Args:
            text: `MxNxK`, a number for a cube, or `MxNxKxBATCH` for that many products, such as
                `64x64x32x1000`.
            rest: other fields.

        Raises:
            UsageError: the text is not a valid shape.
        """
        m, n, k, batch = read_shape(text)
        return cls(m, n, k, **{"batch": batch, **rest})  # type: ignore[arg-type]

    @classmethod
    def of_groups(
        cls, groups: Groups | str | Iterable[Sequence[int]], layout: str = "nn", **rest: Any
    ) -> GemmProblem:
        """A problem of products of different shapes.

        Args:
            groups: `Groups`, a string `MxNxK*COUNT,…`, with `ragged:` before it if they are, or
                (m, n, k) or (m, n, k, lda, ldb, ldc) of
                each product. Leading dimensions are those of matrices in the layout.
            layout: the layout of all products, as in the property of that name.
            rest: other fields, which all products share.

        Raises:
            UsageError: as `Groups` and `GemmProblem`.
        """
        from gemmkit.groups import Groups

        if isinstance(groups, str):
            groups = Groups.parse(groups)
        elif not isinstance(groups, Groups):
            groups = Groups.listed(groups)
        return cls(0, 0, 0, groups=groups, **{**transpositions(layout), **rest})

    @property
    def shape(self) -> str:
        """The shape as `MxNxK`, for a batch as `MxNxKxBATCH`, for groups as `MxNxK*COUNT,…`,
        shortened if it is long."""
        return shape_text(self.m, self.n, self.k, self.batch, self.groups_text)

    @property
    def groups_text(self) -> str:
        """The groups as `Groups.parse` reads them, with leading dimensions of padded rows."""
        return "" if self.groups is None else str(self.groups.unpitched(self.transposed))

    @property
    def ragged(self) -> bool:
        """Whether it has ragged groups."""
        return self.groups is not None and self.groups.ragged

    @property
    def count(self) -> int:
        """The number of products."""
        return self.batch if self.groups is None else self.groups.count

    def product(self, number: int) -> GemmProblem:
        """Product `number`, from 0, of a batch or of groups, without the others."""
        if self.groups is None:
            return self.single
        m, n, k, lda, ldb, ldc = self.groups.table[:, number].tolist()
        return replace(self, groups=None, m=m, n=n, k=k, lda=lda, ldb=ldb, ldc=ldc)

    @property
    def single(self) -> GemmProblem:
        """One product of the batch; for groups one with the largest m, n and k."""
        if self.groups is not None:
            return replace(self, groups=None, lda=0, ldb=0, ldc=0)
        return self if self.batch == 1 else replace(self, batch=1)

    @property
    def mean_k(self) -> int:
        """k; for groups its mean over all elements of C, rounded up."""
        if self.groups is None or not self.results:
            return self.k
        return -(-self.flops // (2 * self.results))

    @property
    def typical(self) -> GemmProblem:
        """A single product that represents the groups: the one with the most multiply-adds, with
        the mean k and the same alignment. A problem without groups represents itself."""
        if self.groups is None or not self.groups.count:
            return self
        m, n, k = self.groups.table[:3].astype(float)
        alignment = self.alignment if self.is_aligned(16) else self.item_bytes
        found = self.product(int((m * n * k).argmax()))
        depth = -(-self.mean_k // 16) * 16 if self.is_aligned(16) else self.mean_k
        return replace(found, k=depth, lda=0, ldb=0, ldc=0, alignment=alignment)

    @property
    def representative(self) -> GemmProblem:
        """Of ragged groups with rows, those that a choice is made for, which any division of the
        rows gets."""
        if self.groups is None or not self.groups.ragged:
            return self
        sizes = dict.fromkeys(("m", "n", "k", "lda", "ldb", "ldc"), 0)
        return replace(self, groups=self.groups.representative(), **sizes)  # type: ignore[arg-type]

    @property
    def transposed(self) -> tuple[bool, bool, bool]:
        """Whether the memory of A, B and C holds the transpose."""
        return self.transa, self.transb, self.transc

    @property
    def strides(self) -> tuple[int, int, int]:
        """Elements from a matrix of A, B and C to the next; 0 if it is shared."""
        return max(self.stride_a, 0), max(self.stride_b, 0), max(self.stride_c, 0)

    @property
    def result_dtype(self) -> Dtype:
        """The type of C and of the epilogue's operands: `out_dtype`, never None."""
        return self.out_dtype or self.dtype

    @property
    def sum_dtype(self) -> Dtype:
        """The type of accumulators: fp32, for float64 matrices fp64."""
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def layout(self) -> str:
        """The layouts of A and B in BLAS's letters: `nn`, `nt`, `tn` or `tt`.

        A third letter, `t`, follows if C is transposed: `ttt` is column-major.
        """
        return "nt"[self.transa] + "nt"[self.transb] + "t" * self.transc

    def laid_out(self, layout: str) -> GemmProblem:
        """The same product with A, B and C in another layout, given as in `layout`.

        The padding of rows is kept; batches become contiguous.
        """
        letters = transpositions(layout)
        if self.groups is not None:
            groups = self.groups.repitched(self.transposed, tuple(letters.values()))
            return replace(self, **letters, groups=groups, lda=0, ldb=0, ldc=0)
        return self._reshaped(**letters)

    def resized(self, m: int, n: int, k: int) -> GemmProblem:
        """The same problem with the sizes `m`, `n` and `k`.

        The padding of rows is kept; batches become contiguous.

        Raises:
            UsageError: the problem has groups, which have no common size.
        """
        if self.groups is not None:
            raise UsageError(f"groups {self.shape} have no one size: give other groups")
        return self._reshaped(m=m, n=n, k=k)

    def _reshaped(self, **changes: Any) -> GemmProblem:
        stride_a, stride_b = min(self.stride_a, 0), min(self.stride_b, 0)
        strides: dict[str, Any] = {"stride_a": stride_a, "stride_b": stride_b, "stride_c": 0}
        changed = replace(self, **changes, lda=0, ldb=0, ldc=0, **strides)
        given = self.lda, self.ldb, self.ldc
        lda, ldb, ldc = (
            row + ld - tight
            for row, ld, tight in zip(changed.tight, given, self.tight, strict=True)
        )
        return replace(changed, lda=lda, ldb=ldb, ldc=ldc, **strides)

    @property
    def pitched(self) -> tuple[int, int, int]:
        """Elements of A, B and C of one product, including the padding of rows."""
        return (
            (self.k if self.transa else self.m) * self.lda,
            (self.n if self.transb else self.k) * self.ldb,
            (self.n if self.transc else self.m) * self.ldc,
        )

    @property
    def tight(self) -> tuple[int, int, int]:
        """The minimum leading dimensions of A, B and C: the lengths of their rows, at least 1."""
        return (
            max(self.m if self.transa else self.k, 1),
            max(self.k if self.transb else self.n, 1),
            max(self.m if self.transc else self.n, 1),
        )

    @property
    def extents(self) -> tuple[int, int, int]:
        """Of A, B and C the lengths of rows, leading dimensions and strides, or'd together: a power
        of two that divides one divides all of them. For groups see `Groups.extents`."""
        if self.groups is not None:
            return self.groups.extents(self.transposed)
        stride_a, stride_b, stride_c = self.strides
        row_a, row_b, row_c = self.tight
        return row_a | self.lda | stride_a, row_b | self.ldb | stride_b, row_c | self.ldc | stride_c

    def is_aligned(self, nbytes: int) -> bool:
        """Whether every row and matrix of A, B and C starts and ends at a multiple of `nbytes`
        bytes. In groups, matrices that are neither read nor written do not count."""
        a, b, c = self.extents
        extents = (a | b) * self.item_bytes | c * self.out_item_bytes
        return extents % nbytes == 0 and self.alignment % nbytes == 0


# The ways to specify a problem.
Shape = str | int | tuple[int, ...] | GemmProblem


def read_problem(shape: Shape) -> GemmProblem:
    """The problem for a string `MxNxK` or `MxNxKxBATCH`, a tuple of these numbers, one number for
    a cube, or a problem.

    Raises:
        UsageError: it is not a valid shape.
    """
    if isinstance(shape, (str, int)) and not isinstance(shape, bool):
        return GemmProblem.from_shape(str(shape))
    if isinstance(shape, (tuple, list)):
        if len(shape) not in (3, 4):
            raise UsageError(f"{shape} is not a valid shape: use (M, N, K) or (M, N, K, BATCH)")
        m, n, k, *batch = shape
        return GemmProblem(m, n, k, batch=batch[0] if batch else 1)
    if not isinstance(shape, GemmProblem):
        raise UnsupportedType(
            f"{shape!r} is not a shape: use MxNxK, a number, (M, N, K) or a GemmProblem"
        )
    return shape
