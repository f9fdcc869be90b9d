"""Write the generated parts of `docs/ladder` anew: counters, pictures, speeds.

Run it after a kernel, a counter or the model has changed, or results have been measured:
`.venv/bin/python benchmarks/render_docs.py`. It needs no GPU and takes about a minute.
"""

from __future__ import annotations

from pathlib import Path

from gemmkit.analysis.explain import Facts, gather
from gemmkit.analysis.model import predict
from gemmkit.analysis.trace import trace
from gemmkit.gpu import find_board
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.ladder import LADDER
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
SIZES = (1024, 2048, 4096)
# Large enough that every rung's grid fills the board; counters are of 1024³.
COMPARED = GemmProblem(4096, 4096, 4096)


def rung_facts(kernel: Kernel) -> Facts:
    return gather(kernel, COMPARED, BOARD)


def sections(kernel: Kernel, facts: Facts, before: Facts | None) -> dict[str, str]:
    cubes = {size: GemmProblem(size, size, size) for size in SIZES}
    predictions = {
        size: facts.prediction if cube == COMPARED else predict(kernel, cube, BOARD)
        for size, cube in cubes.items()
    }
    measured = read_records(ROOT / "benchmarks" / "results" / f"{BOARD.key}-ladder.json")
    found = {
        PICTURES: pictures_section(kernel, FOLDER),
        COUNTERS: counters_section(facts, before),
        LIMITS: limits_section(kernel.name, predictions, measured),
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
    seen = trace(kernel, GemmProblem(1024, 1024, 1024), BOARD)
    return {f"{each.name}.svg": each.to_svg() for each in shown_pictures(seen)}


def main() -> None:
    images = PAGES / FOLDER
    images.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, str] = {}
    before: Facts | None = None
    for kernel in LADDER:
        facts = rung_facts(kernel)
        page = PAGES / page_name(kernel)
        text = replace_generated(
            page.read_text("utf-8"), sections(kernel, facts, before), writer=WRITER
        )
        page.write_text(text, "utf-8")
        drawn |= rung_pictures(kernel)
        before = facts
        print(page.relative_to(ROOT))
    for old in images.glob("*.svg"):
        if old.name not in drawn:
            old.unlink()
    for name, svg in drawn.items():
        (images / name).write_text(svg, "utf-8")


if __name__ == "__main__":
    main()
