"""Hypotheses about a wrong result: formulas that are compared with the wrong elements in turn.

Each hypothesis is a function of a `Mismatch` that returns an `Explanation` if its formula gives
every wrong element, and None otherwise. `HYPOTHESES` lists them, the simplest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gemmkit.dtypes import Dtype
from gemmkit.verify.encoding import decode, encode
from gemmkit.verify.mismatch import Explanation, Formula, Indices, Mismatch, Numbers, explains
from gemmkit.verify.misplaced import misplaced_values
from gemmkit.verify.missing_terms import missing_terms
from gemmkit.verify.wrong_layout import wrong_layout

# Tile sizes that kernels use.
TILES = (4, 8, 16, 32, 64)
# Offsets along k between the two operands that are tried.
SHIFTS = (1, -1, 2, -2, 3, -3, 4, -4)


Hypothesis = Callable[[Mismatch], Explanation | None]


# Types to which α and β may have been converted on their way.
NARROWER: tuple[Dtype, ...] = ("float32", "float16", "bfloat16")

# This many wrong elements, all with a negative expected value, are not a coincidence.
SIGNS = 12


def zero(mismatch: Mismatch) -> Explanation | None:
    """Zeros are stored."""
    if not mismatch.found.any() and np.count_nonzero(mismatch.right) == mismatch.right.size:
        return Explanation("zero", "C is zero")
    return None


def kept(mismatch: Mismatch) -> Explanation | None:
    """The previous contents of C are still there."""
    if not mismatch.beta:
        return None
    before = mismatch.c[mismatch.rows, mismatch.columns]
    if not np.array_equal(mismatch.found, before):
        return None
    return Explanation(
        "not written", "C still holds its previous contents, as when it is not written"
    )


def negated(mismatch: Mismatch) -> Explanation | None:
    """The result has the wrong sign, or none."""
    if not mismatch.convincing() or not mismatch.fits(-mismatch.right):
        return None
    if (
        mismatch.right.size >= SIGNS
        and mismatch.right.max() < 0
        and mismatch.right.size < mismatch.stored.size
    ):
        return Explanation("magnitude", "C = |expected result|: negative results lack their sign")
    return Explanation("negated", "C = −(expected result)")


def scales(mismatch: Mismatch) -> Explanation | None:
    """α or β is ignored, applied twice or to the wrong term; bias or ReLU is left out."""

    def formula(factors: dict[str, float | bool]) -> Formula:
        def values(rows: Indices, columns: Indices) -> Numbers:
            given: dict[str, float | bool] = dict(factors)
            product = mismatch.products(rows, columns)
            return mismatch.finished(product, rows, columns, **given)  # type: ignore[arg-type]

        return values

    for name, clause, factors in _factors(mismatch):
        if explains(mismatch, formula(factors), 16):
            return Explanation(name, clause)
    ratio = _product_ratio(mismatch)
    if ratio is not None and explains(mismatch, formula({"alpha": ratio * mismatch.alpha}), 16):
        return Explanation(
            "product scaled", f"the product A·B is multiplied by a further factor of {ratio:.6g}"
        )
    return None


def _product_ratio(mismatch: Mismatch) -> float | None:
    """The factor by which the product is too large, with β·C as expected."""
    if (
        not mismatch.beta
        or not mismatch.alpha
        or not mismatch.shape[2]
        or not mismatch.convincing(free=1)
    ):
        return None
    product = mismatch.alpha * mismatch.products(
        mismatch.rows[mismatch.sample], mismatch.columns[mismatch.sample]
    )
    largest = int(np.argmax(np.abs(product)))
    more = mismatch.found[mismatch.sample[largest]] - mismatch.right[mismatch.sample[largest]]
    ratio = 1 + float(more / product[largest])
    return float(shortest(ratio, mismatch.tolerance / abs(float(product[largest]))))


def shortest(value: float, off: float) -> str:
    """A number in the fewest digits that are within `off` of it."""
    texts = (f"{value:.{digits}g}" for digits in range(1, 7))
    return next((text for text in texts if abs(float(text) - value) <= off), f"{value:.7g}")


def _factors(mismatch: Mismatch) -> Iterator[tuple[str, str, dict[str, float | bool]]]:
    """Wrong factors: a name, a clause, and the arguments of `Mismatch.finished`."""
    alpha, beta = mismatch.alpha, mismatch.beta
    for dtype in NARROWER:
        given = {"alpha": _rounded(alpha, dtype), "beta": _rounded(beta, dtype)}
        for names in (("alpha", "beta"), ("alpha",), ("beta",)):
            changed = {name: value for name, value in given.items() if name in names}
            if all(value != getattr(mismatch, name) for name, value in changed.items()):
                shown = " and ".join("αβ"[name == "beta"] for name in names)
                yield (
                    "scales rounded",
                    f"C is what {shown} rounded to {dtype} would give",
                    {**changed},
                )
    if alpha != 1:
        yield "alpha ignored", "α is ignored: C is what α = 1 would give", {"alpha": 1.0}
        if alpha * alpha != alpha:
            yield "alpha twice", "α is applied twice", {"alpha": alpha * alpha}
        yield "alpha negated", "α has the wrong sign", {"alpha": -alpha}
    if beta:
        yield "beta ignored", "β·C is left out: C is what β = 0 would give", {"beta": 0.0}
        if beta != 1:
            yield "beta twice", "β is applied twice", {"beta": beta * beta}
        yield "C subtracted", "β·C is subtracted, not added", {"beta": -beta}
        yield "product left out", "C = β·C: the product A·B is left out", {"alpha": 0.0}
        clause = "the previous contents of C are added to α·A·B + β·C"
        yield "previous contents added", clause, {"beta": beta + 1}
        if alpha != 1:
            clause = "α and β are ignored: C = A·B"
            yield "alpha and beta ignored", clause, {"alpha": 1.0, "beta": 0.0}
        if alpha != 1 and beta != 1:
            clause = "α and β are ignored: the result is A·B + C"
            yield "alpha and beta ignored", clause, {"alpha": 1.0, "beta": 1.0}
        if beta != 1:
            clause = "β is ignored: the previous contents of C are added as they are"
            yield "beta ignored", clause, {"beta": 1.0}
        yield "C added twice", "β·C is added twice", {"beta": 2 * beta}
        if alpha != 1:
            clause = "α is applied to β·C, too: C = α·(A·B + β·C)"
            yield "alpha on C", clause, {"beta": alpha * beta}
        if alpha != beta:
            swapped = {"alpha": beta, "beta": alpha}
            yield "alpha and beta exchanged", "α and β are exchanged", swapped
            clause = f"the product is multiplied by a further factor of {beta:.6g}"
            clause += ", as in C = β·(α·A·B + C)"
            yield "beta on the product", clause, {"alpha": alpha * beta}
    yield "product twice", "α·A·B is added twice", {"alpha": 2 * alpha}
    if mismatch.inputs.bias is not None:
        yield "bias ignored", "the bias is left out", {"bias": 0.0}
        yield "bias twice", "the bias is added twice", {"bias": 2.0}
    if mismatch.problem.epilogue.activation == "relu":
        yield "ReLU ignored", "the ReLU is left out", {"relu": False}


def _rounded(value: float, dtype: Dtype) -> float:
    """A scale rounded to a type."""
    return float(decode(encode(np.array([value]), dtype), dtype)[0])


def late_bias(mismatch: Mismatch) -> Explanation | None:
    """The bias is added after the ReLU, not before it."""
    bias = mismatch.inputs.bias_numbers
    if bias is None or mismatch.problem.epilogue.activation != "relu":
        return None

    def formula(rows: Indices, columns: Indices) -> Numbers:
        values = mismatch.finished(mismatch.products(rows, columns), rows, columns, bias=0.0)
        values += bias[columns]
        return values

    if not explains(mismatch, formula):
        return None
    return Explanation("bias after ReLU", "the bias is added after the ReLU, not before it")


def wrong_terms(mismatch: Mismatch) -> Explanation | None:
    """Steps of k are left out or added twice."""
    found = missing_terms(mismatch)
    return None if found is None else Explanation(*found)


def out_of_step(mismatch: Mismatch) -> Explanation | None:
    """A[row, p] is multiplied by B[p + s, column]."""
    k = mismatch.shape[2]
    for shift in SHIFTS:
        if abs(shift) >= k:
            continue
        of_b, of_a = (max(shift, 0), max(-shift, 0))
        a, b = mismatch.a[:, of_a : k - of_b], mismatch.b[of_b : k - of_a]

        def formula(rows: Indices, columns: Indices, a: Numbers = a, b: Numbers = b) -> Numbers:
            return mismatch.finished(mismatch.products(rows, columns, a, b), rows, columns)

        if explains(mismatch, formula, len(SHIFTS)):
            clause = f"A[row, p] is multiplied by B[p {shift:+d}, column] instead of B[p, column]"
            return Explanation("out of step", clause)
    return None


def not_advanced(mismatch: Mismatch) -> Explanation | None:
    """The first tile of A or B along k is used in place of all others."""
    k = mismatch.shape[2]
    for side in TILES:
        if side >= k:
            break
        first = np.arange(k) % side
        for name in ("A", "B"):
            a, b = (
                (mismatch.a[:, first], mismatch.b)
                if name == "A"
                else (mismatch.a, mismatch.b[first])
            )

            def formula(rows: Indices, columns: Indices, a: Numbers = a, b: Numbers = b) -> Numbers:
                return mismatch.finished(mismatch.products(rows, columns, a, b), rows, columns)

            if explains(mismatch, formula, 2 * len(TILES)):
                clause = f"the first {side} steps of {name} along k are used again for all others"
                return Explanation("operand not advanced", clause)
    return None


def operand_tiles(mismatch: Mismatch) -> Explanation | None:
    """Tiles of A or B are transposed in shared memory."""
    for side in TILES:
        for name in ("A", "B"):
            whole = mismatch.a if name == "A" else mismatch.b
            transposed = _tiles_transposed(whole, side)
            a, b = (transposed, mismatch.b) if name == "A" else (mismatch.a, transposed)

            def formula(rows: Indices, columns: Indices, a: Numbers = a, b: Numbers = b) -> Numbers:
                return mismatch.finished(mismatch.products(rows, columns, a, b), rows, columns)

            if explains(mismatch, formula, 2 * len(TILES)):
                clause = f"each {side} × {side} tile of {name} is transposed before it is used"
                return Explanation("operand tile transposed", clause)
    return None


def _tiles_transposed(values: Numbers, side: int) -> Numbers:
    """A matrix with each of its side × side tiles transposed; it is padded with zeros."""
    rows, columns = (-(-extent // side) for extent in values.shape)
    padded = np.zeros((rows * side, columns * side))
    padded[: values.shape[0], : values.shape[1]] = values
    tiles = padded.reshape(rows, side, columns, side).transpose(0, 3, 2, 1)
    transposed: Numbers = tiles.reshape(padded.shape)[: values.shape[0], : values.shape[1]]
    return transposed


def factor(mismatch: Mismatch) -> Explanation | None:
    """A constant multiple of the expected result."""
    largest = int(np.argmax(np.abs(mismatch.right)))
    if mismatch.right[largest] == 0:
        return None
    ratio = float(mismatch.found[largest] / mismatch.right[largest])
    off = mismatch.tolerance * max(1.0, abs(ratio)) + mismatch.tolerance / abs(
        mismatch.right[largest]
    )
    fit = np.abs(mismatch.found - ratio * mismatch.right) <= 2 * off
    if not fit.all() or not mismatch.convincing(free=1):
        return None
    digits = shortest(ratio, mismatch.tolerance / abs(float(mismatch.right[largest])))
    return Explanation("constant factor", f"C = {digits} × (expected result)")


def offset(mismatch: Mismatch) -> Explanation | None:
    """The expected result plus a constant."""
    difference = mismatch.found - mismatch.right
    middle = float((difference.max() + difference.min()) / 2)
    if not mismatch.convincing(free=1) or np.ptp(difference) > 2 * mismatch.tolerance:
        return None
    sign, digits = "−+"[middle > 0], shortest(abs(middle), mismatch.tolerance)
    return Explanation("constant offset", f"C = (expected result) {sign} {digits}")


def misplaced(mismatch: Mismatch) -> Explanation | None:
    """Expected values at the wrong positions."""
    found = misplaced_values(mismatch, mismatch.found)
    return None if found is None else Explanation(*found)


def constant(mismatch: Mismatch) -> Explanation | None:
    """One value everywhere."""
    if not mismatch.convincing(free=1) or np.ptp(mismatch.found) or not np.ptp(mismatch.right):
        return None
    return Explanation("one value", f"C is {mismatch.found[0]:.9g} throughout")


# Tried in this order; the first that fits is reported.
HYPOTHESES: Sequence[Hypothesis] = (
    zero,
    kept,
    constant,
    negated,
    scales,
    late_bias,
    wrong_layout,
    wrong_terms,
    factor,
    offset,
    misplaced,
    out_of_step,
    not_advanced,
    operand_tiles,
)
