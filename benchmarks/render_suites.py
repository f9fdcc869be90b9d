"""Write the tables in `docs` of what `run_suites.py` measured anew: layers, groups, types, layouts.

`.venv/bin/python benchmarks/render_suites.py`; no GPU needed. A table's file is
`results/h100-NAME.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from gemmkit.record import Record
from gemmkit.report.comparison import find_peer, fused_overhead, geometric_mean
from gemmkit.report.groups import groups_table
from gemmkit.report.kinds import compared_peer, kinds_table
from gemmkit.report.layers import layers_table
from gemmkit.report.layout import Cell, Column, Row, Table
from gemmkit.report.readme import read_records, replace_generated
from gemmkit.report.sustained import sustained_tables

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
WRITER = "benchmarks/render_suites.py"


def layers(records: Sequence[Record]) -> str:
    wrong = sum(not each.correct for each in records)
    verdict = "all right" if not wrong else f"{wrong} WRONG"
    facts = records[0].environment
    return (
        f"{layers_table(records, '').to_markdown()}\n"
        "Medians, timed in turn: first as CUDA graphs, which is the GPU time alone, then as "
        "consecutive calls, which the host may limit. The limiter is that of the graph: percent of "
        "peak counts the layer's own multiply-adds, and its arrays once; percent of the time comes "
        "from the profiler. Results against float64: "
        f"{verdict}. {_facts(records, cudnn=facts['cudnn'])}, TF32 off.\n"
    )


def kinds(records: Sequence[Record]) -> str:
    peers = dict.fromkeys(
        peer.name.partition(" (")[0].partition(",")[0]
        for record in records
        for peer in record.peers
        if peer.vendor in ("cublas", "torch")
    )
    tried = max(peer.candidates for record in records for peer in record.peers)
    default = "its default choice, with no other candidates tried"
    how = "the fastest of its candidates" if tried > 1 else default
    peer = f"Peer: {'; '.join(peers)}, {how}."
    return f"{kinds_table(records).to_markdown()}\n{_overall(records)} {peer} {_facts(records)}.\n"


def _overall(records: Sequence[Record]) -> str:
    """The ratios to the peer of each type, over all suites and layouts."""
    found: dict[str, list[float]] = {}
    for record in records:
        if (peer := compared_peer(record)) is not None:
            found.setdefault(record.problem.types, []).append(peer.speedup)
    each = "; ".join(
        f"{types}, {geometric_mean(ratios):.2f} at {len(ratios)} problems, "
        f"{min(ratios):.2f} at least"
        for types, ratios in found.items()
    )
    return f"× peer, geometric mean: {each}."


def groups(records: Sequence[Record]) -> str:
    wrong = sum(not each.correct for record in records for each in (record, *record.peers))
    verdict = "all right" if not wrong else f"{wrong} WRONG"
    return (
        f"{groups_table(records, '').to_markdown()}\n"
        "×: times of others over gemmkit's; above 1 gemmkit is faster. cuBLAS's routines are "
        "`cublasSgemmGroupedBatched` and `cublasSgemmBatched`; `torch.mm` is a launch for each "
        f"product. CUDA graphs, timed in turn; results: {verdict}. {_facts(records)}.\n"
    )


def fused(records: Sequence[Record]) -> str:
    """Epilogues beside cuBLAS's best, PyTorch's operations one by one, and its compiled ones."""
    peers = {
        "cuBLAS": ("cublas", None),
        "torch": ("torch", None),
        "linear, compiled": ("linear", "compiled"),
    }
    columns = (
        Column("M = N = K"),
        Column("epilogue", "left"),
        *map(Column, ("µs", "over plain", *(f"× {name}" for name in peers), "result")),
    )

    def row(record: Record) -> Row:
        assert record.time_us is not None
        found = [find_peer(record, *peer) for peer in peers.values()]
        overhead = fused_overhead(record)
        texts = (
            f"{record.problem.m}",
            record.problem.epilogue,
            f"{record.time_us.median:,.1f}",
            "" if overhead is None else f"{overhead:+.0%}".replace("%", " %"),
            *("" if each is None else f"{each.speedup:.2f}" for each in found),
            "right" if record.correct else "WRONG",
        )
        return Row(tuple(map(Cell, texts)))

    table = Table("", columns, tuple(map(row, records)))
    return f"{table.to_markdown()}\n{_facts(records)}.\n"


def at_the_limit(records: Sequence[Record]) -> str:
    """Bursts, speed and energy at the power limit, beside cuBLAS."""
    (table,) = sustained_tables(records)
    wrong = sum(not each.correct for each in records)
    verdict = "all right" if not wrong else f"{wrong} WRONG"
    return f"{table.to_markdown()}\nResults: {verdict}. {_facts(records)}.\n"


class Section(NamedTuple):
    """A part of a page that a file of results gives."""

    page: str
    file: str
    text: Callable[[Sequence[Record]], str]


SECTIONS = {
    "layers": Section("library.md", "h100-layers.json", layers),
    "grouped products": Section("library.md", "h100-grouped.json", groups),
    "layouts": Section("benchmark.md", "h100-layouts.json", kinds),
    "half precision": Section("benchmark.md", "h100-half.json", kinds),
    "half precision, fused": Section("benchmark.md", "h100-half-fused.json", fused),
    "half precision, few rows": Section("benchmark.md", "h100-half-llm.json", kinds),
    "half precision, unaligned rows": Section("benchmark.md", "h100-half-unaligned.json", kinds),
    "half precision on an H200": Section("benchmark.md", "h200-half.json", kinds),
    "half precision on an H200, fused": Section("benchmark.md", "h200-half-fused.json", fused),
    "half precision on an H200, few rows": Section("benchmark.md", "h200-half-llm.json", kinds),
    "half precision on an H200, batches": Section("benchmark.md", "h200-half-batched.json", kinds),
    "tf32 on an H200": Section("benchmark.md", "h200-tf32.json", kinds),
    "power limit": Section("benchmark.md", "h100-sustained-half.json", at_the_limit),
    "power limit on an H200": Section("benchmark.md", "h200-sustained-half.json", at_the_limit),
    "power limit, fp32": Section("benchmark.md", "h100-sustained-fp32.json", at_the_limit),
    "power limit, fp8": Section("benchmark.md", "h100-sustained-fp8.json", at_the_limit),
    "double precision": Section("benchmark.md", "h100-double.json", kinds),
    "double precision on an H200": Section("benchmark.md", "h200-double.json", kinds),
}


def section(name: str) -> str:
    return SECTIONS[name].text(read_records(RESULTS / SECTIONS[name].file))


def _facts(records: Sequence[Record], **more: object) -> str:
    facts = records[0].environment
    told = {"PyTorch": facts.get("torch"), "cuDNN": more.get("cudnn")}
    words = [facts["gpu"], *(f"{key} {value}" for key, value in told.items() if value)]
    if "buffers" in facts:
        words.append(f"buffers: {facts['buffers']}")
    commits = dict.fromkeys(each.environment.get("commit", "unknown") for each in records)
    return f"{', '.join(words)}, commit {' and '.join(map(str, commits))}"


def main() -> None:
    for name, (page, *_) in SECTIONS.items():
        path = ROOT / "docs" / page
        text = replace_generated(path.read_text("utf-8"), {name: section(name)}, WRITER)
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
