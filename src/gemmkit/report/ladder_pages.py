"""The generated parts of the ladder's pages: pictures, counters, limits, comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gemmkit.analysis.explain import Explanation, Facts, Sentence, explain_facts
from gemmkit.analysis.explain.derived import (
    FMA_PER_SHARED_LOAD,
    GLOBAL_LOADS,
    OCCUPANCY,
    REGISTERS,
    RESULTS_IN_FLIGHT,
    RESULTS_PER_THREAD,
    SECTORS_PER_REQUEST,
    SHARED_LOADS,
    SHARED_WAVEFRONTS,
    TFLOPS,
    figures,
)
from gemmkit.analysis.loads import GLOBAL_REQUESTS, GLOBAL_SECTORS
from gemmkit.analysis.prediction import Prediction
from gemmkit.analysis.shared_map import shared_map
from gemmkit.analysis.trace import Trace
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import GemmProblem
from gemmkit.record import Record
from gemmkit.report.explain_text import is_verdict, operand_table
from gemmkit.report.layout import MISSING, Cell, Column, Row, Table, value_text
from gemmkit.report.pictures.drawn import Picture, pictures
from gemmkit.report.pictures.pipelines import cluster_picture, stages_picture
from gemmkit.report.pictures.tensor import fragment_picture, swizzle_picture
from gemmkit.report.translation import Phrases

WRITER = "benchmarks/render_docs.py"
PICTURES, COUNTERS, LIMITS, COMPARISON = "pictures", "counters", "limits", "comparison"
STRIDES = "strides"
# TFLOP/s at 1024³ on an RTX 3090 for each stride, as a step-by-step guide published them.
PUBLISHED_STRIDES: Mapping[int, float] = {1: 2.9, 2: 4.1, 4: 5.1, 8: 6.0, 16: 3.8}
# The pictures on each page: those that show its idea.
SHOWN: Mapping[str, tuple[str, ...]] = {
    "naive_uncoalesced": ("addresses", "tiles"),
    "naive": ("addresses", "tiles"),
    "shared_tiling": ("banks", "tiles"),
    "coarsening_1d": ("banks", "tiles"),
    "coarsening_2d": ("banks", "tiles"),
    "vectorized": ("addresses", "banks"),
    "conflict_free": ("banks", "tiles"),
    "double_buffered": (),
    "warp_tiled": ("banks", "tiles"),
    "async_copy": ("addresses", "tiles"),
    "split_k": ("addresses",),
    "warp_reduce": ("addresses",),
    "stream_k": (),
    "wmma": ("banks",),
    "mma_sync": ("fragments", "swizzle"),
    "mma_pipelined": ("addresses",),
    "wgmma": ("addresses",),
    "tma": ("stages",),
    "warp_specialized": ("stages",),
    "cluster_multicast": ("cluster",),
    "persistent": ("stages",),
}
_CAPTIONS: Mapping[str, str] = {
    "addresses": "addresses that the lanes of warp 0 access",
    "banks": "banks that the lanes of warp 0 access",
    "tiles": "threads that load the tiles of A and B and store the tile of C",
    "fragments": "lanes that hold the elements of A, B and C in mma.m16n8k16",
    "swizzle": "elements in the banks of shared memory, and what a phase of ldmatrix reads",
    "stages": "loads and products over time",
    "cluster": "what each block of a cluster loads, and who gets it",
}
_ROWS = (
    ("global-load requests", GLOBAL_REQUESTS[0]),
    ("sectors of global loads", GLOBAL_SECTORS[0]),
    ("sectors per load request", SECTORS_PER_REQUEST["load"]),
    ("sectors per store request", SECTORS_PER_REQUEST["store"]),
    ("global loads per result", GLOBAL_LOADS),
    ("shared loads per result", SHARED_LOADS),
    ("multiply-adds per shared load", FMA_PER_SHARED_LOAD),
    ("wavefronts of shared loads", SHARED_WAVEFRONTS[0]),
    ("wavefronts of shared stores", SHARED_WAVEFRONTS[1]),
    ("registers per thread", REGISTERS),
    ("theoretical occupancy, %", OCCUPANCY),
    ("results per thread", RESULTS_PER_THREAD),
)


def page_name(kernel: Kernel) -> str:
    """The file of a rung's page."""
    return f"{kernel.rung:02}-{kernel.name}.md"


def shown_pictures(seen: Trace, gpu: GpuSpec) -> tuple[Picture, ...]:
    """The pictures of a rung's page."""
    shown = SHOWN.get(seen.kernel, ())
    wanted = {f"{seen.kernel}-{what}" for what in shown}
    found = [picture for picture in pictures(seen) if picture.name in wanted]
    if "fragments" in shown:
        found.append(fragment_picture(seen.kernel))
    if "swizzle" in shown and (places := shared_map(seen, gpu)) is not None:
        found.append(swizzle_picture(places))
    if "stages" in shown:
        found.append(stages_picture(seen.kernel))
    if "cluster" in shown:
        found.append(cluster_picture(seen.kernel))
    return tuple(found)


def pictures_section(kernel: Kernel, folder: str, phrases: Phrases) -> str:
    """Links to the pictures of a rung's page; `folder` is relative to the page.

    `phrases` are, here as below, those of the page's language.
    """
    name = kernel.name
    return "\n".join(
        f"![{phrases.say(f'{name}: {_CAPTIONS[what]}')}]({folder}/{name}-{what}.svg)\n"
        for what in SHOWN.get(name, ())
    )


