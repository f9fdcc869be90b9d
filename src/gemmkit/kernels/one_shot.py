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
HEADER_BYTES = 4 * MOST_BLOCKS * (1 + 3 * MOST_RANKS)
SHARE_BYTES = 16
# Bytes that cross a link (340 GB/s) while ranks tell each other something.
_BYTES_OF_ROUND = 1 << 20

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


def in_two_steps(nbytes: int, ranks: int) -> bool:
    """Whether sums of so many bytes that all ranks are to have are added up in shares, and brought
    to all then: where that spares as many bytes as it takes a round more."""
    return _at_once(nbytes, ranks) - _in_shares(nbytes, ranks) > _BYTES_OF_ROUND


def sums_sent(nbytes: int, ranks: int) -> int:
    """Bytes that a rank sends for sums of so many bytes that all ranks are to have."""
    two = in_two_steps(nbytes, ranks)
    return _in_shares(nbytes, ranks) if two else _at_once(nbytes, ranks)


def _at_once(nbytes: int, ranks: int) -> int:
    return (ranks - 1) * nbytes


def _in_shares(nbytes: int, ranks: int) -> int:
    return 2 * (nbytes - nbytes // ranks)


def adding(
    rank: int, ranks: int, dtype: Dtype, unit: int, most: int, *, returned: bool = False
) -> LaunchPlan:
    """The launch that adds up the ranks' sums (each its A) of this rank's share, and writes them to
    C, which has that share or, if results are `returned`, those of all ranks. `offsets` are a table
    of shares: for each rank where its units begin among those of the sums, and how many it has, in
    64 bits.

    Args:
        rank: this rank.
        ranks: all of them.
        dtype: the type of sums and result.
        unit: bytes that are added at a time, of which all sizes are multiples.
        most: bytes of the largest share: all ranks launch as many blocks.
        returned: whether each rank brings its results to all others; the first share is the largest
            then.
    """
    count, to_all = unit // ITEM_BYTES[dtype], str(returned).lower()
    return LaunchPlan(
        kernel="add_lines",
        source=_source(),
        entry=f"add_lines<{CUDA_TYPES[dtype]}, {count}, {to_all}>",
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
