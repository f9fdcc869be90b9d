"""What each kernel of a ladder changes against the one before: a sentence per step, and how to have
it explained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from gemmkit.analysis import count_loads
from gemmkit.analysis.explain.wording import compared, differ, number
from gemmkit.errors import UsageError
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.record import Record
from gemmkit.report.document import Remark, Remarks, Section

TITLE = "What each step changes"


def steps_section(records: Sequence[Record]) -> Section | None:
    """A remark per pair of kernels in a row; None unless kernels of one problem follow each other.

    A step is told by its speed if both kernels were timed, otherwise by the counter of loads that
    changed most. A wrong result is compared with nothing.
    """
    if len({record.problem for record in records}) != 1:
        return None
    found = tuple(
        _step(record, before)
        for before, record in pairwise(each for each in records if each.correct)
        if record.kernel != before.kernel
    )
    return Section(TITLE, (Remarks(found),), leading=True) if found else None


def _step(record: Record, before: Record) -> Remark:
    name, other = record.kernel, before.kernel
    if record.tflops and before.tflops:
        this, that, what = record.tflops, before.tflops, "TFLOP/s"
        mark = ("good" if this > that else "bad") if differ(this, that) else "neither"
        if mark == "neither":
            text = f"{name}: as fast as {other}."
        elif this > that:
            text = f"{name}: {number(this / that)} times as fast as {other}."
        else:
            text = f"{name}: {number(that / this)} times slower than {other}."
    else:
        mine, theirs = _counts(record), _counts(before)
        both = [each for each in mine if mine[each] and theirs.get(each)]
        if not both:
            return Remark(f"{name}: nothing to compare with {other}.", mark="neither")
        what = max(both, key=lambda each: abs(math.log(mine[each] / theirs[each])))
        this, that = mine[what], theirs[what]
        mark = "good" if differ(this, that) and this < that else "neither"
        if not differ(this, that):
            text = f"{name}: as many loads, sectors and wavefronts as {other}."
        else:
            change = compared(this, that)
            link = "as" if change.endswith("as many") else "than"
            text = f"{name}: {change} {what} {link} {other}."
    if command := _command(record, other):
        text += f" For the reasons, run `{command}`."
    return Remark(text, (f"{what}: {number(this)} | {number(that)}",), mark)


def _counts(record: Record) -> Mapping[str, float]:
    """The counters of loads by which steps are told; fewer are better."""
    loads = count_loads(record.counters, record.problem.results)
    if loads is None:
        return {}
    return {
        "global loads per result": loads.global_per_result or 0.0,
        "shared loads per result": loads.shared_per_result or 0.0,
        "sectors of global loads": loads.global_sectors,
        "global-load requests": loads.global_requests,
        "wavefronts of shared loads": loads.shared_wavefronts,
    }


def _command(record: Record, other: str) -> str:
    """What explains the step; empty where a kernel has no name on the command line."""
    problem = record.problem
    try:
        mine, theirs = find_kernel(record.kernel), find_kernel(other)
    except UsageError:
        return ""
    # The groups of a launch may be many, and a configuration may fit one of the two alone.
    if problem.groups or record.config != mine.default.as_dict():
        return ""
    words = ["gemmkit explain", mine.name, "--against", theirs.name, "--shape", problem.shape]
    if problem.layout != "nn":
        words += ["--layout", problem.layout.upper()]
    if problem.dtype != "float32":
        words += ["--dtype", problem.dtype]
    if problem.out_dtype != problem.dtype:
        words += ["--out-dtype", problem.out_dtype]
    if problem.precision != "ieee":
        words += ["--precision", problem.precision]
    if problem.scales:
        words += ["--scales", str(problem.scales)]
    for name, value, default in (("alpha", problem.alpha, 1), ("beta", problem.beta, 0)):
        if value != default:
            words += [f"--{name}", f"{value:g}"]
    if problem.epilogue != "none":
        words += ["--epilogue", problem.epilogue]
    try:
        words += ["--gpu", find_board(record.device.gpu).name.lower().replace(" ", "")]
    except UsageError:
        # A board that was measured, but has no model.
        return ""
    return " ".join(words)
