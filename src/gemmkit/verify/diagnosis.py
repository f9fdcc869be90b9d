"""What a wrong result looks like: how many elements, where they lie, and which formula gives them.

It is worked out for wrong results alone, from the inputs that are known: see `hypotheses`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemmkit.problem import GemmProblem
from gemmkit.record import Diagnosis
from gemmkit.storage import Stored
from gemmkit.verify.bounds import Rounding
from gemmkit.verify.elements import FEW, told
from gemmkit.verify.encoding import decode, is_canary
from gemmkit.verify.exchanged import layouts
from gemmkit.verify.hypotheses import HYPOTHESES, SIGNS, Hypothesis
from gemmkit.verify.inputs import Inputs
from gemmkit.verify.regions import region
from gemmkit.verify.scene import Explanation, Numbers, Places, Scene, explainable

# Larger operands are not copied to float64 for the sake of hypotheses.
MOST_ELEMENTS = 2**24
# Multiplications that it may take to compute all wrong elements once: of more, some are taken.
MOST_WORK = 2**23

# By how little results err whose operands were rounded to a type, as a share of the sum of the
# terms' magnitudes: two unit roundoffs, and a little for the sum.
_ROUNDED = {"float16": 2.0**-9.5, "bfloat16": 2.0**-6.5}
# The same of fp64 products that are computed in fp32.
_SINGLE = 2.0**-20


@dataclass(frozen=True, slots=True)
class Wrong:
    """The wrong elements of one product: where, and what they must be.

    `magnitudes` are the sums of the magnitudes of their terms, `compared` how many elements were
    compared with the reference: where these are not all, nothing is said of where wrong ones lie.
    """

    rows: Places
    columns: Places
    right: Numbers
    magnitudes: Numbers
    compared: int


def diagnose(
    problem: GemmProblem,
    inputs: Inputs,
    rounding: Rounding,
    stored: Stored,
    wrong: Wrong,
) -> Diagnosis:
    """Explain a wrong result of one product, m × n, as the kernel left it in `stored`."""
    numbers = decode(stored, problem.result_dtype)
    poison = is_canary(stored[wrong.rows, wrong.columns], problem.result_dtype)
    found = numbers[wrong.rows, wrong.columns]
    count = wrong.rows.size
    parts: list[tuple[int, str, Explanation | None]] = []
    single: tuple[str, ...] = ()
    named = False
    scenes = _Scenes(problem, inputs, rounding, numbers, wrong)
    for chosen, explanation in _kinds(problem, inputs, scenes, found, poison, wrong.right):
        if not chosen.any():
            continue
        if explanation is None:
            explanation = _finite(scenes, chosen)
            scene = scenes.of(chosen) if np.count_nonzero(chosen) <= FEW else None
            if explanation is None and scene is not None:
                single, named = told(scene)
        places = wrong.rows[chosen], wrong.columns[chosen]
        where = region(*places, (problem.m, problem.n))
        parts.append((int(np.count_nonzero(chosen)), where, explanation))
    if wrong.compared != problem.m * problem.n:
        parts = [(size, "", each) for size, _, each in parts]
    parts.sort(key=lambda each: -each[0])
    _, where, first = parts[0]
    if len(parts) > 1 and where:
        where = region(wrong.rows, wrong.columns, (problem.m, problem.n))
    clauses = []
    for size, place, each in parts:
        clause = each.clause if each is not None else "no simple explanation fits"
        if each is None and named:
            clause = "; ".join(single)
        if len(parts) > 1:
            clause = f"{size:,} of them{place and f' ({place})'}: {clause}"
        clauses.append(clause)
    details = [f"{each.advice[0].upper()}{each.advice[1:]}." for _, _, each in parts
               if each is not None and each.advice]  # fmt: skip
    return Diagnosis(
        summary=f"{_counted(count, wrong.compared, where)}: {'; '.join(clauses)}",
        hypothesis=first.name if first is not None else "",
        wrong=count,
        elements=wrong.compared,
        rows=(int(wrong.rows.min()), int(wrong.rows.max())),
        columns=(int(wrong.columns.min()), int(wrong.columns.max())),
        details=(*(() if named else (f"{each}." for each in single)), *details),
        places=tuple(zip(wrong.rows.tolist(), wrong.columns.tolist(), strict=True))
        if count <= FEW
        else (),
    )


def _kinds(
    problem: GemmProblem,
    inputs: Inputs,
    scenes: _Scenes,
    found: Numbers,
    poison: NDArray[np.bool_],
    right: Numbers,
) -> list[tuple[NDArray[np.bool_], Explanation | None]]:
    """Which of the wrong elements hold what: poison, another NaN, an infinity, zero, a number."""
    unwritten = Explanation("not written", "C was never written there (it still holds poison)")
    nan = Explanation(
        "NaN", "C is NaN, as where a sum starts from a NaN, or memory past a matrix is read"
    )
    if problem.beta == 0:
        clause = "C is NaN, as where its previous contents (NaN here) are read though β is 0"
        nan = Explanation("NaN", f"{clause}, or memory past a matrix")
    # Sums of integers may well be zero by accident, those of reals are not.
    zeros = (found == 0) & (right != 0) & (inputs.kind == "normal")
    zero = Explanation("zero", "C is zero")
    signs = right[zeros]
    if SIGNS <= signs.size < problem.m * problem.n and signs.max() < 0:
        zero = Explanation("zero", "C is zero where it must be negative, as after a ReLU")
    infinite = Explanation("infinite", "C is infinite")
    finite = np.isfinite(found)
    rest: Explanation | None = None
    if zeros.any() and not zeros[finite].all():
        # Operands read past their end give zeros as well as the other numbers.
        rest = scenes.first_of((layouts,), finite)
        zeros &= rest is None
    return [
        (poison, unwritten),
        (np.isnan(found) & ~poison, nan),
        (np.isinf(found), infinite),
        (zeros, zero),
        (finite & ~zeros, rest),
    ]


@dataclass(frozen=True, slots=True)
class _Scenes:
    """What hypotheses about some of the wrong elements are tried on."""

    problem: GemmProblem
    inputs: Inputs
    rounding: Rounding
    stored: Numbers
    wrong: Wrong

    def first_of(
        self, hypotheses: Sequence[Hypothesis], chosen: NDArray[np.bool_]
    ) -> Explanation | None:
        """The first hypothesis that explains those elements, which hold numbers."""
        scene = self.of(chosen)
        if scene is None:
            return None
        with np.errstate(all="ignore"):
            found = (hypothesis(scene) for hypothesis in hypotheses)
            return next((each for each in found if each is not None), None)

    def of(self, chosen: NDArray[np.bool_]) -> Scene | None:
        """Those elements, or as many of them as are not too many; None for too large matrices."""
        p, wrong = self.problem, self.wrong
        largest = max(p.m * p.k, p.k * p.n, p.m * p.n)
        if largest > MOST_ELEMENTS or not explainable(p):
            return None
        if not np.isfinite(wrong.right[chosen]).all():
            return None
        some = self.some(chosen)
        rows, columns, right = wrong.rows[some], wrong.columns[some], wrong.right[some]
        found = self.stored[rows, columns].astype(float)
        return Scene(p, self.inputs, self.rounding, rows, columns, found, right, self.stored)

    def some(self, chosen: NDArray[np.bool_]) -> Places:
        """The numbers of so many of those elements as hypotheses are tried on."""
        some = np.flatnonzero(chosen)
        count = max(1, MOST_WORK // max(self.problem.k, 1))
        if some.size > count:
            some = some[np.linspace(0, some.size - 1, count).astype(np.intp)]
        return some


def _finite(scenes: _Scenes, chosen: NDArray[np.bool_]) -> Explanation | None:
    """What explains the wrong elements that hold numbers."""
    explanation = scenes.first_of(HYPOTHESES, chosen)
    if explanation is not None or 2 * np.count_nonzero(chosen) < scenes.wrong.compared:
        return explanation
    scene = scenes.of(chosen)
    if scene is None:
        return None
    return _imprecise(scene, scenes.wrong.magnitudes[scenes.some(chosen)])


def _imprecise(scene: Scene, magnitudes: Numbers) -> Explanation | None:
    """Errors like those of arithmetic with fewer digits: small ones, of many elements alike."""
    shares = np.abs(scene.found - scene.right) / np.maximum(magnitudes, 1e-300)
    worst = float(shares.max())
    single = scene.problem.sum_dtype == "float64" and worst <= _SINGLE
    name = next((each for each, share in _ROUNDED.items() if worst <= share), None)
    # A few terms that are left out of long sums make small errors, too, but not everywhere.
    if name is None or worst > 50 * float(np.median(shares)):
        return None
    # Errors of rounding do not follow C.
    if scene.beta and _follows_c(scene):
        return None
    clause = f"errors as of rounding: at most 2^{np.log2(worst):.1f} of the terms' magnitudes"
    if single:
        clause = clause.replace("rounding", "fp32 arithmetic")
        advice = "if the kernel is meant to compute in float, try --tolerance 1e-6"
        return Explanation("imprecise", clause, advice)
    advice = f"if the kernel is meant to compute in a narrower type, try --compute-dtype {name}"
    return Explanation("imprecise", clause, advice)


def _follows_c(scene: Scene) -> bool:
    """Whether the errors are mostly a multiple of what C held before."""
    errors, before = scene.found - scene.right, scene.c[scene.rows, scene.columns]
    sizes = float(np.linalg.norm(errors) * np.linalg.norm(before))
    return abs(float(errors @ before)) > sizes / 2


def _counted(count: int, compared: int, where: str) -> str:
    if count == compared:
        text = f"all {count:,} elements are wrong" if count > 1 else "the only element is wrong"
    else:
        text = f"{count:,} of {compared:,} elements {'is' if count == 1 else 'are'} wrong"
        text += f" ({where})" if where else ""
    return text[0].upper() + text[1:]
