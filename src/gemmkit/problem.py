"""`GemmProblem`: which product is asked for, apart from how any kernel computes it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gemmkit.epilogue import Epilogue
from gemmkit.errors import UsageError

FLOAT_BYTES = 4
LARGEST_FLOAT = (2 - 2**-23) * 2.0**127


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """C ← epilogue(α·A·B + β·C), fp32, row-major.

    A is m×k, B is k×n and C is m×n; element (row, col) of X lies at `row * ldx + col`. A leading
    dimension of 0 means tight rows. By the BLAS rules, β = 0 never reads C, and α = 0 never reads
    A or B.

    Raises:
        UsageError: a size is negative, a leading dimension is shorter than its row, or α or β is
            no finite fp32 number.
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

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} = {getattr(self, name)}: sizes must be 0 or more")
        for name in ("alpha", "beta"):
            if not abs(getattr(self, name)) <= LARGEST_FLOAT:
                raise UsageError(f"{name} = {getattr(self, name)} is no finite fp32 number")
        for name, row in (("lda", self.k), ("ldb", self.n), ("ldc", self.n)):
            given = getattr(self, name)
            if given == 0:
                object.__setattr__(self, name, max(row, 1))
            elif given < max(row, 1):
                raise UsageError(f"{name} = {given} is shorter than a row of {row} elements")

    @classmethod
    def from_shape(cls, text: str, **rest: object) -> GemmProblem:
        """Read `MxNxK` (or one number for a cube), other fields by keyword.

        Raises:
            UsageError: the text is no shape.
        """
        if re.fullmatch(r"\d+(x\d+x\d+)?", text.lower()) is None:
            raise UsageError(f"'{text}' is no shape: write MxNxK, for example 512x300x200")
        sizes = [int(size) for size in text.lower().split("x")]
        m, n, k = sizes * 3 if len(sizes) == 1 else sizes
        return cls(m, n, k, **rest)  # type: ignore[arg-type]

    @property
    def shape(self) -> str:
        """The shape as `MxNxK`."""
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def flops(self) -> int:
        """Floating-point operations of the product, 2·m·n·k (a multiply-add counts two)."""
        return 2 * self.m * self.n * self.k

    @property
    def minimal_bytes(self) -> int:
        """Bytes to read A and B and write C once each (and read C where β ≠ 0)."""
        passes_over_c = 1 if self.beta == 0 else 2
        words = self.m * self.k + self.k * self.n + passes_over_c * self.m * self.n
        return FLOAT_BYTES * words

    @property
    def intensity(self) -> float:
        """Arithmetic intensity in FLOP per byte of `minimal_bytes`; 0 for an empty problem."""
        return self.flops / self.minimal_bytes if self.minimal_bytes else 0.0


# What users may write where a problem is asked for.
Shape = str | int | tuple[int, int, int] | GemmProblem


def read_problem(shape: Shape) -> GemmProblem:
    """The problem that a text `MxNxK`, a number (of a cube), a triple or a problem means.

    Raises:
        UsageError: it is no shape.
    """
    if isinstance(shape, (str, int)):
        return GemmProblem.from_shape(str(shape))
    return GemmProblem(*shape) if isinstance(shape, tuple) else shape
