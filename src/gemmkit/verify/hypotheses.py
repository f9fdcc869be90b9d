"""What a wrong result may be instead: formulas that are tried on the wrong elements, one by one.

Each hypothesis is a function of a `Scene` that returns an `Explanation` if its formula gives every
wrong element, and None otherwise. `HYPOTHESES` lists them, the simplest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gemmkit.verify.exchanged import layouts
from gemmkit.verify.moved import moved_values
from gemmkit.verify.scene import Explanation, Formula, Numbers, Places, Scene, explains
from gemmkit.verify.sums import missing_terms

# Sides of tiles that kernels have.
TILES = (4, 8, 16, 32, 64)
# Steps of k by which the two operands may be out of step.
SHIFTS = (1, -1, 2, -2, 3, -3, 4, -4)


Hypothesis = Callable[[Scene], Explanation | None]


# So many wrong elements, all with a negative right value, are no accident.
SIGNS = 12


def zero(scene: Scene) -> Explanation | None:
    """Zeros were written."""
    if not scene.found.any() and np.count_nonzero(scene.right) == scene.right.size:
        return Explanation("zero", "C is zero")
    return None


def kept(scene: Scene) -> Explanation | None:
    """What C held before is still there."""
    if not scene.beta:
        return None
    before = scene.c[scene.rows, scene.columns]
    if not np.array_equal(scene.found, before):
        return None
    return Explanation(
        "not written", "C still holds what it held before, as where it is not written"
    )


def negated(scene: Scene) -> Explanation | None:
    """The sign of the whole result."""
    if not scene.convincing() or not scene.fits(-scene.right):
        return None
    if scene.right.size >= SIGNS and scene.right.max() < 0 and scene.right.size < scene.stored.size:
        return Explanation("magnitude", "C = |expected result|: negative results lack their sign")
    return Explanation("negated", "C = −(expected result)")


def scales(scene: Scene) -> Explanation | None:
    """α or β ignored, applied twice, or to the wrong term; bias and ReLU left out."""

    def formula(factors: dict[str, float | bool]) -> Formula:
        def values(rows: Places, columns: Places) -> Numbers:
            given: dict[str, float | bool] = dict(factors)
            product = scene.products(rows, columns)
            return scene.finished(product, rows, columns, **given)  # type: ignore[arg-type]

        return values

    for name, clause, factors in _factors(scene):
        if explains(scene, formula(factors), 16):
            return Explanation(name, clause)
    ratio = _product_ratio(scene)
    if ratio is not None and explains(scene, formula({"alpha": ratio * scene.alpha}), 16):
        return Explanation(
            "product scaled", f"the product A·B is multiplied by another {ratio:.6g}"
        )
    return None


def _product_ratio(scene: Scene) -> float | None:
    """How many times as large the product is as it must be, beside β·C as it is."""
    if not scene.beta or not scene.alpha or not scene.shape[2] or not scene.convincing(free=1):
        return None
    product = scene.alpha * scene.products(scene.rows[scene.sample], scene.columns[scene.sample])
    largest = int(np.argmax(np.abs(product)))
    more = scene.found[scene.sample[largest]] - scene.right[scene.sample[largest]]
    ratio = 1 + float(more / product[largest])
    return float(shortest(ratio, scene.tolerance / abs(float(product[largest]))))


def shortest(value: float, off: float) -> str:
    """A number in as few digits as leave it within `off` of what it is."""
    texts = (f"{value:.{digits}g}" for digits in range(1, 7))
    return next((text for text in texts if abs(float(text) - value) <= off), f"{value:.7g}")


def _factors(scene: Scene) -> Iterator[tuple[str, str, dict[str, float | bool]]]:
    """Other factors than the problem's: a name, a clause, and arguments of `Scene.finished`."""
    alpha, beta = scene.alpha, scene.beta
    if alpha != 1:
        yield "alpha ignored", "α is ignored: C is as with α = 1", {"alpha": 1.0}
        yield "alpha twice", "α is applied twice", {"alpha": alpha * alpha}
        yield "alpha negated", "α has the wrong sign", {"alpha": -alpha}
    if beta:
        yield "beta ignored", "β·C is left out: C is as with β = 0", {"beta": 0.0}
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
            clause = f"the product is scaled by another {beta:.6g}, as in C = β·(α·A·B + C)"
            yield "beta on the product", clause, {"alpha": alpha * beta}
    yield "product twice", "α·A·B is added twice", {"alpha": 2 * alpha}
    if scene.inputs.bias is not None:
        yield "bias ignored", "the bias is left out", {"bias": 0.0}
        yield "bias twice", "the bias is added twice", {"bias": 2.0}
    if scene.problem.epilogue.activation == "relu":
        yield "ReLU ignored", "the ReLU is left out", {"relu": False}


def late_bias(scene: Scene) -> Explanation | None:
    """The bias added after the ReLU, not before it."""
    bias = scene.inputs.bias_numbers
    if bias is None or scene.problem.epilogue.activation != "relu":
        return None

    def formula(rows: Places, columns: Places) -> Numbers:
        values = scene.finished(scene.products(rows, columns), rows, columns, bias=0.0)
        values += bias[columns]
        return values

    if not explains(scene, formula):
        return None
    return Explanation("bias after ReLU", "the bias is added after the ReLU, not before it")


