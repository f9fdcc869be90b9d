"""How the kernels of `one_shot.cu` are launched: lines that ranks send each other, or add up."""

from __future__ import annotations

from gemmkit.dtypes import ITEM_BYTES, Dtype
from gemmkit.kernels import source_text
from gemmkit.kernels.plan import OFFSETS, LaunchPlan, SourceFile, ceil_div
from gemmkit.kernels.policy import CUDA_TYPES, STANDARD

_NAME = "one_shot"

# Of one_shot.cu: threads of a block, ranks that have flags, blocks.
THREADS, MOST_RANKS, MOST_BLOCKS = 512, 64, 64
# What lies before the lines in a mailbox, and bytes that a share takes in its table.
HEADER_BYTES = 4 * MOST_BLOCKS * (1 + 2 * MOST_RANKS)
SHARE_BYTES = 16

# Types of units that are only copied, by their size in bytes.
_UNITS = {16: "uint4", 8: "uint2", 4: "unsigned", 2: "unsigned short", 1: "unsigned char"}
_LARGEST = max(_UNITS)

# Types of sums that are added up.
ADDED: tuple[Dtype, ...] = ("float16", "bfloat16", "float32", "float64")


def unit_bytes(*multiples: int) -> int:
    """The largest unit of which all these numbers of bytes, and addresses, are multiples."""
    common = _LARGEST
    for each in multiples:
        common |= each
    return common & -common


def gathering(rank: int, ranks: int, unit: int, first: int, count: int, most: int) -> LaunchPlan:
    """The launch that brings this rank's lines (its A) to the mailboxes of all ranks, of which
    `workspace` is a table of addresses.

    Args:
        rank: this rank.
        ranks: all of them.
        unit: bytes that are copied at a time, of which all sizes here are multiples.
        first: bytes from the beginning of the gathered lines to this rank's.
        count: bytes of its lines.
        most: those of the rank that has most: all launch as many blocks.
    """
    return LaunchPlan(
        kernel="gather_lines",
        source=_source(),
        entry=f"gather_lines<{_UNITS[unit]}>",
        grid=(_blocks(most), 1, 1),
        block=(THREADS, 1, 1),
        signature=(*_ranks(rank, ranks), "A", str(first // unit), str(count // unit)),
    )


def adding(rank: int, ranks: int, dtype: Dtype, unit: int, most: int) -> LaunchPlan:
    """The launch that adds up the ranks' sums (each its A) of this rank's share, and writes them to
    C. `offsets` are a table of shares: for each rank where its units begin among those of the
    sums, and how many it has, in 64 bits.

    Args:
        rank: this rank.
        ranks: all of them.
        dtype: the type of sums and result.
        unit: bytes that are added at a time, of which all sizes are multiples.
        most: bytes of the largest share: all ranks launch as many blocks.
    """
    return LaunchPlan(
        kernel="add_lines",
        source=_source(),
        entry=f"add_lines<{CUDA_TYPES[dtype]}, {unit // ITEM_BYTES[dtype]}>",
        grid=(_blocks(most), 1, 1),
        block=(THREADS, 1, 1),
        signature=(*_ranks(rank, ranks), "A", OFFSETS, "C"),
    )


def _source() -> SourceFile:
    return SourceFile(source_text(_NAME), f"{_NAME}.cu", options=(STANDARD,))


def _ranks(rank: int, ranks: int) -> tuple[str, ...]:
    return "workspace", str(rank), str(ranks)


def _blocks(nbytes: int) -> int:
    """As many on all ranks, whatever units theirs can be copied in; and one at least, since a rank
    that has nothing to send waits for the others all the same."""
    return min(max(ceil_div(nbytes, THREADS * _LARGEST), 1), MOST_BLOCKS)
