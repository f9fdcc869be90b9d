"""How `round_results` is launched: after products that were accumulated in fp32 over launches."""

from __future__ import annotations

from gemmkit.dtypes import Dtype
from gemmkit.kernels import source_text
from gemmkit.kernels.plan import LaunchPlan, SourceFile, ceil_div
from gemmkit.kernels.policy import STANDARD

_NAME = "round_results"
# Of round_results.cu: threads of a block, and elements of each at a time.
THREADS, PER_THREAD = 256, 4
MOST_BLOCKS_Y = 65_535

_ELEMENTS: dict[Dtype, str] = {"float16": "Half", "bfloat16": "BFloat16"}


def rounding(rows: int, columns: int, lda: int, ldc: int, dtype: Dtype) -> LaunchPlan:
    """The launch that rounds fp32 results (its A) to a type of 16 bits (its C).

    Rows are `lda` and `ldc` elements apart, and begin at multiples of 16 bytes.
    """
    return LaunchPlan(
        kernel=_NAME,
        source=SourceFile(source_text(_NAME), f"{_NAME}.cu", options=(STANDARD,)),
        entry=f"{_NAME}<{_ELEMENTS[dtype]}>",
        grid=(ceil_div(columns, THREADS * PER_THREAD), min(rows, MOST_BLOCKS_Y), 1),
        block=(THREADS, 1, 1),
        signature=("A", str(lda), "C", str(ldc), str(rows), str(columns)),
    )
