"""Findings grouped by cause, over problems, lines, threads and arrays.

The same race appears at several pairs of lines, as read after write and as write after read, in A's
tile and in B's; and memory that a race or an out-of-bounds access leaves unwritten is read later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gemmkit.check_record import CheckRecord
from gemmkit.findings import AccessSite, Finding
from gemmkit.record import ProblemRecord

# Memory whose previous contents are not the kernel's own doing.
_ARGUMENTS = frozenset(["A", "B", "C", "bias"])
# An undefined value may be used at many lines: its origin is what counts.
_USED_ELSEWHERE = frozenset(["uninitialized", "absent lane"])
# Causes before consequences.
_RANKS = {"memcheck": 0, "synccheck": 1, "racecheck": 2, "initcheck": 4}
# What a block leaves behind when it ends may be due to a wait that is missing before.
# How the cause of an mbarrier whose phases may be missed begins.
_OVERRUN = "phase-overrun/"
_AT_EXIT = frozenset(["block may have exited", "copy not waited for"])
_EXIT_RANK = 3


@dataclass
class Cause:
    """One cause and its findings: `finding` is the example.

    `others` are its other pairs of lines or arrays, `follows` the uninitialized reads that it may
    have led to, `problems` those that show it, and `count` how often it was seen.
    """

    finding: Finding
    problems: list[ProblemRecord] = field(default_factory=list)
    count: int = 0
    others: list[Finding] = field(default_factory=list)
    follows: list[Finding] = field(default_factory=list)

    @property
    def arrays(self) -> set[str]:
        """The array accessed."""
        return {each.array for each in (self.finding, *self.others)}

    def add(self, finding: Finding, problem: ProblemRecord) -> None:
        """Add a finding with this cause."""
        self.count += finding.count
        if problem not in self.problems:
            self.problems.append(problem)
        known = {_places(each) for each in (self.finding, *self.others)}
        if _places(finding) not in known:
            self.others.append(finding)


def causes(records: Sequence[CheckRecord]) -> list[Cause]:
    """The causes of all findings: invalid accesses first, then divergent barriers, then races,
    then uninitialized reads."""
    found: dict[tuple[object, ...], Cause] = {}
    for record in records:
        for finding in record.findings:
            cause = found.setdefault(_cause(finding), Cause(finding))
            cause.add(finding, record.problem)
            if _is_root(finding) and not _is_root(cause.finding):
                cause.others = [each for each in (cause.finding, *cause.others) if each != finding]
                cause.finding = finding
    ordered = sorted(found.values(), key=_order)
    first = [each for each in ordered if each.finding.check != "initcheck"]
    reads = [each for each in ordered if each.finding.check == "initcheck"]
    return first + [each for each in reads if not _follows(each.finding, first)]


def _is_root(finding: Finding) -> bool:
    """Whether a finding is the overrun of phases from which others of its cause follow."""
    own = "/".join((finding.array, *way(finding.here)))
    return finding.kind == "phase overrun" and finding.cause == f"{_OVERRUN}{own}"


def _order(cause: Cause) -> tuple[int, str, str, int]:
    """By check, then by kind, then by source line; what is found when a block ends, late."""
    finding = cause.finding
    rank = _EXIT_RANK if finding.kind in _AT_EXIT else _RANKS[finding.check]
    return rank, finding.kind, finding.here.file, finding.here.line


def _follows(read: Finding, before: Iterable[Cause]) -> bool:
    """Whether an uninitialized read may follow from another cause, which then keeps it: a write
    that came too late, or one that was left out."""
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
    """The key that findings of one cause share."""
    if finding.cause.startswith(_OVERRUN):
        # Phases that end too early let others go on, and race.
        return (finding.cause,)
    if finding.cause:
        return finding.check, finding.cause
    if finding.check == "racecheck":
        return finding.check, _places(finding)
    if finding.kind in _USED_ELSEWHERE:
        return finding.check, finding.kind, finding.array, way(finding.here)
    return finding.check, finding.kind, _places(finding)


def _places(finding: Finding) -> tuple[str, frozenset[tuple[str, ...]]]:
    """The array and the lines, in either order of the accesses."""
    return finding.array, frozenset((way(finding.here), way(finding.other)))


def way(site: AccessSite | None) -> tuple[str, ...]:
    """The source line of an access, and its call stack."""
    return (str(site), *site.called_from) if site is not None else ()
