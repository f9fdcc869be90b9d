"""Judges a result: every element against a float64 reference, or by an O(n²) check if too large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gemmkit.epilogue import Epilogue
from gemmkit.error_histogram import ErrorHistogram
from gemmkit.problem import GemmProblem
from gemmkit.record import Diagnosis
from gemmkit.storage import Placement, Stored, placements
from gemmkit.verify.arithmetic import FP32, Arithmetic
from gemmkit.verify.bounds import Rounding
from gemmkit.verify.diagnosis import Wrong, diagnose
from gemmkit.verify.encoding import Matrix, decode, is_canary
from gemmkit.verify.freivalds import Freivalds
from gemmkit.verify.inputs import Inputs
from gemmkit.verify.non_finite import nan_for_infinity, note
from gemmkit.verify.reference import (
    EVERYTHING,
    Comparison,
    Expected,
    Fresh,
    Selection,
    compare,
    evaluate,
)
from gemmkit.verify.row_blocks import of_products
from gemmkit.verify.tally import Tally

_Block = tuple[Selection, Selection, Expected]
Method = Literal["auto", "full", "sampled"]

# Up to m·n·k = 2³⁴ the two float64 products take about a second on two cores (70 GFLOP/s). A k
# below 1024 counts as 1024, so that no float64 matrix exceeds 128 MiB.
FULL_LIMIT = 2**34
FULL_MIN_K = 1024

SAMPLED_LINES = 16
EXAMINED_SUSPECTS = 8


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a result is correct, and its errors relative to their bounds.

    `max_error` is the largest |C - reference| and `error_bound` the bound of that element.
    `error_ratio` is the largest error / bound; `ratio_error` and `ratio_bound` belong to the
    element that has it, often another one. Errors and the ratio are infinite if an element is NaN
    or wrongly infinite. `method` says which elements were compared. `detail` is one sentence about
    the worst element of a wrong result, with the seed that reproduces it; it is empty for a correct
    result. `diagnosis` describes a wrong result. `arithmetic` says which roundings the bounds allow
    for, and why. `note` is what there is to know of a correct result, or empty. `errors` counts the
    compared elements by error / bound, each once; None if there are none.
    """

    correct: bool
    max_error: float
    error_bound: float
    error_ratio: float
    ratio_error: float
    ratio_bound: float
    method: str
    detail: str = ""
    arithmetic: str = ""
    diagnosis: Diagnosis | None = None
    note: str = ""
    errors: ErrorHistogram | None = None


class Reference:
    """The expected result of a problem for given inputs; made once, it checks many results.

    `arithmetic` is what the bounds allow for: by default fp32.

    `method` "full" compares every element. "sampled" compares 16 rows and 16 columns (the first,
    the last, the others at random) and applies Freivalds' check to all. "auto" is full up to
    m·n·k = 2³⁴, summed over all products. Every product is checked, by the same method. The
    guarantees are in `bounds` and `freivalds`.

    Raises:
        UsageError: k is so large that rounding has no useful bound (2²⁴ for fp32), or the
            activation is a custom one.
    """

    def __init__(
        self,
        problem: GemmProblem,
        inputs: Inputs,
        method: Method = "auto",
        arithmetic: Arithmetic = FP32,
    ) -> None:
        self.problem, self.inputs, self.arithmetic = problem, inputs, arithmetic
        products = [problem.product(number) for number in range(problem.count)]
        work = sum(each.m * each.n * max(each.k, FULL_MIN_K) for each in products)
        self.full = method == "full" or (method == "auto" and work <= FULL_LIMIT)
        self.placements = placements(problem)
        self.products = of_products(
            lambda each: _Product(
                products[each],
                inputs.of_product(problem, each, self.placements),
                arithmetic,
                full=self.full,
            ),
            range(len(products)),
        )
        self.method = self.products[0].method if self.products else "every element"
        if problem.count > 1:
            self.method += f" of {problem.count} products"

    def under(self, arithmetic: Arithmetic) -> Reference:
        """The same reference for kernels that compute in another arithmetic."""
        other = copy(self)
        other.arithmetic = arithmetic
        other.products = of_products(lambda each: each.under(arithmetic), self.products)
        return other

    def check(self, result: Stored, auxiliary: Stored | None = None) -> Verdict:
        """Judge a result, the storage of C as a kernel left it, and that of the auxiliary output.

        Raises:
            ValueError: the length of a storage is not that of the inputs.
        """
        verdict = self._check(result, self.placements["c"], "C", auxiliary=False)
        if auxiliary is None or not verdict.correct:
            return verdict
        of_auxiliary = self._check(
            auxiliary, self.placements["auxiliary"], "the auxiliary output", auxiliary=True
        )
        return verdict if of_auxiliary.correct else of_auxiliary

    def _check(self, result: Stored, layout: Placement, name: str, *, auxiliary: bool) -> Verdict:
        if result.size != layout.size:
            raise ValueError(f"the result has {result.size} elements, not {layout.size}")
        matrices = layout.view(result)
        judged = of_products(
            lambda pair: pair[0].check(pair[1], name, auxiliary=auxiliary),
            zip(self.products, matrices, strict=True),
        )
        seen = [each for each, _ in judged]
        detail = ""
        wrong = next((number for number, each in enumerate(seen) if not each.correct), None)
        if wrong is not None:
            detail = seen[wrong].detail
            if len(seen) > 1:
                count = sum(not each.correct for each in seen)
                shape = f" ({self.products[wrong].problem.shape})" if self.problem.groups else ""
                detail = (
                    f"{count} of {len(seen)} products are wrong; number {wrong}{shape}: {detail}"
                )
        elif touched := self._touched_gaps(layout.gaps(result)):
            where = f"{name}'s padding" + (
                " or between its matrices" if self.problem.groups else ""
            )
            detail = f"{touched} elements of {where} were written"
            detail += f" (seed {self.inputs.seed})"
        largest = max(seen, key=lambda each: each.max_error, default=None)
        worst = max(seen, key=lambda each: each.error_ratio, default=None)
        first = seen[wrong] if wrong is not None else None
        return Verdict(
            correct=not detail,
            max_error=largest.max_error if largest else 0.0,
            error_bound=largest.error_bound if largest else 0.0,
            error_ratio=worst.error_ratio if worst else 0.0,
            ratio_error=worst.ratio_error if worst else 0.0,
            ratio_bound=worst.ratio_bound if worst else 0.0,
            method=self.method,
            detail=detail,
            arithmetic=self._arithmetic,
            diagnosis=first.diagnosis if first is not None else None,
            note="" if detail else next((each.note for each in seen if each.note), ""),
            errors=Tally.total(tally for _, tally in judged).histogram(),
        )

    @property
    def _arithmetic(self) -> str:
        plain = self.arithmetic.plain and self.problem.sum_dtype == "float64"
        return "fp64" if plain else self.arithmetic.reason

    def _touched_gaps(self, gaps: Stored) -> int:
        return int(np.count_nonzero(~is_canary(gaps, self.problem.result_dtype)))


