"""Moves, logic, shifts, bit fields and byte permutations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gemmkit.emulator.isa import mbarriers
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.semantics.raw import (
    UNSIGNED,
    Bits,
    Integers,
    Mask,
    Operation,
    integers,
    ones,
    raw,
)

_LOGIC: Mapping[str, Callable[..., Bits]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _move(_: Form, a: Bits) -> Bits:
    return a


def _select(_: Form, a: Bits, b: Bits, chosen: Mask) -> Bits:
    return np.where(chosen, a, b)


def _select_by_sign(form: Form, a: Bits, b: Bits, sign: Bits) -> Bits:
    """a where the third operand is at least zero, b where it is negative or NaN."""
    return np.where(sign.view(np.int32 if form["U"] == "s32" else np.float32) >= 0, a, b)


def _logic(form: Form, a: Bits, b: Bits) -> Bits:
    return _LOGIC[form["O"]](a, b)


def _not(_: Form, a: Bits) -> Bits:
    return np.invert(a)


def _logical_not(form: Form, a: Bits) -> Bits:
    return raw(a == 0, form.type.bits)


def _logic3(_: Form, a: Bits, b: Bits, c: Bits, truth: int) -> Bits:
    """Any function of three bits: bit 4 a + 2 b + c of `truth` is its value."""
    result = np.zeros_like(a & b & c)
    for row in range(8):
        if truth >> row & 1:
            result = result | (
                (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
            )
    return result


def _shift_left(form: Form, a: Bits, amount: Bits) -> Bits:
    width = form.type.bits
    shifted = a << raw(np.minimum(amount, np.uint32(width - 1)), width)
    return np.where(amount < width, shifted, UNSIGNED[width](0))


def _shift_right(form: Form, a: Bits, amount: Bits) -> Bits:
    of = form.type
    values = integers(a, of)
    shifted = raw(
        values >> np.minimum(amount, np.uint32(of.bits - 1)).astype(values.dtype), of.bits
    )
    return shifted if of.is_signed else np.where(amount < of.bits, shifted, UNSIGNED[of.bits](0))


def _funnel_shift(form: Form, a: Bits, b: Bits, amount: Bits) -> Bits:
    """32 bits of the 64 in b:a, shifted."""
    both = b.astype(np.uint64) << np.uint64(32) | a.astype(np.uint64)
    count = amount & np.uint32(31) if form["M"] == "wrap" else np.minimum(amount, np.uint32(32))
    count = count.astype(np.uint64)
    return raw(both << count >> np.uint64(32) if form["D"] == "l" else both >> count, 32)


def _field(amount: Bits, width: int) -> Bits:
    """The low 8 bits of a bit-field operand, as PTX reads positions and lengths."""
    return raw(amount & np.uint32(0xFF), width)


def _below(count: Bits, width: int) -> Bits:
    """A mask of the lowest `count` bits."""
    every = ones(width)
    short = np.minimum(count, UNSIGNED[width](width - 1))
    return np.where(count < width, (UNSIGNED[width](1) << short) - UNSIGNED[width](1), every)


def _extract_bits(form: Form, a: Bits, position: Bits, length: Bits) -> Bits:
    """`length` bits from `position` on; a signed form extends the field's last bit."""
    of = form.type
    start, count = _field(position, of.bits), _field(length, of.bits)
    last = UNSIGNED[of.bits](of.bits - 1)
    one = UNSIGNED[of.bits](1)
    inside = np.where(start <= last, a >> np.minimum(start, last), one - one)
    kept = _below(count, of.bits)
    field = inside & kept
    if not of.is_signed:
        return field
    top = np.minimum(start + np.maximum(count, one) - one, last)
    sign = (a >> top & one == one) & (count > 0)
    # The field ends at the top of the register, whatever its length.
    held = kept & np.where(start <= last, ones(of.bits) >> np.minimum(start, last), one - one)
    return np.where(sign, field | ~held, field)


def _insert_bits(form: Form, a: Bits, b: Bits, position: Bits, length: Bits) -> Bits:
    """b with `length` bits from `position` on replaced by the lowest bits of a."""
    width = form.type.bits
    start, count = _field(position, width), _field(length, width)
    last = UNSIGNED[width](width - 1)
    short = np.minimum(start, last)
    place = np.where(start <= last, _below(count, width) << short, UNSIGNED[width](0))
    return (b & ~place) | (a << short & place)


