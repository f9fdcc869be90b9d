"""How `split_operands` is launched: before `gemm_fp16x3`, which reads operands in two parts."""

from __future__ import annotations

from typing import NamedTuple

from gemmkit.dtypes import FLOAT_BYTES
from gemmkit.gpu import WARP_SIZE, GpuSpec
from gemmkit.kernels import source_text
from gemmkit.kernels.operand_copies import (
    COPY_ALIGNMENT,
    WORKSPACE,
    OperandCopy,
    memory_of,
    rounded_up,
    workspace_bytes,
)
from gemmkit.kernels.plan import LaunchPlan, Signature, SourceFile, ceil_div
from gemmkit.kernels.policy import STANDARD
from gemmkit.kernels.production.arguments import CUDA_LAYOUTS
from gemmkit.problem import GemmProblem

_NAME = "split_operands"
# Of split_lines.cuh: neighbors along k whose parts lie together, and warps of a block.
GROUP, WARPS = 32, 8
# Parts of an element.
PARTS = 2
# Elements of a contiguous line that a warp has in registers, and of others that a block has; and
# the most blocks of a cluster.
HELD_ALONG, HELD_ACROSS, MOST_OF_CLUSTER = 1024, GROUP * WARPS, 8
# The speed at which lines that are not contiguous are split, relative to that of a copy: for 201 MB
# of them an H100 took 1.9 times as long as for contiguous ones.
ACROSS = 0.53
# Blocks that an SM is given for each operand, each of which goes on to further lines.
BLOCKS_PER_SM = 8
MOST_BLOCKS_Y = 65_535
# Exponents of a prepared operand that a thread copies.
CARRIED = 4
# The arguments of an operand that a launch leaves alone.
_NO_OPERAND: Signature = ("0",) * 8


def parts_of(problem: GemmProblem) -> tuple[OperandCopy, ...]:
    """The parts of A and B, each behind exponents: in the workspace behind those of all lines, of
    a prepared operand behind its own."""
    length = PARTS * rounded_up(problem.k, GROUP)
    found: list[OperandCopy] = []
    end = exponents_of(problem)[1]
    for operand, lines, count in zip("AB", (problem.m, problem.n), _products(problem), strict=True):
        memory = memory_of(problem, operand)
        first = end if memory == WORKSPACE else FLOAT_BYTES * count * lines
        start = rounded_up(first, COPY_ALIGNMENT)
        found.append(
            OperandCopy(operand, start, lines, length, length, count, "float16", memory=memory)
        )
        if memory == WORKSPACE:
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
    """The launch that leaves all exponents in the workspace, in one grid; None where there are no
    `copies`.

    It splits both operands, but for those that are prepared: of these, exponents are there already.
    """
    starts = (0, exponents_of(problem)[0])
    slots = tuple(
        _Carried(each, f"{WORKSPACE} + {start}")
        if each.is_prepared
        else _Split(each, f"{WORKSPACE} + {start}")
        for each, start in zip(copies, starts, strict=False)
    )
    return _launch(problem, slots, gpu, max(workspace_bytes(copies), exponents_of(problem)[1]))


def preparing(
    problem: GemmProblem, copies: tuple[OperandCopy, ...], gpu: GpuSpec
) -> LaunchPlan | None:
    """The launch that splits prepared operands into `copies`, behind their exponents; None where
    there are none."""
    return _launch(problem, tuple(_Split(each, f"{each.memory} + 0") for each in copies), gpu)


class _Split(NamedTuple):
    """An operand that is split into a copy, and where its exponents go."""

    copy: OperandCopy
    exponents: str


class _Carried(NamedTuple):
    """An operand that has been split, whose exponents are copied to a place."""

    copy: OperandCopy
    exponents: str


