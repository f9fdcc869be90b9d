"""`Entry`: one configuration that was tried on one class of problems, and what was seen of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import msgspec

from gemmkit.dtypes import Dtype, Precision, types_text
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.layouts import layout_text
from gemmkit.kernels.plan import TileConfig
from gemmkit.problem import GemmProblem
from gemmkit.scales import Scales
from gemmkit.units import shape_text

Outcome = Literal["ok", "wrong", "uncompiled", "unlaunched"]
Origin = Literal["measured", "imported"]

# What rows must begin and end at multiples of to be aligned: the widest access to memory.
VECTOR_BYTES = 16


class ProblemClass(msgspec.Struct, frozen=True, kw_only=True, order=True, omit_defaults=True):
    """Problems that one tuned configuration serves: sizes, types, and how rows lie in memory.

    `aligned` says that every row of A, B and C, and every matrix of a batch, begins and ends at a
    multiple of 16 bytes. `groups` are those of products of different shapes, in tight rows and
    sorted, for their order makes no difference; m, n and k are then the largest. Ragged ones stand
    for all divisions of as many rows. `layout` is that
    of `GemmProblem`, `dtype` the type of A and B, `out_dtype` that of C, `precision` how float32
    may be multiplied. `scales` are those of A and B where chunks of k have their own. Other scales,
    α, β, the epilogue and what products of a batch share are left out: they hardly change which
    configuration is the fastest.
    """

    m: int
    n: int
    k: int
    aligned: bool
    batch: int = 1
    layout: str = "nn"
    dtype: Dtype = "float32"
    out_dtype: Dtype = "float32"
    groups: str = ""
    precision: Precision = "ieee"
    scales: str = ""

    @classmethod
    def of(cls, problem: GemmProblem) -> ProblemClass:
        """The class that a problem belongs to; of ragged groups, that of any division."""
        if problem.ragged and problem.results:
            problem = problem.representative
        groups = "" if problem.groups is None else str(problem.groups.sizes_only())
        return cls(
            m=problem.m,
            n=problem.n,
            k=problem.k,
            aligned=problem.is_aligned(VECTOR_BYTES),
            batch=problem.batch,
            layout=problem.layout,
            dtype=problem.dtype,
            out_dtype=problem.result_dtype,
            groups=groups,
            precision=problem.precision,
            scales=str(problem.scales) if problem.scales.of_chunks else "",
        )

    @property
    def problem(self) -> GemmProblem:
        """A problem of the class: where no size tells that rows are unaligned, A's pitch does."""
        groups = None
        if self.groups:
            from gemmkit.groups import Groups

            groups = Groups.parse(self.groups)
        letters = [letter == "t" for letter in self.layout.ljust(3, "n")]
        transa, transb, transc = letters
        tight = GemmProblem(
            self.m,
            self.n,
            self.k,
            batch=self.batch,
            transa=transa,
            transb=transb,
            transc=transc,
            dtype=self.dtype,
            out_dtype=self.out_dtype,
            groups=groups,
            precision=self.precision,
            scales=Scales.parse(self.scales),
        )
        if self.aligned or not tight.is_aligned(VECTOR_BYTES):
            return tight
        if self.groups:
            return replace(tight, alignment=tight.item_bytes)
        return replace(tight, lda=tight.lda + 1, stride_a=0)

    @property
    def shape(self) -> str:
        """As `GemmProblem.shape`."""
        return shape_text(self.m, self.n, self.k, self.batch, self.groups)

    @property
    def flops(self) -> int:
        """Floating-point operations of all products."""
        if self.groups:
            return self.problem.flops
        return 2 * self.m * self.n * self.k * self.batch

    def __str__(self) -> str:
        words = [self.shape]
        if self.layout != "nn":
            words[0] += f" {layout_text(self.layout)}"
        types = types_text(self.dtype, self.out_dtype, self.precision, self.scales)
        if types != "fp32":
            words.append(types)
        if not self.aligned:
            words.append("unaligned rows")
        return ", ".join(words)


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One trial. Times are microseconds of one launch: median, 20th and 80th percentile.

    `gpu` is a `gpu_key`; `epilogue` is what was fused while it was timed. `source` is the digest of
    the kernel's code and `compiler` the version that compiled it (`freshness`). `final` marks times
    taken in turn with the other leaders, once the result was proven for random inputs too: the only
    ones that may be compared to a percent. `look_us` is what the brief look before it said where
    `time_us` was taken in turn: a GPU at its power limit runs slower the longer it works, so looks
    are compared with looks alone.
    `reason` says what is wrong where `outcome` is not "ok". `predicted_us` is the closed form's
    time (`estimate`), `measured_at` the time of the trial in seconds since 1970, `gemmkit` the
    version that made it.
    """

    gpu: str
    problem: ProblemClass
    kernel: str
    config: dict[str, int]
    outcome: Outcome
    source: str
    compiler: str
    epilogue: str = "none"
    time_us: float | None = None
    p20_us: float | None = None
    p80_us: float | None = None
    samples: int = 0
    final: bool = False
    look_us: float | None = None
    predicted_us: float | None = None
    reason: str = ""
    origin: Origin = "measured"
    measured_at: float = 0.0
    gemmkit: str = ""

    @property
    def brief_us(self) -> float | None:
        """The time of a brief look where there was one: what others' looks are compared with."""
        return self.time_us if self.look_us is None else self.look_us

    @property
    def tile_config(self) -> TileConfig:
        """The configuration as kernels take it.

        Raises:
            TypeError: it has a key that this version of gemmkit does not know.
        """
        return TileConfig(**self.config)

    @property
    def label(self) -> str:
        """Kernel and configuration as command lines take them: `gemm_tiled:BM=128,BN=256`."""
        told = ",".join(f"{key}={value}" for key, value in self.config.items())
        return f"{self.kernel}:{told}" if told else self.kernel

    @property
    def tflops(self) -> float | None:
        """TFLOP/s at the median time, or None where nothing was timed."""
        return self.problem.flops / self.time_us / 1e6 if self.time_us else None

    @property
    def identity(self) -> tuple[object, ...]:
        """What tells it from other trials: the same again replaces it."""
        config = tuple(sorted(self.config.items()))
        return (
            self.gpu,
            self.problem,
            self.epilogue,
            self.kernel,
            config,
            self.source,
            self.compiler,
        )


def gpu_key(spec: GpuSpec) -> str:
    """What a board is called in stores and tables: its name and SMs, such as `h100-132sm`."""
    return f"{spec.key}-{spec.sm_count}sm"