def _planes(a: Bits) -> Mask:
    """The bits of each element along a new last axis, lowest first."""
    width = a.dtype.itemsize * 8
    places = np.arange(width, dtype=a.dtype)
    planes: Mask = np.asarray(a)[..., None] >> places & a.dtype.type(1) == 1
    return planes


def _packed(planes: Mask, width: int) -> Bits:
    weights = UNSIGNED[width](1) << np.arange(width, dtype=UNSIGNED[width])
    united: Bits = np.bitwise_or.reduce(np.where(planes, weights, UNSIGNED[width](0)), axis=-1)
    return united


def _count_bits(form: Form, a: Bits) -> Bits:
    if form["O"] == "popc":
        return raw(_planes(a).sum(axis=-1), 32)
    return raw(form.type.bits - 1 - _highest(a), 32)


def _highest(a: Bits) -> Integers:
    """The number of the highest bit that is set, -1 where none is."""
    planes = _planes(a)
    top = planes.shape[-1] - 1 - np.argmax(planes[..., ::-1], axis=-1)
    return np.where(planes.any(axis=-1), top, -1)


def _reverse_bits(form: Form, a: Bits) -> Bits:
    return _packed(_planes(a)[..., ::-1], form.type.bits)


def _find_bit(form: Form, a: Bits) -> Bits:
    """The highest bit that differs from the sign; all ones if there is none."""
    of = form.type
    values = integers(a, of)
    found = _highest(np.where(values < 0, ~a, a))
    if form["M"] == "shiftamt":
        found = np.where(found < 0, -1, of.bits - 1 - found)
    return raw(found, 32)


def _find_nth_set(_: Form, mask: Bits, base: Bits, offset: Bits) -> Bits:
    """The |offset|-th set bit from bit `base` on, downward if the offset is negative; `base` itself
    for 0. All ones if there is none."""
    planes, count = _planes(mask).astype(bool), np.abs(offset.view(np.int32).astype(np.int64))
    places, start = np.arange(32), base.astype(np.int64)[..., None]
    down = (offset.view(np.int32) < 0)[..., None]
    behind = np.where(down, places <= start, places >= start) & (start < 32)
    chosen = planes & np.where(count[..., None] == 0, places == start, behind)
    seen = np.where(down, chosen[..., ::-1].cumsum(axis=-1)[..., ::-1], chosen.cumsum(axis=-1))
    hit = chosen & (seen == np.maximum(count, 1)[..., None])
    return raw(np.where(hit.any(axis=-1), hit.argmax(axis=-1), -1), 32)


# For each mode of prmt and each value of its two selector bits: the source bytes, lowest first.
_BYTE_ORDERS: Mapping[str, tuple[tuple[int, int, int, int], ...]] = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}


def _permute_bytes(form: Form, a: Bits, b: Bits, selector: Bits) -> Bits:
    """Four of the eight bytes in b:a; in the generic mode bit 3 of a selector spreads the sign."""
    both = b.astype(np.uint64) << np.uint64(32) | a.astype(np.uint64)
    result = np.zeros_like(both)
    for index in range(4):
        if form["M"]:
            order = np.array([row[index] for row in _BYTE_ORDERS[form["M"]]], np.uint64)
            byte = both >> (np.uint64(8) * order[selector & np.uint32(3)])
        else:
            nibble = (selector >> np.uint32(4 * index)).astype(np.uint64)
            byte = both >> (np.uint64(8) * (nibble & np.uint64(7)))
            spread = nibble & np.uint64(8) != 0
            sign = np.where(byte & np.uint64(0x80) != 0, np.uint64(0xFF), np.uint64(0))
            byte = np.where(spread, sign, byte)
        result = result | (byte & np.uint64(0xFF)) << np.uint64(8 * index)
    return raw(result, 32)


def _pending_count(_: Form, token: Bits) -> Bits:
    """The pending arrivals in the state token of an mbarrier."""
    return raw(mbarriers.pending_count(token), 32)


OPERATIONS: Mapping[str, Operation] = {
    "mbarrier_pending_count": _pending_count,
    "move": _move,
    "select": _select,
    "select_by_sign": _select_by_sign,
    "permute_bytes": _permute_bytes,
    "logic": _logic,
    "not": _not,
    "logical_not": _logical_not,
    "logic3": _logic3,
    "shift_left": _shift_left,
    "shift_right": _shift_right,
    "funnel_shift": _funnel_shift,
    "extract_bits": _extract_bits,
    "insert_bits": _insert_bits,
    "count_bits": _count_bits,
    "reverse_bits": _reverse_bits,
    "find_bit": _find_bit,
    "find_nth_set": _find_nth_set,
}