class _Product:
    """The expected result of one product."""

    def __init__(
        self, problem: GemmProblem, inputs: Inputs, arithmetic: Arithmetic, *, full: bool
    ) -> None:
        self.problem, self.inputs = problem, inputs
        self.rounding = Rounding.of(problem, inputs, arithmetic)
        # Whether operands are rounded to a narrower type, and may be split into parts of it.
        self.narrow = bool(arithmetic.rounded)
        self.freivalds: Freivalds | None = None
        parts: list[tuple[Selection, Selection]] = [(EVERYTHING, EVERYTHING)]
        self.method = "every element"
        if not full:
            rng = np.random.default_rng([inputs.seed, problem.m, problem.n])
            rows, columns = (_sample(rng, size) for size in (problem.m, problem.n))
            parts = [(rows, EVERYTHING), (EVERYTHING, columns)]
            self.method = f"{rows.size} rows and {columns.size} columns"
            freivalds = Freivalds(problem, inputs, self.rounding)
            if freivalds.applies:
                self.freivalds = freivalds
                self.method += ", Freivalds' check for all"
        self.blocks = [(*part, evaluate(problem, inputs, *part)) for part in parts]

    def under(self, arithmetic: Arithmetic) -> _Product:
        """The same expectation with the bound of another arithmetic."""
        other = copy(self)
        other.rounding = Rounding.of(self.problem, self.inputs, arithmetic)
        other.narrow = bool(arithmetic.rounded)
        if self.freivalds is not None:
            other.freivalds = self.freivalds.under(other.rounding)
        return other

    def check(
        self, stored: Stored, name: str = "C", *, auxiliary: bool = False
    ) -> tuple[Verdict, Tally]:
        """Judge the m × n elements of C or of the auxiliary output, without its padding; and count
        the errors of those that were compared."""
        p = self.problem
        c = Matrix(stored, p.result_dtype)
        blocks = self.blocks
        suspects = np.empty(0, np.intp)
        if self.freivalds is not None and not auxiliary:
            suspects = self.freivalds.suspects(c)
        if suspects.size:
            worst_rows = suspects[:EXAMINED_SUSPECTS]
            expected = evaluate(p, self.inputs, worst_rows)
            blocks = [*blocks, (worst_rows, EVERYTHING, expected)]
        rounding = self.rounding
        if auxiliary:
            between = tuple(each for each in rounding.between if each == "product")
            rounding = replace(rounding, epilogue=Epilogue(), scale=1.0, between=between)
            blocks = [(rows, columns, each.auxiliary) for rows, columns, each in blocks]
        lost = None
        if len(blocks) == 1 and not auxiliary:
            lost = nan_for_infinity(p, self.inputs, stored, blocks[0][2], always=self.narrow)
        parts = [(rows, columns) for rows, columns, _ in blocks]
        seen = [
            (rows, columns, compare(p, rounding, c.part(rows, columns)[:], expected, lost, fresh))
            for (rows, columns, expected), fresh in zip(blocks, _fresh(p, parts), strict=True)
        ]
        compared = [each[2] for each in seen]
        largest_ratio = max(range(len(seen)), key=lambda number: compared[number].ratio)
        rows, columns, worst = seen[largest_ratio]
        detail = ""
        if not all(each.correct for each in compared):
            right = blocks[largest_ratio][2].values[worst.row, worst.column]
            where = _at(rows, worst.row), _at(columns, worst.column)
            detail = self._describe(stored[where], name, where, float(right), worst.bound)
        elif suspects.size:
            detail = f"row {suspects[0]} fails Freivalds' check (seed {self.inputs.seed})"
        largest = max(compared, key=lambda each: each.max_error)
        verdict = Verdict(
            correct=not detail,
            max_error=largest.max_error,
            error_bound=largest.max_error_bound,
            error_ratio=worst.ratio,
            ratio_error=worst.error,
            ratio_bound=worst.bound,
            method=self.method,
            detail=detail,
            diagnosis=self._diagnosis(stored, blocks, compared),
            note="" if lost is None or detail else note(int(np.count_nonzero(lost))),
        )
        return verdict, Tally.total(each.tally for each in compared if each.tally is not None)

    def _diagnosis(
        self, stored: Stored, blocks: Sequence[_Block], compared: Sequence[Comparison]
    ) -> Diagnosis | None:
        """The diagnosis of the block with the most wrong elements."""
        counts = [0 if each.wrong is None else int(each.wrong.sum()) for each in compared]
        number = int(np.argmax(counts))
        mask = compared[number].wrong
        if mask is None:
            return None
        rows, columns, expected = blocks[number]
        down, along = np.nonzero(mask)
        wrong = Wrong(
            rows=np.arange(self.problem.m)[rows][down],
            columns=np.arange(self.problem.n)[columns][along],
            right=expected.values[mask],
            magnitudes=expected.magnitude[mask],
            compared=mask.size,
        )
        return diagnose(self.problem, self.inputs, self.rounding, stored, wrong)

    def _describe(
        self, stored: Any, name: str, where: tuple[int, int], right: float, bound: float
    ) -> str:
        dtype = self.problem.result_dtype
        element = np.atleast_1d(stored)
        found = decode(element, dtype)[0]
        found_text = f"{found:.9g}"
        if is_canary(element, dtype)[0]:
            found_text = "the NaN it was filled with: it was never written"
        elif np.isnan(found) and self.problem.beta == 0 and self.inputs.kind != "non-finite":
            found_text = "nan (C held NaN before: it must not be read where β is 0)"
        seed = f"{self.inputs.kind} inputs, seed {self.inputs.seed}"
        row, column = where
        right_text = f"{right:.9g} ± {bound:.2g}" if np.isfinite(right) else f"{right:g}"
        return f"{name}[{row}, {column}] is {found_text}, not {right_text} ({seed})"


