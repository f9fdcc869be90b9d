"""`GroupedProblem`: many products of different shapes in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gemmkit.epilogue import LARGEST_FLOAT, Epilogue
from gemmkit.errors import UsageError
from gemmkit.problem import FLOAT_BYTES, GemmProblem

Sizes = NDArray[np.int64]

# The fields that all products of a group share.
_SHARED = ("alpha", "beta", "epilogue", "transa", "transb", "dtype", "out_dtype")


@dataclass(frozen=True, eq=False)
class GroupedProblem:
    """Cᵢ ← epilogue(α·Aᵢ·Bᵢ + β·Cᵢ) for each i, fp32, each product with its own sizes.

    `m`, `n`, `k`, `lda`, `ldb` and `ldc` are arrays whose length is the number of products, with
    the meaning of `GemmProblem`. α, β, the epilogue, `transa` and `transb` are shared by all
    products. A leading dimension of 0 means contiguous rows. `alignment` is the alignment of the
    addresses of all A, B and C, in bytes. Equal sizes make a batch with matrices at arbitrary
    addresses: BLAS's batch by arrays of pointers.

    Raises:
        UsageError: the arrays have different lengths, a size is negative, a leading dimension is
            smaller than the row, or α or β is not a finite fp32 number; the text names the
            product.
    """

    m: Sizes
    n: Sizes
    k: Sizes
    lda: Sizes
    ldb: Sizes
    ldc: Sizes
    alpha: float = 1.0
    beta: float = 0.0
    epilogue: Epilogue = field(default_factory=Epilogue)
    transa: bool = False
    transb: bool = False
    alignment: int = 256

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "lda", "ldb", "ldc"):
            sizes = np.array(getattr(self, name), np.int64).reshape(-1)
            object.__setattr__(self, name, sizes)
            if sizes.size != self.m.size:
                raise UsageError(f"{name} has {sizes.size} entries where m has {self.m.size}")
            if (sizes < 0).any():
                number = int((sizes < 0).argmax())
                raise UsageError(
                    f"product {number}: {name} = {sizes[number]}: sizes must be 0 or more"
                )
        rows = {
            "lda": self.m if self.transa else self.k,
            "ldb": self.k if self.transb else self.n,
            "ldc": self.n,
        }
        for name, row in rows.items():
            given, least = getattr(self, name), np.maximum(row, 1)
            given[given == 0] = least[given == 0]
            if (given < least).any():
                number = int((given < least).argmax())
                raise UsageError(
                    f"product {number}: {name} = {given[number]} is smaller than a row of "
                    f"{row[number]} elements"
                )
        for name in ("alpha", "beta"):
            if not abs(getattr(self, name)) <= LARGEST_FLOAT:
                raise UsageError(f"{name} = {getattr(self, name)} is not a finite fp32 number")

    @classmethod
    def of(cls, products: Sequence[GemmProblem]) -> GroupedProblem:
        """The group of single products, which may differ only in sizes and alignment.

        Raises:
            UsageError: they differ in something else, one is a batch, or one is not fp32.
        """
        first = products[0] if products else GemmProblem(0, 0, 0)
        for number, each in enumerate(products):
            if each.batch != 1:
                raise UsageError(f"product {number} is a batch of {each.batch}: list its products")
            for name in _SHARED:
                theirs, its = getattr(first, name), getattr(each, name)
                if theirs != its:
                    raise UsageError(
                        f"product {number} has {name} = {its}, the first {theirs}: all must agree"
                    )
        if (first.dtype, first.out_dtype) != ("float32", "float32"):
            raise UsageError(f"groups must be float32, not {first.dtype}")

        def sizes(name: str) -> Sizes:
            return np.array([getattr(each, name) for each in products], np.int64)

        m, n, k, lda, ldb, ldc = map(sizes, ("m", "n", "k", "lda", "ldb", "ldc"))
        return cls(
            *(m, n, k, lda, ldb, ldc),
            alpha=first.alpha,
            beta=first.beta,
            epilogue=first.epilogue,
            transa=first.transa,
            transb=first.transb,
            alignment=min((each.alignment for each in products), default=256),
        )

    @property
    def count(self) -> int:
        """The number of products."""
        return int(self.m.size)

    @cached_property
    def single(self) -> GemmProblem:
        """A product of 1×1 matrices with the layout and epilogue of the group."""
        return GemmProblem(
            *(1, 1, 1, self.alpha, self.beta),
            epilogue=self.epilogue,
            transa=self.transa,
            transb=self.transb,
            alignment=self.alignment,
        )

    @property
    def flops(self) -> int:
        """Floating-point operations, the sum of 2·m·n·k."""
        return int((2 * self.m * self.n * self.k).sum())

    @property
    def minimal_bytes(self) -> int:
        """Bytes to read each A and B and write each C once (and read C if β ≠ 0).

        Nothing is read for an empty C.
        """
        passes_over_c = 1 if self.beta == 0 else 2
        read = (self.m > 0) & (self.n > 0)
        words = read * (self.m + self.n) * self.k + passes_over_c * self.m * self.n
        return FLOAT_BYTES * int(words.sum())
