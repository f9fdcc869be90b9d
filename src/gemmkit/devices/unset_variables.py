"""Variables used before they are set, by the compiler's warnings: the PTX may hold no trace of
them, so that no run shows it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gemmkit.emulator.ptx.module import Instruction
from gemmkit.findings import AccessSite, Finding
from gemmkit.jit.diagnostics import unset_variables


def compiler_findings(
    log: str, body: Iterable[Instruction], found: Sequence[Finding]
) -> tuple[Finding, ...]:
    """Findings from a compiler's warnings on lines of a kernel; none for lines in `found`."""
    places = [each.source for each in body if each.source is not None]
    lines = {(place.file, place.line) for place in places}
    own = [place for place in places if not place.called_from]
    known = {
        (site.file, site.line)
        for each in found
        for site in (each.here, each.other)
        if each.kind == "uninitialized" and site is not None
    }
    findings = []
    for file, line, name in unset_variables(log):
        of_kernel = [place.line for place in own if place.file == file]
        within = min(of_kernel, default=line + 1) <= line <= max(of_kernel, default=line - 1)
        if (file, line) in known or not (within or (file, line) in lines):
            continue
        here = AccessSite(file=file, line=line, instruction="", thread=None)
        message = f"uninitialized: NVRTC warns that '{name}' is used before it is set, at {here}"
        findings.append(
            Finding(
                check="initcheck", kind="uninitialized", message=message, block=(0, 0, 0), here=here
            )
        )
    return tuple(findings)
