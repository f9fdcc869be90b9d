"""Write the generated parts of `docs/ladder` anew: counters, pictures, speeds.

Run it after a kernel, a counter or the model has changed, or results have been measured:
`.venv/bin/python benchmarks/render_docs.py`. It needs no GPU and takes about a minute.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gemmkit.analysis.explain import Facts, gather
from gemmkit.analysis.model import predict
from gemmkit.analysis.trace import trace
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import LADDER, find_kernel
from gemmkit.kernels.fitting import fitting
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import GemmProblem
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

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "ladder"
FOLDER = "images"
BOARD = find_board("h100")
# Large enough that every rung's grid fills the board; counters are of 1024³.
COMPARED = GemmProblem(4096, 4096, 4096)
CUBES = (GemmProblem(1024, 1024, 1024), GemmProblem(2048, 2048, 2048), COMPARED)


class Shown(NamedTuple):
    """What a page shows its rung on: the rung that it is compared with, and problems, the first of
    them for the comparison."""

    against: str
    problems: tuple[GemmProblem, ...]


# Rungs for shapes of their own.
SHOWN_ON = {
    "split_k": Shown("async_copy", tuple(GemmProblem(n, n, n) for n in (512, 256, 1024))),
    "warp_reduce": Shown("split_k", tuple(GemmProblem(m, 4096, 4096) for m in (16, 8, 1))),
    "stream_k": Shown(
        "async_copy", (GemmProblem(3072, 3072, 1024), GemmProblem(1536, 1536, 1024), *CUBES)
    ),
}
RECORDS = ("ladder", "sweep", "configs", "odd")


def rung_facts(kernel: Kernel, problem: GemmProblem = COMPARED) -> Facts:
    return gather(kernel, problem, BOARD)


def sections(kernel: Kernel, facts: Facts, before: Facts | None) -> dict[str, str]:
    shown = SHOWN_ON.get(kernel.name)
    predictions = {
        problem: facts.prediction if problem == facts.problem else predict(kernel, problem, BOARD)
        for problem in (shown.problems if shown is not None else CUBES)
    }
    results = ROOT / "benchmarks" / "results"
    paths = (results / f"{BOARD.key}-{name}.json" for name in RECORDS)
    measured = [record for path in paths if path.is_file() for record in read_records(path)]
    found = {
        PICTURES: pictures_section(kernel, FOLDER),
        COUNTERS: counters_section(facts, before),
        LIMITS: limits_section(kernel, predictions, measured),
    }
    if before is not None:
        found[COMPARISON] = comparison_section(facts, before)
    if kernel.name == "coarsening_1d":
        found[STRIDES] = strides_section(strides(kernel))
    return found


def strides(kernel: Kernel) -> dict[int, Facts]:
    problem, board = GemmProblem(1024, 1024, 1024), find_board("rtx3090")
    return {
        stride: gather(kernel, problem, board, config=kernel.configure({"stride": stride}))
        for stride in PUBLISHED_STRIDES
    }


def rung_pictures(kernel: Kernel) -> dict[str, str]:
    """File name to SVG."""
    seen = trace(kernel, fitting(kernel, GemmProblem(1024, 1024, 1024), BOARD), BOARD)
    return {f"{each.name}.svg": each.to_svg() for each in shown_pictures(seen)}


def main() -> None:
    images = PAGES / FOLDER
    images.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, str] = {}
    last: Facts | None = None
    for kernel in LADDER:
        shown = SHOWN_ON.get(kernel.name)
        if shown is None:
            facts, before = rung_facts(kernel), last
        else:
            both = (kernel, find_kernel(shown.against))
            facts, before = (rung_facts(each, shown.problems[0]) for each in both)
        page = PAGES / page_name(kernel)
        text = replace_generated(
            page.read_text("utf-8"), sections(kernel, facts, before), writer=WRITER
        )
        page.write_text(text, "utf-8")
        drawn |= rung_pictures(kernel)
        last = facts
        print(page.relative_to(ROOT))
    for old in images.glob("*.svg"):
        if old.name not in drawn:
            old.unlink()
    for name, svg in drawn.items():
        (images / name).write_text(svg, "utf-8")


if __name__ == "__main__":
    main()
