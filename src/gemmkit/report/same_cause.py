"""The other lines of a cause in a finding's text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gemmkit.findings import AccessSite, Finding
from gemmkit.report.causes import Cause, way

SHOWN_OTHERS = 4
# One fence may end many findings of this kind.
_NO_PROXY_FENCE = "missing proxy fence"


def same_cause(each: Cause) -> Iterator[str]:
    """What else a cause shows in."""
    if each.finding.kind == _NO_PROXY_FENCE:
        yield from _accesses(each)
    else:
        yield from listed("the same", each.others, each.finding)


def _accesses(each: Cause) -> Iterator[str]:
    """The other lines that one proxy fence concerns: in one sentence, all of them."""
    first, parts = (each.finding.here, each.finding.other), []
    for place, words in enumerate(("read or overwritten", "written")):
        sites = {
            way(site): site for site in ((x.here, x.other)[place] for x in each.others) if site
        }
        sites.pop(way(first[place]), None)
        if sites:
            parts.append(f"{words} at {', '.join(map(_called, sites.values()))}")
    if parts:
        yield f"also {'; '.join(parts)}"


def _called(site: AccessSite) -> str:
    return f"{site} (called at {site.called_from[0]})" if site.called_from else str(site)


def listed(head: str, findings: Sequence[Finding], shown: Finding | None = None) -> Iterator[str]:
    """Other findings with the same cause, one per line; after the first four, their number.

    What differs from `shown`, or from a line before, only by the call that it was inlined at is
    told with that call.
    """
    told = {_sentence(shown)} if shown is not None else set()
    lines: list[str] = []
    for finding in findings:
        line = _sentence(finding)
        if line in told:
            line = _sentence(finding, calls=True)
        if line not in told:
            told.add(line)
            lines.append(line)
    yield from (f"{head}: {line}" for line in lines[:SHOWN_OTHERS])
    if len(lines) > SHOWN_OTHERS:
        yield f"{head}: {len(lines) - SHOWN_OTHERS} more; --json lists them"


def _sentence(finding: Finding, *, calls: bool = False) -> str:
    """The kind, the array and the lines of a finding, with the call of each if asked for."""
    name = _called if calls else str
    sites = dict.fromkeys(name(each) for each in (finding.here, finding.other) if each)
    array = f" '{finding.array}'" if finding.array else ""
    return f"{finding.kind},{array} at {' and '.join(sites)}"
