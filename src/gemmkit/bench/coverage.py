"""Whether what a check ran says anything, and for which multiples a kernel is right."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product

from gemmkit.check_record import CheckRecord
from gemmkit.findings import Finding
from gemmkit.kernels.catalog import merged_refusals
from gemmkit.kernels.sizes import SIZES, Multiples
from gemmkit.record import ProblemRecord

# Elements of the vectors that kernels load most, and that problems of whole vectors have.
VECTOR = 4

# Clean problems of different sizes, and failed ones, that it takes to name multiples.
EVIDENCE = 2


def too_little(records: Sequence[CheckRecord]) -> str | None:
    """Why a check without a finding says nothing of the kernel, or None.

    It ran one element or empty matrices at most, and refused all that was larger.
    """
    refused = [record for record in records if record.verdict == "refused"]
    ran = [record for record in records if record.verdict != "refused"]
    if not refused or any(_products(record.problem) > 1 for record in ran):
        return None
    reasons = merged_refusals(record.detail for record in refused)
    shapes = ", ".join(dict.fromkeys(record.problem.shape for record in ran))
    what = f"nothing larger than {shapes} ran" if ran else "nothing ran"
    return (
        f"too little ran to say anything: {what}, and {len(refused)} of {len(records)} problems "
        f"were refused ({reasons}); give shapes that the kernel takes by --shape"
    )


def right_multiples(records: Sequence[CheckRecord], tiles: Multiples) -> Multiples | None:
    """What M, N and K must be multiples of for every problem to be clean.

    Each is 1, or that of `tiles`, or that of a vector where this suffices, as few of them as the
    problems that ran can tell apart; None where multiples make no difference, or where all problems
    are clean. Empty problems do not count.

    Sizes are not to blame for a race in shared memory or a divergent barrier, nor for what only
    large problems show: at least two failed, each no larger along any axis than a clean one of such
    multiples. Nor are they where most problems of other sizes are clean: something else, such as a
    short k, tells those that failed from them.
    """
    ran = [each for each in records if each.verdict != "refused" and _products(each.problem)]
    if all(record.clean for record in ran):
        return None
    clean = {each.problem.shape for each in ran if each.clean}
    if any(each.problem.shape in clean for each in ran if not each.clean):
        # Not the sizes but scales or paddings make the difference.
        return None
    if any(_of_barriers(finding) for each in ran for finding in each.findings):
        return None
    failed = [each for each in ran if not each.clean]
    axes = [axis for axis in range(len(SIZES)) if tiles[axis] > 1]
    for count in range(1, len(axes) + 1):
        for chosen, whole_tiles in product(combinations(axes, count), (False, True)):
            units = tiles if whole_tiles else (VECTOR,) * len(SIZES)
            m, n, k = (units[axis] if axis in chosen else 1 for axis in range(len(SIZES)))
            whole = [each for each in ran if _divides((m, n, k), each.problem)]
            shapes = {each.problem.shape for each in whole if _products(each.problem) > 1}
            # That the others need no multiples has been seen, and that vectors suffice.
            beside = {axis: units[axis] for axis in axes if axis not in chosen}
            if not whole_tiles:
                beside |= {axis: tiles[axis] for axis in chosen if tiles[axis] > VECTOR}
            seen = all(
                any(_sizes(each.problem)[axis] % unit for each in whole)
                for axis, unit in beside.items()
            )
            within = {
                each.problem.shape
                for each in failed
                if any(_holds(clean.problem, each.problem) for clean in whole)
            }
            others = sum(not _divides((m, n, k), each.problem) for each in ran)
            enough = min(len(shapes), len(within)) >= EVIDENCE and 2 * len(failed) > others
            if enough and seen and all(each.clean for each in whole):
                return m, n, k
    return None


def contiguous_only(records: Sequence[CheckRecord]) -> bool:
    """Whether padded rows alone make a kernel fail: all problems that have them fail, and no other.

    A few of both have to have run.
    """
    ran = [each for each in records if each.verdict != "refused" and _products(each.problem) > 1]
    failed = [each for each in ran if not each.clean]
    padded = [each for each in ran if each.problem.padded]
    enough = min(len(padded), len(ran) - len(padded)) >= EVIDENCE
    return enough and failed == padded


def _products(problem: ProblemRecord) -> int:
    return problem.m * problem.n * problem.k * problem.batch


def _of_barriers(finding: Finding) -> bool:
    """Whether it is about threads of one block. Blocks race for C past the ends of its rows."""
    return finding.check == "synccheck" or (
        finding.check == "racecheck" and finding.array not in ("A", "B", "C")
    )


def _holds(problem: ProblemRecord, other: ProblemRecord) -> bool:
    """Whether a problem is at least as large as another along every axis."""
    return all(ours >= its for ours, its in zip(_sizes(problem), _sizes(other), strict=True))


def _divides(multiples: Multiples, problem: ProblemRecord) -> bool:
    return not any(
        size % multiple for size, multiple in zip(_sizes(problem), multiples, strict=True)
    )


def _sizes(problem: ProblemRecord) -> tuple[int, int, int]:
    return problem.m, problem.n, problem.k
