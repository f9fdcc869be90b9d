"""What a wrong result may be instead: formulas that are tried on the wrong elements, one by one.

Each hypothesis is a function of a `Scene` that returns an `Explanation` if its formula gives every
wrong element, and None otherwise. `HYPOTHESES` lists them, the simplest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gemmkit.problem import GemmProblem
from gemmkit.verify.encoding import decode
from gemmkit.verify.moved import moved_values
from gemmkit.verify.scene import Numbers, Places, Scene
from gemmkit.verify.sums import missing_terms

# Sides of tiles that kernels have.
TILES = (4, 8, 16, 32, 64)
# Steps of k by which the two operands may be out of step.
SHIFTS = (1, -1, 2, -2, 3, -3, 4, -4)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A hypothesis that fits: its name, a clause about C, and what to try, if there is something.

    The clause goes on from "In these elements".
    """

    name: str
    clause: str
    advice: str = ""


Formula = Callable[[Places, Places], Numbers]
Hypothesis = Callable[[Scene], Explanation | None]


def explains(scene: Scene, formula: Formula, tried: float = 1.0) -> bool:
    """Whether a formula gives all wrong elements, and does so by no accident."""
    if not scene.convincing(tried):
        return False
    chosen = scene.sample
    if not scene.fits(formula(scene.rows[chosen], scene.columns[chosen]), chosen):
        return False
    return all(scene.fits(formula(rows, columns), part) for rows, columns, part in scene.parts())


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


def layouts(scene: Scene) -> Explanation | None:
    """Operands read, or a result stored, with rows and columns exchanged."""
    p = scene.problem
    fits = [
        (name, clause, advice)
        for name, clause, advice, formula in _layouts(scene)
        if explains(scene, formula, 16)
    ]
    if not fits:
        return None
    name, clause, _ = fits[0]
    others = [each[1] for each in fits[1:] if p.m == p.n == p.k]
    if others:
        clause += f" (here the same as: {'; '.join(dict.fromkeys(others))})"
    *most, last = dict.fromkeys(each[2] for each in fits if each[2]) or [""]
    advice = f"{', '.join(most)} or {last}" if most else last
    return Explanation(name, clause, advice and f"try --layout {advice}")


def _layouts(scene: Scene) -> Iterator[tuple[str, str, str, Formula]]:
    """Name, clause, advice and formula of each way to exchange rows and columns."""
    p = scene.problem
    m, n, k = scene.shape
    if not k:
        return
    all_a, all_b = (decode(each, p.dtype) for each in (scene.inputs.a, scene.inputs.b))
    a_turned = [_turned(all_a, m, k, ld, p.transa) for ld in (0, p.lda)]
    b_turned = [_turned(all_b, k, n, ld, p.transb) for ld in (0, p.ldb)]

    def of(a: Numbers, b: Numbers, *, turned: bool, ldc: int) -> Formula:
        def values(rows: Places, columns: Places) -> Numbers:
            if not turned:
                return scene.finished(scene.products(rows, columns, a, b), rows, columns)
            along, down = np.divmod(rows * p.ldc + columns, ldc or m)
            inside = (along < n) & (down < m)
            product = scene.products(np.where(inside, down, 0), np.where(inside, along, 0), a, b)
            found = scene.finished(product, rows, columns)
            return np.where(inside, found, np.nan)

        return values

    # Which of A and B are read, and whether C is stored, with rows and columns exchanged.
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
        # Turned lines lie as far apart as they are long, or as the argument says.
        for a_read, b_read, ldc in zip(a_turned, b_turned, (0, p.ldc), strict=True):
            a, b = a_read if turned[0] else scene.a, b_read if turned[1] else scene.b
            if a is not None and b is not None:
                yield name, clause, _layout(p, *turned), of(a, b, turned=turned[2], ldc=ldc)
    if m == n == k:
        yield (
            "operands exchanged",
            "C = B·A: the operands are exchanged",
            "",
            of(scene.b, scene.a, turned=False, ldc=0),
        )


def _turned(storage: Numbers, rows: int, columns: int, ld: int, transposed: bool) -> Numbers | None:
    """A rows × columns matrix as read from its storage with rows and columns exchanged.

    Lines of the storage are `ld` apart, tight where that is 0. What lies past its end is NaN; None
    where that, or padding, is half of it or more.
    """
    count, length = (rows, columns) if transposed else (columns, rows)
    apart = ld or length
    missing = max(0, (count - 1) * apart + length - storage.size)
    if missing > storage.size:
        return None
    longer = np.concatenate([storage.astype(float), np.full(missing, np.nan)])
    steps = (longer.itemsize * apart, longer.itemsize)
    seen = np.lib.stride_tricks.as_strided(longer, (count, length), steps)
    turned: Numbers = seen if transposed else seen.T
    return None if 2 * np.count_nonzero(np.isnan(turned)) >= turned.size else turned


def _layout(problem: GemmProblem, a: bool, b: bool, c: bool) -> str:
    """The layout, as `--layout` names it, in which some matrices lie the other way round."""
    a, b, c = problem.transa != a, problem.transb != b, problem.transc != c
    if not c:
        return "NT"[a] + "NT"[b]
    # BLAS's letters mean the other way round where all matrices are column-major.
    letters = "TN"[a] + "TN"[b]
    return "col" if letters == "NN" else f"col-{letters}"


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
