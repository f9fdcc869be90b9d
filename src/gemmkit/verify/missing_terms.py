"""Finds the terms of the sums over k that a wrong result lacks, or adds twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemmkit.verify.mismatch import Mismatch, Numbers

# Elements that ranges of k are tested on before they are compared with all others.
TRIED = 48
# Above this k, only ranges at either end of k are tried.
ANY_RANGE = 1024
# Tile depths that kernels use.
STEPS = (2, 4, 8, 16, 32, 64, 128)

# How often each step of k is added in addition to once: −1 where it is left out.
Weights = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """A change of the sums over k: its name, a clause, and the number of such changes tried."""

    name: str
    clause: str
    weights: Weights
    tried: float


def missing_terms(mismatch: Mismatch) -> tuple[str, str] | None:
    """Name and clause of the terms that explain all wrong elements, or None.

    A ReLU hides the value of a sum, so results with one are not explained.
    """
    k = mismatch.shape[2]
    if not k or not mismatch.alpha or mismatch.problem.epilogue.activation != "none":
        return None
    chosen = mismatch.sample[:: max(1, mismatch.sample.size // TRIED)]
    rows, columns = mismatch.rows[chosen], mismatch.columns[chosen]
    terms = mismatch.alpha * mismatch.a[rows] * mismatch.b.T[columns]
    more = mismatch.found[chosen] - mismatch.right[chosen]
    for change in _candidates(terms, more, 2 * mismatch.tolerance):
        if mismatch.convincing(change.tried) and _holds(mismatch, change.weights):
            return change.name, change.clause
    return None


def _candidates(terms: Numbers, more: Numbers, tolerance: float) -> Iterator[Change]:
    """Changes of the sums that give the differences, the simplest first.

    `terms` holds the terms of each element's sum, `more` the element's excess.
    """
    prefix = np.concatenate([np.zeros((terms.shape[0], 1)), np.cumsum(terms, axis=1)], axis=1)
    yield from _ranges(prefix, more, tolerance)
    if terms.shape[1] <= ANY_RANGE:
        yield from _periodic(terms, more, tolerance)
        yield from _stale(prefix, more, tolerance)


def _ranges(prefix: Numbers, more: Numbers, tolerance: float) -> Iterator[Change]:
    """Contiguous steps that are left out or added twice; those at an end of k first."""
    k = prefix.shape[1] - 1
    total = prefix[:, -1:]
    for times in (-1, 1):
        target = times * more[:, None]
        for end in np.flatnonzero(_all_near(prefix, target, tolerance)):
            if end:
                yield _range(0, int(end), times, k, 4 * k)
        for start in np.flatnonzero(_all_near(total - prefix, target, tolerance)):
            if start < k:
                yield _range(int(start), k, times, k, 4 * k)
    if k > ANY_RANGE:
        return
    first = prefix[0]
    for times in (-1, 1):
        gaps = np.abs(first[None, :] - first[:, None] - times * more[0]) <= tolerance
        for start, end in np.argwhere(np.triu(gaps, 1)):
            within = prefix[:, [end]] - prefix[:, [start]]
            if _all_near(within, times * more[:, None], tolerance)[0]:
                yield _range(int(start), int(end), times, k, k * k)


def _range(start: int, end: int, times: int, k: int, tried: float) -> Change:
    weights = np.zeros(k)
    weights[start:end] = times
    name, clause = _words(start, end, times, k)
    return Change(name, clause, weights, tried)


def _periodic(terms: Numbers, more: Numbers, tolerance: float) -> Iterator[Change]:
    """The first or last steps of every tile are left out."""
    k = terms.shape[1]
    for period in STEPS:
        if period >= k:
            return
        place = np.arange(k) % period
        for count in range(1, period):
            for which, chosen in (("last", place >= period - count), ("first", place < count)):
                if _all_near(terms[:, chosen].sum(axis=1), -more, tolerance):
                    steps = f"the {which} {count if count > 1 else ''} of every {period} steps of k"
                    clause = f"{' '.join(steps.split())} {_is(count)} left out"
                    yield Change("part of each tile", clause, -chosen.astype(float), 4.0 * period)


def _stale(prefix: Numbers, more: Numbers, tolerance: float) -> Iterator[Change]:
    """A tile along k is used again in place of another one."""
    k = prefix.shape[1] - 1
    for step in STEPS:
        if step >= k:
            return
        edges = np.minimum(np.arange(0, k + step, step), k)
        tiles = np.diff(prefix[:, edges], axis=1)
        near = np.abs(tiles[0][:, None] - tiles[0][None, :] - more[0]) <= tolerance
        for again, lost in np.argwhere(near):
            fits = np.abs(tiles[:, again] - tiles[:, lost] - more) <= tolerance
            if again == lost or not fits.all():
                continue
            weights = np.zeros(k)
            weights[edges[again] : edges[again + 1]] += 1
            weights[edges[lost] : edges[lost + 1]] -= 1
            used, missing = (_interval(edges[each], edges[each + 1]) for each in (again, lost))
            clause = f"{used} is used again in place of {missing}"
            yield Change("stale tile", clause, weights, 8.0 * tiles.shape[1] ** 2)


def _all_near(values: Numbers, target: Numbers, tolerance: float) -> NDArray[np.bool_]:
    near: NDArray[np.bool_] = np.asarray(np.all(np.abs(values - target) <= tolerance, axis=0))
    return near


def _holds(mismatch: Mismatch, weights: Weights) -> bool:
    """Whether these steps of k explain the errors of all wrong elements."""
    steps = np.flatnonzero(weights)
    a, b = mismatch.a[:, steps] * (mismatch.alpha * weights[steps]), mismatch.b[steps]
    return all(
        mismatch.fits(mismatch.right[part] + mismatch.products(rows, columns, a, b), part)
        for rows, columns, part in mismatch.parts()
    )


def _words(start: int, end: int, times: int, k: int) -> tuple[str, str]:
    count = end - start
    if times > 0:
        return "k twice", f"{_steps(start, end, k)} of k {_is(count)} added twice"
    if count == k:
        return "product left out", "no part of A·B is added"
    if 2 * count > k and (end == k or start == 0):
        rest = (0, start) if end == k else (end, k)
        added = f"only {_steps(*rest, k)} of k {_is(rest[1] - rest[0])} added"
        return "k short", f"k is short by {count}: {added}"
    if end == k:
        return "k short", f"k is short by {count}: {_steps(start, end, k)} {_is(count)} left out"
    return "k short", f"{_steps(start, end, k)} of k {_is(count)} left out"


def _interval(start: int, end: int) -> str:
    return f"k = {start} to {end - 1}" if end - start > 1 else f"k = {start}"


def _steps(start: int, end: int, k: int) -> str:
    """Some steps of k, and the tile depth that they are the residue of."""
    count = end - start
    rest = [step for step in STEPS if k % step and count == k % step] if end == k else []
    where = _interval(start, end)
    if rest:
        where += f", the residue past the last whole step of {rest[-1]}"
    place = "the last" if end == k else "the first" if start == 0 else ""
    if not place:
        return f"{count} step{'s' * (count > 1)} ({where})"
    return f"{place} {f'{count} steps' if count > 1 else 'step'} ({where})"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
