"""How `split_operands` is launched: before `gemm_fp16x3`, which reads operands in two parts."""

from __future__ import annotations

from gemmkit.dtypes import FLOAT_BYTES
from gemmkit.gpu import WARP_SIZE, GpuSpec
from gemmkit.kernels import source_text
from gemmkit.kernels.operand_copies import (
    COPY_ALIGNMENT,
    OperandCopy,
    rounded_up,
    workspace_bytes,
)
from gemmkit.kernels.plan import LaunchPlan, Signature, SourceFile, ceil_div
from gemmkit.kernels.policy import STANDARD
from gemmkit.kernels.production.arguments import CUDA_LAYOUTS
from gemmkit.problem import GemmProblem

_NAME = "split_operands"
# Of split_operands.cu: neighbors along k whose parts lie together, and warps of a block.
GROUP, WARPS = 32, 8
# Parts of an element.
PARTS = 2
# Elements of a contiguous line that a warp has in registers, and of others that a block has; and
# the most blocks of a cluster.
HELD_ALONG, HELD_ACROSS, MOST_OF_CLUSTER = 1024, GROUP * WARPS, 8
# Blocks that an SM is given for each operand, each of which goes on to further lines.
BLOCKS_PER_SM = 8
MOST_BLOCKS_Y = 65_535


def parts_of(problem: GemmProblem) -> tuple[OperandCopy, ...]:
    """The parts of A and B in the workspace, behind the exponents of all lines."""
    length = PARTS * rounded_up(problem.k, GROUP)
    found: list[OperandCopy] = []
    end = exponents_of(problem)[1]
    for operand, lines, count in zip("AB", (problem.m, problem.n), _products(problem), strict=True):
        start = rounded_up(end, COPY_ALIGNMENT)
        found.append(OperandCopy(operand, start, lines, length, length, count, "float16"))
        end = found[-1].end
    return tuple(found)


def exponents_of(problem: GemmProblem) -> tuple[int, int]:
    """Where in the workspace those of B begin, and where they end, in bytes; A's come first."""
    products_a, products_b = _products(problem)
    start = FLOAT_BYTES * products_a * problem.m
    return start, start + FLOAT_BYTES * products_b * problem.n


def splitting(
    problem: GemmProblem, copies: tuple[OperandCopy, ...], gpu: GpuSpec
) -> LaunchPlan | None:
    """The launch that splits both operands into `copies`, in one grid; None where there are
    none."""
    if not copies:
        return None
    start_b = exponents_of(problem)[0]
    products = min(max(each.count for each in copies), MOST_BLOCKS_Y)
    all_along = not problem.transa and problem.transb
    sharing = _power_of_two(ceil_div(problem.k, HELD_ALONG), WARPS)
    cluster = _power_of_two(ceil_div(problem.k, HELD_ACROSS), MOST_OF_CLUSTER)
    cluster = 1 if all_along else cluster
    most = max(1, gpu.sm_count * BLOCKS_PER_SM // products)
    blocks: list[int] = []
    arguments: list[Signature] = []
    for each, along_k, exponents in zip(
        copies, (not problem.transa, problem.transb), (0, start_b), strict=True
    ):
        # Warps for each line, or a cluster for lines side by side.
        own = ceil_div(each.lines * sharing, WARPS)
        if not along_k:
            own = ceil_div(each.lines, WARP_SIZE) * cluster
        own = rounded_up(min(own, most), cluster)
        name = each.operand.lower()
        blocks.append(own)
        arguments.append(
            (
                *(each.operand, f"ld{name}", f"stride_{name}"),
                *(f"workspace + {each.offset}", f"workspace + {exponents}"),
                *map(str, (each.lines, each.count, own)),
            )
        )
    return LaunchPlan(
        kernel=_NAME,
        source=SourceFile(source_text(_NAME), f"{_NAME}.cu", options=(STANDARD,)),
        entry=f"{_NAME}<{CUDA_LAYOUTS[problem.layout]}, {cluster}>",
        grid=(sum(blocks), products, 1),
        block=(WARP_SIZE, WARPS, 1),
        signature=(*arguments[0], *arguments[1], "K", str(sharing)),
        cluster=(cluster, 1, 1),
        workspace_bytes=workspace_bytes(copies),
        purpose="as two parts of fp16",
    )


def split_bytes(problem: GemmProblem) -> int:
    """Bytes that splitting reads and writes, of lines that fit the registers of a cluster."""
    read = sum(
        count * lines * problem.k
        for count, lines in zip(_products(problem), (problem.m, problem.n), strict=True)
    )
    written = sum(each.elements for each in parts_of(problem))
    return FLOAT_BYTES * read + FLOAT_BYTES // PARTS * written


def _power_of_two(least: int, most: int) -> int:
    """The smallest that is at least so large, or the largest allowed."""
    return min(1 << (least - 1).bit_length(), most)


def _products(problem: GemmProblem) -> tuple[int, int]:
    """Matrices of A and of B: one that all products of a batch share is split once."""
    stride_a, stride_b, _ = problem.strides
    return problem.batch if stride_a else 1, problem.batch if stride_b else 1