def counters_section(facts: Facts, before: Facts | None, phrases: Phrases) -> str:
    """Metrics beside those of the previous rung, and the accesses by operand."""
    explained = explain_facts(facts)
    columns = [explained]
    if before is not None:
        columns.append(explain_facts(before))
    metrics = phrases.table(_metrics_table(columns)).to_markdown()
    operands = phrases.table(operand_table(explained)).to_markdown()
    caption = f"Counted at {explained.counted} with no GPU, compiled for an {explained.gpu}:"
    shown = f"{phrases.say(caption)}\n\n{metrics}"
    return f"{shown}\n{phrases.say('By operand:')}\n\n{operands}" if explained.operands else shown


def _metrics_table(explained: Sequence[Explanation]) -> Table:
    rows = []
    for label, metric in _ROWS:
        values = [each.metrics.get(metric) for each in explained]
        if any(values):
            texts = (label, *map(value_text, values), f"`{metric}`")
            rows.append(Row(tuple(map(Cell, texts))))
    heads = (Column(f"`{each.kernel}`") for each in explained)
    return Table("", (Column("", "left"), *heads, Column("metric", "left")), tuple(rows))


def limits_section(
    kernel: Kernel,
    predictions: Mapping[GemmProblem, Prediction | None],
    measured: Sequence[Record],
    phrases: Phrases,
) -> str:
    """Predicted and measured speed per problem, and the limiter in the model.

    Args:
        kernel: in its default configuration.
        predictions: problem to prediction.
        measured: timed records on the same board; the first for each problem counts.
        phrases: of the page's language.
    """
    default = kernel.default.as_dict()
    speeds: dict[tuple[int, int, int], float | None] = {}
    for record in measured:
        seen = record.problem
        if (record.kernel, record.config, seen.epilogue) == (kernel.name, default, "none"):
            speeds.setdefault((seen.m, seen.n, seen.k), record.tflops)
    rows = tuple(
        Row(
            (
                Cell(_size(problem)),
                Cell(f"{prediction.tflops:.1f}"),
                Cell(MISSING if (speed := _speed(speeds, problem)) is None else f"{speed:.1f}"),
                Cell(prediction.limiter),
                Cell(f"{100 * prediction.busy_share:.0f} %"),
            )
        )
        for problem, prediction in predictions.items()
        if prediction is not None
    )
    columns = (
        Column("size"),
        Column("predicted, TFLOP/s"),
        Column("measured, TFLOP/s"),
        Column("limiter in the model", "left"),
        Column("SMs busy"),
    )
    return phrases.table(Table("", columns, rows)).to_markdown()


def _size(problem: GemmProblem) -> str:
    cube = problem.m == problem.n == problem.k
    return f"{problem.m}³" if cube else f"{problem.m}×{problem.n}×{problem.k}"


def _speed(
    speeds: Mapping[tuple[int, int, int], float | None], problem: GemmProblem
) -> float | None:
    return speeds.get((problem.m, problem.n, problem.k))


def comparison_section(facts: Facts, before: Facts, phrases: Phrases) -> str:
    """Why this rung is faster or slower than the previous one, with the metric of each reason."""
    explained = explain_facts(facts, before)
    heads = {
        "this": f"Advantages of `{facts.kernel.name}`",
        "other": f"Advantages of `{before.kernel.name}`",
        "neither": "Other differences",
    }

    def item(sentence: Sentence) -> str:
        return f"- {phrases.joined(sentence.text, f'(`{sentence.evidence[0].metric}`)')}\n"

    verdict = [each for each in explained.comparison if is_verdict(each)]
    rest = [each for each in explained.comparison if not is_verdict(each)]
    parts = ["".join(map(item, verdict))]
    for favors in dict.fromkeys(each.favors for each in rest):
        items = [item(each) for each in rest if each.favors == favors]
        parts.append(f"**{phrases.say(heads[favors])}**\n\n{''.join(items)}")
    return "\n".join(parts)


def strides_section(facts: Mapping[int, Facts], phrases: Phrases) -> str:
    """Rung 4 by number of results per thread: occupancy falls, but speed does not.

    Args:
        facts: stride to facts, on the board of `PUBLISHED_STRIDES`.
        phrases: of the page's language.
    """
    metrics = (REGISTERS, OCCUPANCY, RESULTS_IN_FLIGHT, GLOBAL_LOADS, SHARED_LOADS, TFLOPS)
    rows = []
    for stride, each in facts.items():
        values = figures(each)
        published = PUBLISHED_STRIDES.get(stride)
        cells = (Cell(value_text(values.get(metric))) for metric in metrics)
        shown = Cell(MISSING if published is None else f"{published}")
        rows.append(Row((Cell(str(stride)), *cells, shown)))
    columns = (
        Column("stride"),
        Column("registers"),
        Column("occupancy, %"),
        Column("results in flight per SM"),
        Column("global loads per result"),
        Column("shared loads per result"),
        Column("predicted, TFLOP/s"),
        Column("published, TFLOP/s"),
    )
    return phrases.table(Table("", columns, tuple(rows))).to_markdown()
