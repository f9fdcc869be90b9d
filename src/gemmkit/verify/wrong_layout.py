"""Tests whether operands were read, or the result stored, in a layout other than the problem's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gemmkit.problem import GemmProblem
from gemmkit.verify.encoding import decode
from gemmkit.verify.mismatch import Explanation, Formula, Indices, Mismatch, Numbers, explains

Mask = NDArray[np.bool_]

# The fewest lines of an operand that must be read if the others are taken as zero.
LEAST_LINES = 2

_PAST_END = "reads past the end of its storage give zero"


def wrong_layout(mismatch: Mismatch) -> Explanation | None:
    """Operands are read, or the result is stored, with rows and columns exchanged."""
    p = mismatch.problem
    fits = [
        (name, clause, advice)
        for name, clause, advice, formula in _layouts(mismatch)
        if explains(mismatch, formula, 16)
    ]
    if not fits:
        return None
    name, clause, _ = fits[0]
    others = [each[1] for each in fits[1:] if p.m == p.n == p.k and each[0] != name]
    if others:
        clause += f" (here the same as: {'; '.join(dict.fromkeys(others))})"
    *most, last = dict.fromkeys(each[2] for each in fits if each[2]) or [""]
    advice = f"{', '.join(most)} or {last}" if most else last
    return Explanation(name, clause, advice and f"try --layout {advice}")


def _layouts(mismatch: Mismatch) -> Iterator[tuple[str, str, str, Formula]]:
    """Name, clause, advice and formula of each way to exchange rows and columns."""
    p = mismatch.problem
    m, n, k = mismatch.shape
    if not k:
        return
    reads = [*_reads(mismatch)]

    def of(a: Numbers, b: Numbers, *, turned: bool, ldc: int) -> Formula:
        def values(rows: Indices, columns: Indices) -> Numbers:
            if not turned:
                return mismatch.finished(mismatch.products(rows, columns, a, b), rows, columns)
            down, along, known = _stored(rows * p.ldc + columns, (m, n), ldc or m)
            product = mismatch.products(down, along, a, b)
            return np.where(known, mismatch.finished(product, rows, columns), np.nan)

        return values

    # Whether A and B are read, and C is stored, with rows and columns exchanged.
    ways = (
        ("C transposed", "(A·B)ᵀ", (False, False, True)),
        ("B transposed", "A·Bᵀ", (False, True, False)),
        ("A transposed", "Aᵀ·B", (True, False, False)),
        ("A, B and C transposed", "(Aᵀ·Bᵀ)ᵀ", (True, True, True)),
        ("A and B transposed", "Aᵀ·Bᵀ", (True, True, False)),
        ("B and C transposed", "(A·Bᵀ)ᵀ", (False, True, True)),
        ("A and C transposed", "(Aᵀ·B)ᵀ", (True, False, True)),
    )
    for name, product, turned in ways:
        verb = "stored" if turned == (False, False, True) else "taken"
        clause = f"C = {product}: {name.removesuffix(' transposed')} "
        clause += f"{'is' if sum(turned) == 1 else 'are'} {verb} with rows and columns exchanged"
        if all(turned) and p.layout == "nn":
            clause += ", as column-major matrices"
        for a_read, b_read, ldc, past in reads:
            a, b = a_read if turned[0] else mismatch.a, b_read if turned[1] else mismatch.b
            if a is None or b is None:
                continue
            zeros = past and f"; {_PAST_END}" * (turned[0] or turned[1])
            yield name, clause + zeros, _layout(p, *turned), of(a, b, turned=turned[2], ldc=ldc)
    if m == n == k:
        yield (
            "operands exchanged",
            "C = B·A: the operands are exchanged",
            "",
            of(mismatch.b, mismatch.a, turned=False, ldc=0),
        )


def _reads(mismatch: Mismatch) -> Iterator[tuple[Numbers | None, Numbers | None, int, str]]:
    """A and B as read with rows and columns exchanged, the leading dimension of C, and a remark.

    The leading dimension is either the length of a transposed line or the kernel's argument. With
    the argument, reads may go past the end of the storage; they are unknown, or zero.
    """
    p = mismatch.problem
    m, n, k = mismatch.shape
    a, b = (decode(each, p.dtype) for each in (mismatch.inputs.a, mismatch.inputs.b))
    for lda, ldb, ldc, past in ((0, 0, 0, np.nan), (p.lda, p.ldb, p.ldc, np.nan)):
        yield (
            _turned(a, m, k, lda, p.transa, past),
            _turned(b, k, n, ldb, p.transb, past),
            ldc,
            "",
        )
    a_turned = _turned(a, m, k, p.lda, p.transa, 0.0)
    b_turned = _turned(b, k, n, p.ldb, p.transb, 0.0)
    yield a_turned, b_turned, p.ldc, _PAST_END


def _stored(flat: Indices, shape: tuple[int, int], ldc: int) -> tuple[Indices, Indices, Mask]:
    """The row and column of the product stored at each offset of C, with columns `ldc` apart, and
    whether exactly one element is stored there."""
    m, n = shape
    along, down = np.divmod(flat, ldc)
    least, most = np.maximum(along - n + 1, 0), np.minimum(along, (m - 1 - down) // ldc)
    known = least == most
    down, along = down + ldc * least, along - least
    return np.where(known, down, 0), np.where(known, along, 0), known


def _turned(
    storage: Numbers, rows: int, columns: int, ld: int, transposed: bool, past: float
) -> Numbers | None:
    """A rows × columns matrix as read from its storage with rows and columns exchanged.

    `ld` is the leading dimension, 0 for contiguous lines; elements past the end are `past`. None if
    half of it or more is unknown or padding, or if it has fewer than `LEAST_LINES` lines: to read
    one line of A, and zeros, is to add one step of k.
    """
    count, length = (rows, columns) if transposed else (columns, rows)
    apart = ld or length
    inside = min(count, -(-storage.size // apart))
    if past == 0 and (inside < LEAST_LINES <= count):
        return None
    missing = max(0, (inside - 1) * apart + length - storage.size)
    longer = np.concatenate([storage.astype(float), np.full(missing, past)])
    steps = (longer.itemsize * apart, longer.itemsize)
    seen = np.lib.stride_tricks.as_strided(longer, (inside, length), steps)
    if inside < count:
        seen = np.concatenate([seen, np.full((count - inside, length), past)])
    turned: Numbers = seen if transposed else seen.T
    return None if 2 * np.count_nonzero(np.isnan(turned)) >= turned.size else turned


def _layout(problem: GemmProblem, a: bool, b: bool, c: bool) -> str:
    """The value of `--layout` in which the chosen matrices are transposed."""
    a, b, c = problem.transa != a, problem.transb != b, problem.transc != c
    if not c:
        return "NT"[a] + "NT"[b]
    # BLAS's letters are inverted if all matrices are column-major.
    letters = "TN"[a] + "TN"[b]
    return "col" if letters == "NN" else f"col-{letters}"
