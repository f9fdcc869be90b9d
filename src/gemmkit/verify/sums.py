"""Which terms of the sums over k a wrong result lacks, or has twice."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gemmkit.verify.scene import Numbers, Places, Scene

# Elements on which ranges of k are tried; they are held against all others afterwards.
TRIED = 48
# Depth beyond which only ranges that begin or end with the sum are tried.
ANY_RANGE = 1024
# Steps of k that kernels take at once.
STEPS = (2, 4, 8, 16, 32, 64, 128)

# First and last (exclusive) step of k, and how often more than once it is added.
Change = tuple[int, int, int]


def missing_terms(scene: Scene) -> tuple[str, str] | None:
    """Name and clause of the terms that explain all wrong elements, or None.

    A ReLU hides what a sum was, so nothing is said of results that have one.
    """
    k = scene.shape[2]
    if not k or not scene.alpha or scene.problem.epilogue.activation != "none":
        return None
    chosen = scene.sample[:: max(1, scene.sample.size // TRIED)]
    rows, columns = scene.rows[chosen], scene.columns[chosen]
    terms = scene.alpha * scene.a[rows] * scene.b.T[columns]
    prefix = np.concatenate([np.zeros((rows.size, 1)), np.cumsum(terms, axis=1)], axis=1)
    more = scene.found[chosen] - scene.right[chosen]
    for changes, tried in _candidates(prefix, more, 2 * scene.tolerance):
        if scene.convincing(tried) and _holds(scene, changes):
            return _words(changes, k)
    return None


def _candidates(
    prefix: Numbers, more: Numbers, tolerance: float
) -> Iterator[tuple[list[Change], float]]:
    """Changes of the sums that give the differences, the simplest first, with how many there are.

    `prefix` holds the partial sums of each element, `more` by how much it is too large.
    """
    k = prefix.shape[1] - 1
    total = prefix[:, -1:]
    for times in (-1, 1):
        target = times * more[:, None]
        for end in np.flatnonzero(_all_near(prefix, target, tolerance)):
            if end:
                yield [(0, int(end), times)], 4 * k
        for start in np.flatnonzero(_all_near(total - prefix, target, tolerance)):
            if start < k:
                yield [(int(start), k, times)], 4 * k
    if k <= ANY_RANGE:
        first = prefix[0]
        for times in (-1, 1):
            gaps = np.abs(first[None, :] - first[:, None] - times * more[0]) <= tolerance
            for start, end in np.argwhere(np.triu(gaps, 1)):
                within = prefix[:, [end]] - prefix[:, [start]]
                if _all_near(within, times * more[:, None], tolerance)[0]:
                    yield [(int(start), int(end), times)], float(k * k)
    yield from _stale(prefix, more, tolerance)


def _stale(
    prefix: Numbers, more: Numbers, tolerance: float
) -> Iterator[tuple[list[Change], float]]:
    """A step used again in place of another one."""
    k = prefix.shape[1] - 1
    for step in STEPS:
        if step >= k or k > ANY_RANGE:
            continue
        edges = np.minimum(np.arange(0, k + step, step), k)
        tiles = np.diff(prefix[:, edges], axis=1)
        near = np.abs(tiles[0][:, None] - tiles[0][None, :] - more[0]) <= tolerance
        for again, lost in np.argwhere(near):
            fits = np.abs(tiles[:, again] - tiles[:, lost] - more) <= tolerance
            if again != lost and fits.all():
                spans = [(int(edges[each]), int(edges[each + 1])) for each in (lost, again)]
                yield [(*spans[0], -1), (*spans[1], 1)], 8.0 * tiles.shape[1] ** 2


def _all_near(values: Numbers, target: Numbers, tolerance: float) -> NDArray[np.bool_]:
    near: NDArray[np.bool_] = np.asarray(np.all(np.abs(values - target) <= tolerance, axis=0))
    return near


def _holds(scene: Scene, changes: list[Change]) -> bool:
    """Whether all wrong elements differ by these changes from what is right."""

    def change(rows: Places, columns: Places) -> Numbers:
        total = np.zeros(rows.size)
        for start, end, times in changes:
            a, b = scene.a[:, start:end], scene.b[start:end]
            total += times * scene.alpha * scene.products(rows, columns, a, b)
        return total

    return all(
        scene.fits(scene.right[part] + change(rows, columns), part)
        for rows, columns, part in scene.parts()
    )


def _words(changes: list[Change], k: int) -> tuple[str, str]:
    if len(changes) == 2:
        (start, end, _), (again, again_end, _) = changes
        return (
            "stale tile",
            f"k = {again} to {again_end - 1} is used again in place of k = {start} to {end - 1}",
        )
    start, end, times = changes[0]
    count = end - start
    if times > 0:
        return "k twice", f"{_steps(start, end, k)} of k {_is(count)} added twice"
    if count == k:
        return "product left out", "nothing of A·B is added"
    if end == k:
        return "k short", f"k is short by {count}: {_steps(start, end, k)} {_is(count)} left out"
    return "k short", f"{_steps(start, end, k)} of k {_is(count)} left out"


def _steps(start: int, end: int, k: int) -> str:
    """Some steps of k, and of which size of step they are the rest."""
    count = end - start
    rest = [step for step in STEPS if k % step and count == k % step] if end == k else []
    where = f"k = {start} to {end - 1}" if count > 1 else f"k = {start}"
    if rest:
        where += f", what is past the last whole step of {rest[-1]}"
    place = "the last" if end == k else "the first" if start == 0 else ""
    if not place:
        return f"{count} step{'s' * (count > 1)} ({where})"
    return f"{place} {f'{count} steps' if count > 1 else 'step'} ({where})"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
