"""Findings by what caused them: one for each cause, over problems, lines, threads and arrays.

The same race shows at several pairs of lines, as a read after a write and as a write after a read,
in A's tile and in B's; and what a race or an access out of bounds leaves unwritten is read later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gemmkit.record import AccessSite, CheckRecord, Finding, ProblemRecord

# What a kernel finds there is none of its own doing.
_ARGUMENTS = frozenset(["A", "B", "C", "bias"])
# A value that is not defined may be used at many lines: what counts is where it comes from.
_USED_ELSEWHERE = frozenset(["uninitialized", "absent lane"])
# Causes before consequences.
_RANKS = {"memcheck": 0, "synccheck": 1, "racecheck": 2, "initcheck": 3}


@dataclass
class Cause:
    """What one thing that is wrong with a kernel shows: `finding` is the example.

    `others` are its other pairs of lines or arrays, `follows` the reads of memory never written
    that it may have led to, `problems` those that show it, and `count` how often it was seen.
    """

    finding: Finding
    problems: list[ProblemRecord] = field(default_factory=list)
    count: int = 0
    others: list[Finding] = field(default_factory=list)
    follows: list[Finding] = field(default_factory=list)

    @property
    def arrays(self) -> set[str]:
        """What was touched."""
        return {each.array for each in (self.finding, *self.others)}

    def add(self, finding: Finding, problem: ProblemRecord) -> None:
        """One more finding of this cause."""
        self.count += finding.count
        if problem not in self.problems:
            self.problems.append(problem)
        known = {_places(each) for each in (self.finding, *self.others)}
        if _places(finding) not in known:
            self.others.append(finding)


def causes(records: Sequence[CheckRecord]) -> list[Cause]:
    """The causes of all findings; accesses that memory forbids stand first, then barriers that
    threads miss, then races, then reads of what was never written."""
    found: dict[tuple[object, ...], Cause] = {}
    for record in records:
        for finding in record.findings:
            cause = found.setdefault(_cause(finding), Cause(finding))
            cause.add(finding, record.problem)
    ordered = sorted(found.values(), key=lambda each: _RANKS[each.finding.check])
    first = [each for each in ordered if each.finding.check != "initcheck"]
    reads = [each for each in ordered if each.finding.check == "initcheck"]
    return first + [each for each in reads if not _follows(each.finding, first)]


def _follows(read: Finding, before: Iterable[Cause]) -> bool:
    """Whether a read of what was never written may follow from another cause, which keeps it: a
    write that came too late, or one that was left out."""
    if read.array in _ARGUMENTS:
        return False
    for each in before:
        if _writes(each.finding) and read.array in each.arrays:
            each.follows.append(read)
            return True
    return False


def _writes(finding: Finding) -> bool:
    if finding.check == "racecheck":
        return True
    return finding.check == "memcheck" and not finding.here.instruction.startswith("ld")


def _cause(finding: Finding) -> tuple[object, ...]:
    """What findings of one cause have in common."""
    if finding.check == "racecheck":
        if finding.cause:
            return finding.check, finding.cause
        return finding.check, _places(finding)
    if finding.kind in _USED_ELSEWHERE:
        return finding.check, finding.kind, finding.array, way(finding.here)
    return finding.check, finding.kind, _places(finding)


def _places(finding: Finding) -> tuple[str, frozenset[tuple[str, ...]]]:
    """The array and the lines, whichever access came first."""
    return finding.array, frozenset((way(finding.here), way(finding.other)))


def way(site: AccessSite | None) -> tuple[str, ...]:
    """The source line of an access, and the calls that lead there."""
    return (str(site), *site.called_from) if site is not None else ()