def sums(scene: Scene) -> Explanation | None:
    """Steps of k left out, or added twice."""
    found = missing_terms(scene)
    return None if found is None else Explanation(*found)


def out_of_step(scene: Scene) -> Explanation | None:
    """A[row, p] multiplied by B[p + s, column]."""
    k = scene.shape[2]
    for shift in SHIFTS:
        if abs(shift) >= k:
            continue
        ahead, behind = (max(shift, 0), max(-shift, 0))
        a, b = scene.a[:, behind : k - ahead], scene.b[ahead : k - behind]

        def formula(rows: Places, columns: Places, a: Numbers = a, b: Numbers = b) -> Numbers:
            return scene.finished(scene.products(rows, columns, a, b), rows, columns)

        if explains(scene, formula, len(SHIFTS)):
            clause = f"A[row, p] is multiplied by B[p {shift:+d}, column] instead of B[p, column]"
            return Explanation("out of step", clause)
    return None


def not_advanced(scene: Scene) -> Explanation | None:
    """The first tile of A or B, along k, in place of all others."""
    k = scene.shape[2]
    for side in TILES:
        if side >= k:
            break
        first = np.arange(k) % side
        for name in ("A", "B"):
            a, b = (scene.a[:, first], scene.b) if name == "A" else (scene.a, scene.b[first])

            def formula(rows: Places, columns: Places, a: Numbers = a, b: Numbers = b) -> Numbers:
                return scene.finished(scene.products(rows, columns, a, b), rows, columns)

            if explains(scene, formula, 2 * len(TILES)):
                clause = f"the first {side} steps of {name} along k are used again for all others"
                return Explanation("operand not advanced", clause)
    return None


def operand_tiles(scene: Scene) -> Explanation | None:
    """Tiles of A or B that are transposed in shared memory."""
    for side in TILES:
        for name in ("A", "B"):
            whole = scene.a if name == "A" else scene.b
            turned = _tiles_turned(whole, side)
            a, b = (turned, scene.b) if name == "A" else (scene.a, turned)

            def formula(rows: Places, columns: Places, a: Numbers = a, b: Numbers = b) -> Numbers:
                return scene.finished(scene.products(rows, columns, a, b), rows, columns)

            if explains(scene, formula, 2 * len(TILES)):
                clause = f"each {side} × {side} tile of {name} is transposed before it is used"
                return Explanation("operand tile transposed", clause)
    return None


def _tiles_turned(values: Numbers, side: int) -> Numbers:
    """A matrix with each of its side × side tiles transposed; zeros stand past its edges."""
    rows, columns = (-(-extent // side) for extent in values.shape)
    padded = np.zeros((rows * side, columns * side))
    padded[: values.shape[0], : values.shape[1]] = values
    tiles = padded.reshape(rows, side, columns, side).transpose(0, 3, 2, 1)
    turned: Numbers = tiles.reshape(padded.shape)[: values.shape[0], : values.shape[1]]
    return turned


def factor(scene: Scene) -> Explanation | None:
    """A constant multiple of what is right."""
    largest = int(np.argmax(np.abs(scene.right)))
    if scene.right[largest] == 0:
        return None
    ratio = float(scene.found[largest] / scene.right[largest])
    off = scene.tolerance * max(1.0, abs(ratio)) + scene.tolerance / abs(scene.right[largest])
    fit = np.abs(scene.found - ratio * scene.right) <= 2 * off
    if not fit.all() or not scene.convincing(free=1):
        return None
    digits = shortest(ratio, scene.tolerance / abs(float(scene.right[largest])))
    return Explanation("constant factor", f"C = {digits} × (expected result)")


def offset(scene: Scene) -> Explanation | None:
    """A constant more or less than what is right."""
    difference = scene.found - scene.right
    middle = float((difference.max() + difference.min()) / 2)
    if not scene.convincing(free=1) or np.ptp(difference) > 2 * scene.tolerance:
        return None
    sign, digits = "−+"[middle > 0], shortest(abs(middle), scene.tolerance)
    return Explanation("constant offset", f"C = (expected result) {sign} {digits}")


def moved(scene: Scene) -> Explanation | None:
    """Right values at the wrong places."""
    found = moved_values(scene, scene.found)
    return None if found is None else Explanation(*found)


def constant(scene: Scene) -> Explanation | None:
    """One value everywhere."""
    if not scene.convincing(free=1) or np.ptp(scene.found) or not np.ptp(scene.right):
        return None
    return Explanation("one value", f"C is {scene.found[0]:.9g} throughout")


# Tried in this order; the first that fits is claimed.
HYPOTHESES: Sequence[Hypothesis] = (
    zero,
    kept,
    constant,
    negated,
    scales,
    late_bias,
    layouts,
    sums,
    factor,
    offset,
    moved,
    out_of_step,
    not_advanced,
    operand_tiles,
)