def _launch(
    problem: GemmProblem, slots: tuple[_Split | _Carried, ...], gpu: GpuSpec, scratch: int = 0
) -> LaunchPlan | None:
    if not slots:
        return None
    along_k = {"A": not problem.transa, "B": problem.transb}
    split = [each.copy for each in slots if isinstance(each, _Split)]
    products = min(max((each.count for each in split), default=1), MOST_BLOCKS_Y)
    sharing = warps_along(problem.k)
    cluster = 1 if all(along_k[each.operand] for each in split) else blocks_across(problem.k)
    most = max(1, gpu.sm_count * BLOCKS_PER_SM // products)
    blocks = 0
    arguments = dict.fromkeys("AB", _NO_OPERAND)
    for each in slots:
        copy, exponents = each
        name = copy.operand.lower()
        if isinstance(each, _Carried):
            own = ceil_div(copy.count * copy.lines, CARRIED * WARP_SIZE * WARPS)
            source: Signature = (copy.memory, "0", "0", "0")
        else:
            # Warps for each line, or a cluster for lines side by side.
            own = ceil_div(copy.lines * sharing, WARPS)
            if not along_k[copy.operand]:
                own = ceil_div(copy.lines, WARP_SIZE) * cluster
            source = (copy.operand, f"ld{name}", f"stride_{name}", copy.address)
        own = rounded_up(min(own, most), cluster)
        blocks += own
        arguments[copy.operand] = (*source, exponents, *map(str, (copy.lines, copy.count, own)))
    return LaunchPlan(
        kernel=_NAME,
        source=SourceFile(source_text(_NAME), f"{_NAME}.cu", options=(STANDARD,)),
        entry=f"{_NAME}<{CUDA_LAYOUTS[problem.layout]}, {cluster}>",
        grid=(blocks, products, 1),
        block=(WARP_SIZE, WARPS, 1),
        signature=(*arguments["A"], *arguments["B"], "K", str(sharing)),
        cluster=(cluster, 1, 1),
        workspace_bytes=scratch,
        purpose="as two parts of fp16",
    )


def warps_along(k: int) -> int:
    """Warps that share a line whose elements are contiguous."""
    return _power_of_two(ceil_div(k, HELD_ALONG), WARPS)


def blocks_across(k: int) -> int:
    """Blocks of a cluster that share lines that are not."""
    return _power_of_two(ceil_div(k, HELD_ACROSS), MOST_OF_CLUSTER)


def split_bytes(problem: GemmProblem) -> int:
    """Bytes that splitting reads and writes, of lines that fit the registers of a cluster; of
    prepared operands, those of their exponents."""
    return sum(_bytes_of(problem).values())


def split_share(problem: GemmProblem) -> float:
    """The share of a copy's speed at which it does."""
    moved = _bytes_of(problem)
    along_k = {"A": not problem.transa, "B": problem.transb}
    across = sum(size for name, size in moved.items() if not along_k[name])
    return share_of_copy(along=sum(moved.values()) - across, across=across)


def share_of_copy(*, along: int, across: int) -> float:
    """The share of a copy's speed at which so many bytes of lines are split, which are contiguous
    or not."""
    slowed = along + across / ACROSS
    return (along + across) / slowed if slowed else 1.0


def _bytes_of(problem: GemmProblem) -> dict[str, int]:
    """The bytes of each operand."""
    found = {}
    for each in parts_of(problem):
        lines = each.count * each.lines
        if each.is_prepared:
            found[each.operand] = 2 * FLOAT_BYTES * lines
        else:
            read, written = FLOAT_BYTES * lines * problem.k, FLOAT_BYTES // PARTS * each.elements
            found[each.operand] = read + written
    return found


def _power_of_two(least: int, most: int) -> int:
    """The smallest that is at least so large, or the largest allowed."""
    return min(1 << (least - 1).bit_length(), most)


def _products(problem: GemmProblem) -> tuple[int, int]:
    """Matrices of A and of B: one that all products of a batch share is split once."""
    stride_a, stride_b, _ = problem.strides
    return problem.batch if stride_a else 1, problem.batch if stride_b else 1
