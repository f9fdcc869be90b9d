"""Describes a wrong result: how many elements are wrong, where, and which formula explains them.

It runs for wrong results only and uses the known inputs: see `hypotheses`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gemmkit.problem import GemmProblem
from gemmkit.record import Diagnosis
from gemmkit.storage import Stored
from gemmkit.verify.bounds import Rounding
from gemmkit.verify.elements import FEW, describe_elements
from gemmkit.verify.encoding import decode, is_canary
from gemmkit.verify.hypotheses import HYPOTHESES, SIGNS, Hypothesis
from gemmkit.verify.inputs import Inputs
from gemmkit.verify.mismatch import Explanation, Indices, Mismatch, Numbers, explainable
from gemmkit.verify.regions import region
from gemmkit.verify.wrong_layout import wrong_layout

# Operands with more elements are not copied to float64 to test hypotheses.
MOST_ELEMENTS = 2**24
# The most multiplications to compute all wrong elements once; above it, a subset is used.
MOST_WORK = 2**23

# The largest error of a result whose operands were rounded to a type, as a fraction of the sum of
# the terms' magnitudes: two unit roundoffs, and a little for the accumulation.
_ROUNDED = {"float16": 2.0**-9.5, "bfloat16": 2.0**-6.5}
# The same for fp64 products that are computed in fp32.
_SINGLE = 2.0**-20


@dataclass(frozen=True, slots=True)
class Wrong:
    """The wrong elements of one product: their positions and expected values (`right`).

    `magnitudes` are the sums of their terms' magnitudes. `compared` is the number of elements
    compared with the reference: if not all were, the diagnosis does not say where the wrong ones
    are.
    """

    rows: Indices
    columns: Indices
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
    mismatches = _Mismatches(problem, inputs, rounding, numbers, wrong)
    for chosen, explanation in _kinds(problem, inputs, mismatches, found, poison, wrong.right):
        if not chosen.any():
            continue
        if explanation is None:
            explanation = _finite(mismatches, chosen)
            mismatch = mismatches.of(chosen) if np.count_nonzero(chosen) <= FEW else None
            if explanation is None and mismatch is not None:
                single, named = describe_elements(mismatch)
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
    mismatches: _Mismatches,
    found: Numbers,
    poison: NDArray[np.bool_],
    right: Numbers,
) -> list[tuple[NDArray[np.bool_], Explanation | None]]:
    """The wrong elements by what they hold: poison, another NaN, an infinity, zero or a number."""
    unwritten = Explanation("not written", "C was never written there (it still holds poison)")
    if inputs.kind == "non-finite":
        return [(poison, unwritten), *_non_finite(found, right, ~poison)]
    padded = (problem.lda, problem.ldb, problem.ldc) != problem.tight
    past = "memory between rows or past a matrix" if padded else "memory past a matrix"
    nan = Explanation("NaN", f"C is NaN, as when an accumulator starts as NaN or {past} is read")
    if problem.beta == 0:
        clause = "C is NaN, as when its previous contents (NaN here) are read although β is 0"
        nan = Explanation("NaN", f"{clause}, or {past}")
    # A sum of integers may be zero by chance, a sum of reals is not.
    zeros = (found == 0) & (right != 0) & (inputs.kind == "normal")
    zero = Explanation("zero", "C is zero")
    signs = right[zeros]
    if SIGNS <= signs.size < problem.m * problem.n and signs.max() < 0:
        advice = ""
        if problem.epilogue.activation == "none":
            fused = replace(problem.epilogue, activation="relu")
            advice = f"try --epilogue {fused}, if this is intended"
        zero = Explanation("zero", "C is zero where it should be negative, as after a ReLU", advice)
    infinite = Explanation("infinite", "C is infinite")
    finite = np.isfinite(found)
    rest: Explanation | None = None
    if zeros.any() and not zeros[finite].all():
        # Operands that are read past their end can explain the zeros and the other numbers.
        rest = mismatches.first_of((wrong_layout,), finite)
        zeros &= rest is None
    return [
        (poison, unwritten),
        (np.isnan(found) & ~poison, nan),
        (np.isinf(found), infinite),
        (zeros, zero),
        (finite & ~zeros, rest),
    ]


def _non_finite(
    found: Numbers, right: Numbers, chosen: NDArray[np.bool_]
) -> list[tuple[NDArray[np.bool_], Explanation | None]]:
    """The chosen wrong elements of inputs that hold NaN and infinities in some rows and columns."""
    past_the_end = "as when a tile extends past the end of a row or column and multiplies by zero"
    clauses = (
        (
            "contaminated",
            np.isfinite(right) & ~np.isfinite(found),
            "C is NaN or infinite, but none of its terms is: NaN and infinities of A and B reach "
            f"it from elsewhere, {past_the_end}",
        ),
        (
            "NaN hidden",
            np.isnan(right),
            "C is not NaN, although one of its terms is, as when it is clamped by fminf or fmaxf",
        ),
        (
            "infinity lost",
            np.isinf(right) & ~np.isnan(found),
            "C is finite or has the wrong sign, although one of its terms is infinite, as when it "
            "is clamped",
        ),
        (
            "infinity times zero",
            np.isinf(right) & np.isnan(found),
            f"C is NaN, but its terms sum to an infinity, {past_the_end}",
        ),
    )
    rest = chosen & np.isfinite(right) & np.isfinite(found)
    named = [(chosen & each, Explanation(name, clause)) for name, each, clause in clauses]
    return [*named, (rest, None)]


@dataclass(frozen=True, slots=True)
class _Mismatches:
    """Makes the `Mismatch` that hypotheses about some of the wrong elements are tested on."""

    problem: GemmProblem
    inputs: Inputs
    rounding: Rounding
    stored: Numbers
    wrong: Wrong

    def first_of(
        self, hypotheses: Sequence[Hypothesis], chosen: NDArray[np.bool_]
    ) -> Explanation | None:
        """The first hypothesis that explains the chosen elements, which hold numbers."""
        mismatch = self.of(chosen)
        if mismatch is None:
            return None
        with np.errstate(all="ignore"):
            found = (hypothesis(mismatch) for hypothesis in hypotheses)
            return next((each for each in found if each is not None), None)

    def of(self, chosen: NDArray[np.bool_]) -> Mismatch | None:
        """The chosen elements, or as many as allowed; None if the matrices are too large."""
        p, wrong = self.problem, self.wrong
        largest = max(p.m * p.k, p.k * p.n, p.m * p.n)
        if largest > MOST_ELEMENTS or not explainable(p) or self.inputs.kind == "non-finite":
            return None
        if not np.isfinite(wrong.right[chosen]).all():
            return None
        some = self.some(chosen)
        rows, columns, right = wrong.rows[some], wrong.columns[some], wrong.right[some]
        found = self.stored[rows, columns].astype(float)
        return Mismatch(p, self.inputs, self.rounding, rows, columns, found, right, self.stored)

    def some(self, chosen: NDArray[np.bool_]) -> Indices:
        """The indices of the chosen elements that hypotheses are tested on."""
        some = np.flatnonzero(chosen)
        count = max(1, MOST_WORK // max(self.problem.k, 1))
        if some.size > count:
            some = some[np.linspace(0, some.size - 1, count).astype(np.intp)]
        return some


def _finite(mismatches: _Mismatches, chosen: NDArray[np.bool_]) -> Explanation | None:
    """The explanation of the wrong elements that hold finite numbers.

    Where the expected values are within the tolerance that a formula's would have to be, no formula
    is stated: they are errors of rounding.
    """
    near = mismatches.of(chosen)
    if near is not None and near.fits(near.right):
        shares = np.abs(near.found - near.right) / np.maximum(
            mismatches.wrong.magnitudes[mismatches.some(chosen)], 1e-300
        )
        clause = (
            f"errors like those of rounding: at most 2^{np.log2(shares.max()):.1f} of the terms' "
            "magnitudes, which is too close to the bound to identify a formula"
        )
        return Explanation("imprecise", clause)
    explanation = mismatches.first_of(HYPOTHESES, chosen)
    if explanation is not None or 2 * np.count_nonzero(chosen) < mismatches.wrong.compared:
        return explanation
    mismatch = mismatches.of(chosen)
    if mismatch is None:
        return None
    return _imprecise(mismatch, mismatches.wrong.magnitudes[mismatches.some(chosen)])


def _imprecise(mismatch: Mismatch, magnitudes: Numbers) -> Explanation | None:
    """Whether the errors look like those of a narrower type: small, and similar in all elements."""
    shares = np.abs(mismatch.found - mismatch.right) / np.maximum(magnitudes, 1e-300)
    worst = float(shares.max())
    single = mismatch.problem.sum_dtype == "float64" and worst <= _SINGLE
    name = next((each for each, share in _ROUNDED.items() if worst <= share), None)
    # Leaving a few terms out of a long sum also makes small errors, but not everywhere.
    if name is None or worst > 50 * float(np.median(shares)):
        return None
    # Rounding errors are not proportional to C.
    if mismatch.beta and _follows_c(mismatch):
        return None
    clause = (
        f"errors like those of rounding: at most 2^{np.log2(worst):.1f} of the terms' magnitudes"
    )
    if single:
        clause = clause.replace("rounding", "fp32 arithmetic")
        advice = "if the kernel is meant to compute in float, try --tolerance 1e-6"
        return Explanation("imprecise", clause, advice)
    advice = f"if the kernel is meant to compute in a narrower type, try --compute-dtype {name}"
    return Explanation("imprecise", clause, advice)


def _follows_c(mismatch: Mismatch) -> bool:
    """Whether the errors are mostly a multiple of the previous contents of C."""
    errors, before = mismatch.found - mismatch.right, mismatch.c[mismatch.rows, mismatch.columns]
    sizes = float(np.linalg.norm(errors) * np.linalg.norm(before))
    return abs(float(errors @ before)) > sizes / 2


def _counted(count: int, compared: int, where: str) -> str:
    if count == compared:
        text = f"all {count:,} elements are wrong" if count > 1 else "the only element is wrong"
    else:
        text = f"{count:,} of {compared:,} elements {'is' if count == 1 else 'are'} wrong"
        text += f" ({where})" if where else ""
    return text[0].upper() + text[1:]
