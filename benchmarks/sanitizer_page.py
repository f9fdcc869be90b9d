"""The generated part of docs/sanitizers.md: planted bugs that each tool finds, as tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemmkit.report.layout import MISSING, Cell, Column, Row, Table
from gemmkit.report.readme import replace_generated

PAGE = Path(__file__).resolve().parent.parent / "docs" / "sanitizers.md"
SUFFIX = "-sanitizer.json"
SECTION, WRITER = "comparison", "benchmarks/compare_sanitizer.py --render"

# The first thing that a bug is expected to show decides its row.
CLASSES = {
    "memcheck": "memory out of bounds, or misaligned",
    "initcheck": "reads of memory that nobody has written",
    "racecheck": "races",
    "synccheck": "barriers that not all threads reach, counters left set",
    "wrong result": "arithmetic: wrong index, sign, order",
}


def write_page(results: Path) -> None:
    """Replace the page's generated part by what the result files of a folder say."""
    PAGE.write_text(rendered(PAGE.read_text("utf-8"), results), "utf-8")


def rendered(page: str, results: Path) -> str:
    """The page with its generated part made anew."""
    parts = [
        section(json.loads(path.read_text("utf-8"))) for path in sorted(results.glob(f"*{SUFFIX}"))
    ]
    return replace_generated(page, {SECTION: "\n".join(parts)}, WRITER)


def section(found: Mapping[str, Any]) -> str:
    """One GPU's comparison, in Markdown."""
    planted = [each for each in found["targets"] if "expects" in each]
    clean = [each for each in found["targets"] if "expects" not in each]
    ran = [each for each in clean if _ran(each)]
    alarms = sum(bool(each["gemmkit"]) for each in clean), sum(map(_reported, ran))
    environment = found["environment"]
    return (
        f"{len(planted)} bugs; `compute-sanitizer` {_version(found['version'])} on an "
        f"{found['gpu']}, driver {environment['driver']}, its four tools one after the other.\n\n"
        f"{_classes(planted, found['gpu']).to_markdown()}\n"
        f"On the kernels as they are, gemmkit raised {alarms[0]} false alarms in {len(clean)} "
        f"runs, and compute-sanitizer {alarms[1]} in {len(ran)}.\n\n"
        f"{_bugs(planted, found['gpu']).to_markdown()}"
    )


def _classes(planted: Sequence[Mapping[str, Any]], gpu: str) -> Table:
    rows = []
    for kind, words in CLASSES.items():
        of_kind = [each for each in planted if each["expects"][0] == kind]
        rows.append(_counts(words, of_kind))
    rows.append(_counts("all", planted))
    columns = (
        Column("kind of bug", "left"),
        Column("planted"),
        Column("found by `gemmkit check`"),
        Column("found by compute-sanitizer"),
        Column(f"result on the {gpu} right all the same"),
    )
    return Table("", columns, tuple(rows))


def _counts(words: str, bugs: Sequence[Mapping[str, Any]]) -> Row:
    ran = [each for each in bugs if _ran(each)]
    of_those = f" of {len(ran)}" if len(ran) < len(bugs) else ""
    return Row((
        Cell(words),
        Cell(str(len(bugs))),
        Cell(str(sum(bool(each["gemmkit"]) for each in bugs))),
        Cell(f"{sum(map(_reported, ran))}{of_those}"),
        Cell(f"{sum(each['gpu_result'] == 'right' for each in ran)}{of_those}"),
    ))  # fmt: skip


def _bugs(planted: Sequence[Mapping[str, Any]], gpu: str) -> Table:
    columns = (
        Column("kernel", "left"),
        Column("planted bug", "left"),
        Column("`gemmkit check`", "left"),
        Column("compute-sanitizer", "left"),
        Column(f"result on the {gpu}", "left"),
    )
    rows = [
        Row((
            Cell(f"`{each['kernel']}`"),
            Cell(each["target"].partition(": ")[2]),
            Cell(", ".join(each["gemmkit"]) or MISSING),
            Cell(_tools(each)),
            Cell(each["gpu_result"]),
        ))
        for each in planted
    ]  # fmt: skip
    return Table("", columns, tuple(rows))


def _tools(target: Mapping[str, Any]) -> str:
    if not _ran(target):
        return str(target["gpu_result"])
    runs = target["compute_sanitizer"]
    found = [tool for tool, run in runs.items() if run["errors"]]
    ended = all(run["timed_out"] for run in runs.values())
    return ", ".join(found) or ("never ends" if ended else MISSING)


def _ran(target: Mapping[str, Any]) -> bool:
    """Whether the tools have run on the target; bugs may be planted before they do."""
    return bool(target["compute_sanitizer"])


def _reported(target: Mapping[str, Any]) -> bool:
    return any(run["errors"] for run in target["compute_sanitizer"].values())


def _version(text: str) -> str:
    """`Version 2025.3.1.0 (build …) (…)` without what follows the number."""
    return text.removeprefix("Version ").partition(" ")[0]
