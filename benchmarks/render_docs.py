"""Write the generated parts of the rungs' pages anew, in each language: counters, pictures, speeds.

Run it after a kernel, a counter or the model has changed, or results have been measured:
`.venv/bin/python benchmarks/render_docs.py`. It needs no GPU and takes about a minute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from os.path import relpath
from pathlib import Path
from typing import NamedTuple

from gemmkit.analysis.explain import Facts, gather
from gemmkit.analysis.model import predict
from gemmkit.analysis.prediction import Prediction
from gemmkit.analysis.trace import trace
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import LADDER, find_kernel
from gemmkit.kernels.fitting import fitting, in_types_of
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import GemmProblem
from gemmkit.record import Record
from gemmkit.report.ladder_pages import (
    COMPARISON,
    COUNTERS,
    LIMITS,
    PICTURES,
    PUBLISHED_STRIDES,
    STRIDES,
    WRITER,
    comparison_section,
    counters_section,
    limits_section,
    page_name,
    pictures_section,
    shown_pictures,
    strides_section,
)
from gemmkit.report.readme import read_records, replace_generated
from gemmkit.report.translation import CHINESE, ENGLISH, phrases

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
# The pages of each language, and the pictures, which have none.
PAGES = {ENGLISH: DOCS / "ladder", CHINESE: DOCS / "zh" / "ladder"}
IMAGES = DOCS / "ladder" / "images"
BOARD = find_board("h100")
# Large enough that every rung's grid fills the board; counters are of 1024³.
COMPARED = GemmProblem(4096, 4096, 4096)
CUBES = (GemmProblem(1024, 1024, 1024), GemmProblem(2048, 2048, 2048), COMPARED)


class Shown(NamedTuple):
    """What a page shows its rung on: the rung that it is compared with, and problems, of which one
    is for the comparison, by default the first."""

    against: str
    problems: tuple[GemmProblem, ...]
    compared: int = 0


# Rungs for shapes of their own, and those that follow another one than the one before.
SHOWN_ON = {
    "split_k": Shown("async_copy", tuple(GemmProblem(n, n, n) for n in (512, 256, 1024))),
    "warp_reduce": Shown("split_k", tuple(GemmProblem(m, 4096, 4096) for m in (16, 8, 1))),
    "stream_k": Shown(
        "async_copy", (GemmProblem(3072, 3072, 1024), GemmProblem(1536, 1536, 1024), *CUBES)
    ),
    # The last one for any shape that does all that it does, but on the FMA pipe.
    "wmma": Shown("warp_tiled", CUBES, compared=CUBES.index(COMPARED)),
}
RECORDS = ("ladder", "sweep", "configs", "odd")


class Figures(NamedTuple):
    """What the page of a rung shows, in any language: what is known of the rung and of the one that
    it is compared with, predictions, what was measured, and the rung with each stride."""

    facts: Facts
    before: Facts | None
    predictions: Mapping[GemmProblem, Prediction]
    measured: Sequence[Record]
    strides: Mapping[int, Facts]


def rung_facts(kernel: Kernel, problem: GemmProblem = COMPARED) -> Facts:
    return gather(kernel, in_types_of(kernel, problem), BOARD)


def figures(facts: Facts, before: Facts | None) -> Figures:
    kernel = facts.kernel
    shown = SHOWN_ON.get(kernel.name)
    problems = [
        in_types_of(kernel, problem) for problem in (shown.problems if shown is not None else CUBES)
    ]
    predictions = {
        problem: facts.prediction if problem == facts.problem else predict(kernel, problem, BOARD)
        for problem in problems
    }
    with_strides = strides(kernel) if kernel.name == "coarsening_1d" else {}
    return Figures(facts, before, predictions, measurements(), with_strides)


@cache
def measurements() -> Sequence[Record]:
    results = ROOT / "benchmarks" / "results"
    paths = (results / f"{BOARD.key}-{name}.json" for name in RECORDS)
    return [record for path in paths if path.is_file() for record in read_records(path)]


def sections(shown: Figures, language: str = ENGLISH) -> dict[str, str]:
    words, facts, kernel = phrases(language), shown.facts, shown.facts.kernel
    found = {
        PICTURES: pictures_section(kernel, relpath(IMAGES, PAGES[language]), words),
        COUNTERS: counters_section(facts, shown.before, words),
        LIMITS: limits_section(kernel, shown.predictions, shown.measured, words),
    }
    if shown.before is not None:
        found[COMPARISON] = comparison_section(facts, shown.before, words)
    if shown.strides:
        found[STRIDES] = strides_section(shown.strides, words)
    return found


def strides(kernel: Kernel) -> dict[int, Facts]:
    problem, board = GemmProblem(1024, 1024, 1024), find_board("rtx3090")
    return {
        stride: gather(kernel, problem, board, config=kernel.configure({"stride": stride}))
        for stride in PUBLISHED_STRIDES
    }


def rung_pictures(kernel: Kernel) -> dict[str, str]:
    """File name to SVG."""
    problem = in_types_of(kernel, GemmProblem(1024, 1024, 1024))
    seen = trace(kernel, fitting(kernel, problem, BOARD), BOARD)
    return {f"{each.name}.svg": each.to_svg() for each in shown_pictures(seen, BOARD)}


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, str] = {}
    last: Facts | None = None
    for kernel in LADDER:
        shown = SHOWN_ON.get(kernel.name)
        if shown is None:
            facts, before = rung_facts(kernel), last
        else:
            both = (kernel, find_kernel(shown.against))
            problem = shown.problems[shown.compared]
            facts, before = (rung_facts(each, problem) for each in both)
        seen = figures(facts, before)
        for language, folder in PAGES.items():
            page = folder / page_name(kernel)
            parts = sections(seen, language)
            page.write_text(
                replace_generated(page.read_text("utf-8"), parts, writer=WRITER), "utf-8"
            )
            print(page.relative_to(ROOT))
        drawn |= rung_pictures(kernel)
        last = facts
    for old in IMAGES.glob("*.svg"):
        if old.name not in drawn:
            old.unlink()
    for name, svg in drawn.items():
        (IMAGES / name).write_text(svg, "utf-8")


if __name__ == "__main__":
    main()
