"""How the undefined bits of results follow from those of operands; arrays are (warps, 32)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gemmkit.emulator.isa.semantics.raw import Mask, Raw


def all_where(bad: Mask, bits: int) -> Raw:
    """All bits of a width in the chosen lanes, else none."""
    if bits == 1:
        return bad
    return np.where(bad, (1 << bits) - 1, 0).astype(f"u{bits // 8}")


def moved(
    undefined: Sequence[Raw], widths: Sequence[int], results: Sequence[int]
) -> list[Raw | None]:
    """The undefined bits of operands that are joined, split or passed on."""
    if len(undefined) == len(results):
        return list(undefined)
    joined = np.zeros(undefined[0].shape, np.uint64)
    for index, (bits, width) in enumerate(zip(undefined, widths, strict=True)):
        joined |= bits.astype(np.uint64) << np.uint64(index * width)
    if len(results) == 1:
        return [joined.astype(f"u{results[0] // 8}")]
    return [
        (joined >> np.uint64(index * width)).astype(f"u{width // 8}")
        for index, width in enumerate(results)
    ]


def whole(undefined: Sequence[Raw], results: Sequence[int], part: int) -> list[Raw | None]:
    """All bits, or all of a part, if any bit of an operand is undefined."""
    some: Mask = np.logical_or.reduce([bits != 0 for bits in undefined])
    if not part:
        return [all_where(some, width) for width in results]
    mask = np.uint32((1 << part) - 1)
    low = np.logical_or.reduce([bits & mask != 0 for bits in undefined])
    high = np.logical_or.reduce([bits >> np.uint32(part) != 0 for bits in undefined])
    found = np.where(low, mask, 0) | np.where(high, mask << np.uint32(part), 0)
    return [found.astype(np.uint32)]


def bitwise(
    compute: Callable[[Sequence[Raw | int]], Raw],
    values: Sequence[Raw | int],
    undefined: Sequence[Raw],
) -> Raw:
    """The bits that some choice of the undefined bits of the operands changes."""
    now = compute(values)
    found = np.zeros_like(now)
    which = [index for index, bits in enumerate(undefined) if bits.any()]
    for chosen in range(1, 1 << len(which)):
        other = list(values)
        for number, index in enumerate(which):
            if chosen >> number & 1:
                other[index] = values[index] ^ undefined[index]
        found = found | (now ^ compute(other))
    return found