def check(problem: GemmProblem, inputs: Inputs, result: Stored, method: Method = "auto") -> Verdict:
    """Judge one result; `Reference` judges many of the same problem and inputs.

    Args:
        problem: the product.
        inputs: what the kernel was given.
        result: the storage of C as the kernel left it.
        method: "full", "sampled" or "auto", as for `Reference`.

    Raises:
        UsageError: k is so large that rounding has no useful bound, or the activation is a custom
            one.
        ValueError: the length of the result is not that of C.
    """
    return Reference(problem, inputs, method).check(result)


def _sample(rng: np.random.Generator, size: int) -> NDArray[np.intp]:
    """At most 16 indices below `size`, sorted: the first, the last, and random ones."""
    if size <= SAMPLED_LINES:
        return np.arange(size)
    inner = 1 + rng.choice(size - 2, SAMPLED_LINES - 2, replace=False)
    return np.sort(np.concatenate(([0, size - 1], inner))).astype(np.intp)


def _fresh(
    problem: GemmProblem, parts: Sequence[tuple[Selection, Selection]]
) -> Iterator[Fresh | None]:
    """For each block, the rows and columns of it that no block before it has; None for all.

    Each block is of whole rows or of whole columns.
    """
    rows, columns = np.zeros(problem.m, np.bool_), np.zeros(problem.n, np.bool_)
    for down, along in parts:
        fresh = ~rows[down], ~columns[along]
        yield None if fresh[0].all() and fresh[1].all() else fresh
        if isinstance(along, slice):
            rows[down] = True
        else:
            columns[along] = True


def _at(selection: Selection, position: int) -> int:
    """The row or column at a position of a selection."""
    return position if isinstance(selection, slice) else int(selection[position])
