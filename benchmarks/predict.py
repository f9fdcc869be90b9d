"""Predict every timed launch in `results`, and set predicted beside measured speed.

`.venv/bin/python benchmarks/predict.py` predicts the rows of `h100-ladder.json`,
`h100-sweep.json` and `h100-configs.json`, and figures that others published for an RTX 3090 and an
RTX A6000, and writes `results/<board>-predicted.json`, the tables of `docs/predicted-speed.md`
and its pictures; so it does with the rungs on tensor cores and the kernels of wgmma, at five sizes.
`--tensor` predicts these alone, `--fused` those with epilogues. `--render` makes tables and
pictures from the files as they are.
`--fit` prints the errors for other values of the model's fitted figures on the rows that it is
fitted on, and which value would be chosen without each kernel. No GPU is needed.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gemmkit.analysis.accuracy import PredictedRow
from gemmkit.analysis.block_profile import profile_block
from gemmkit.analysis.machine import machine_of
from gemmkit.analysis.model import predict, predict_profile
from gemmkit.analysis.roofline import intensities, roofline
from gemmkit.epilogue import Epilogue
from gemmkit.gpu import GpuSpec, find_board
from gemmkit.kernels.catalog import LADDER, find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.record import Record
from gemmkit.report.figures import svg
from gemmkit.report.predicted import (
    accuracy_table,
    detail_table,
    read_rows,
    scatter_figure,
    speed_table,
    worst,
)
from gemmkit.report.readme import read_records, replace_generated
from gemmkit.report.roofline import RooflinePoint, roofline_figure

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TIMED = RESULTS / "h100-predicted.json"
PAGE = ROOT / "docs" / "predicted-speed.md"
PICTURES = ROOT / "docs" / "images" / "predicted-speed"
WRITER = "benchmarks/predict.py"
# Sizes that are no multiples of a tile are in `odd`, where somebody has measured them.
MEASURED = tuple(RESULTS / f"h100-{name}.json" for name in ("ladder", "sweep", "configs", "odd"))
# Of the rungs on tensor cores, and of the kernels of wgmma where dispatch chose them.
TENSOR = RESULTS / "h100-tensor-predicted.json"
ON_TENSOR_CORES = tuple(
    RESULTS / f"h100-{name}.json" for name in ("bf16-ladder", "half", "fp32-tensor", "tf32")
)
# With epilogues, of kernels as they are now.
FUSED = RESULTS / "h200-fused-predicted.json"
WITH_EPILOGUES = (RESULTS / "h200-half-fused.json",)
BY_WGMMA = ("gemm_wgmma", "gemm_fp16x3", "gemm_tf32")
TENSOR_SIZES = (512, 1024, 2048, 4096, 8192)
FITTED_SIZES, FITTED_DEPTH = (128, 1024, 4096), 1024
# Values that each fitted figure of the model is tried at, the others being as they are.
FIGURES = {
    "tile_spread": (1.0, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8),
    "latency_exponent": (1.5, 1.75, 2.0, 2.5, 3.0),
    "unit_exponent": (3.0, 3.5, 4.0, 5.0, 6.0),
}
ROOFLINE_SIZE = 4096


@dataclass(frozen=True, slots=True)
class Published:
    """Somebody else's figures: kernels like ours, their configurations, and TFLOP/s."""

    board: str
    size: int
    source: str
    figures: tuple[tuple[str, dict[str, int], float], ...]

    @property
    def file(self) -> Path:
        """Where the predictions of them are kept."""
        return RESULTS / f"{find_board(self.board).key}-predicted.json"


_TILE_16 = {"BM": 16, "BN": 16, "BK": 16}
_TILE_128 = {"BM": 128, "BN": 128, "BK": 8, "TM": 8, "TN": 8}
PUBLISHED = (
    Published(
        "RTX 3090",
        1024,
        "step-by-step guide",
        (
            ("naive", {"BM": 16, "BN": 16}, 2.2),
            ("shared_tiling", _TILE_16, 2.9),
            *(
                ("coarsening_1d", _TILE_16 | {"TM": stride}, tflops)
                for stride, tflops in ((2, 4.1), (4, 5.1), (8, 6.0), (16, 3.8))
            ),
            ("coarsening_2d", {"BM": 64, "BN": 64, "BK": 8, "TM": 8, "TN": 8}, 15.0),
        ),
    ),
    Published(
        "RTX A6000",
        4092,
        "SGEMM_CUDA",
        (
            ("naive_uncoalesced", {"BM": 32, "BN": 32}, 0.309),
            ("naive", {"BM": 32, "BN": 32}, 1.9865),
            ("shared_tiling", {"BM": 32, "BN": 32, "BK": 32}, 2.9803),
            ("coarsening_1d", {"BM": 64, "BN": 64, "BK": 8, "TM": 8}, 8.4747),
            ("coarsening_2d", _TILE_128, 15.9717),
            ("vectorized", _TILE_128, 18.2373),
            (
                "warp_tiled",
                _TILE_128 | {"BK": 16, "WM": 64, "WN": 64, "TM": 16},
                21.7793,
            ),
        ),
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--render", action="store_true", help="predict nothing anew")
    parser.add_argument("--tensor", action="store_true", help="predict what tensor cores do alone")
    parser.add_argument("--fused", action="store_true", help="predict what has epilogues alone")
    parser.add_argument("--fit", action="store_true", help="print errors for other figures")
    arguments = parser.parse_args()
    if arguments.fit:
        fit()
        return
    some = arguments.tensor or arguments.fused
    for path, records in ((TENSOR, tensor_records), (FUSED, fused_records)):
        if not arguments.render and (not some or arguments.fused == (path == FUSED)):
            rows = [predicted(record) for record in records()]
            write(path, [msgspec.structs.replace(row, fitted=False) for row in rows])
    if not arguments.render and not some:
        write(TIMED, [predicted(record) for record in timed_records()])
        for each in PUBLISHED:
            write(each.file, published_rows(each))
    render()


def timed_records() -> list[Record]:
    """The rungs' timed records of plain fp32 products."""
    rungs = {kernel.name for kernel in LADDER}
    records = [each for path in MEASURED if path.is_file() for each in read_records(path)]
    return [
        each
        for each in records
        if each.time_us is not None
        and each.kernel in rungs
        and (each.problem.epilogue, each.problem.dtype) == ("none", "float32")
    ]


def tensor_records() -> list[Record]:
    """Timed records of squares on tensor cores, whose operands TMA can load."""
    rungs = {kernel.name for kernel in LADDER}
    return [
        each
        for path in ON_TENSOR_CORES
        for each in read_records(path)
        if each.time_us is not None
        and each.problem.m in TENSOR_SIZES
        and each.problem.m == each.problem.n == each.problem.k
        and (each.kernel in rungs or each.kernel in BY_WGMMA)
    ]


def fused_records() -> list[Record]:
    """Timed records with epilogues."""
    found = [each for path in WITH_EPILOGUES for each in read_records(path)]
    return [each for each in found if each.time_us is not None]


def predicted(record: Record) -> PredictedRow:
    """One record, predicted."""
    assert record.time_us is not None
    assert record.tflops is not None
    sizes, asked = (record.problem.m, record.problem.n, record.problem.k), record.problem
    of: dict[str, Any] = {
        name: getattr(asked, name) for name in ("dtype", "out_dtype", "precision", "beta")
    }
    fused = Epilogue.parse(asked.epilogue)
    problem = GemmProblem(*sizes, **of, epilogue=fused).laid_out(asked.layout)
    on_default = record.config == find_kernel(record.kernel).default.as_dict()
    fitted = on_default and problem.k == FITTED_DEPTH and problem.m in FITTED_SIZES
    return row(
        find_board(record.device.gpu),
        record.kernel,
        record.config,
        problem,
        measured_us=record.time_us.median,
        measured_tflops=record.tflops,
        fitted=fitted,
        source=f"measured, commit {record.environment.get('commit', 'unknown')}",
    )


def published_rows(published: Published) -> list[PredictedRow]:
    """Somebody else's figures, predicted."""
    problem = GemmProblem(published.size, published.size, published.size)
    return [
        row(
            find_board(published.board),
            name,
            config,
            problem,
            measured_us=None,
            measured_tflops=tflops,
            fitted=False,
            source=published.source,
        )
        for name, config, tflops in published.figures
    ]


def row(
    board: GpuSpec,
    name: str,
    config: dict[str, int],
    problem: GemmProblem,
    *,
    measured_us: float | None,
    measured_tflops: float,
    fitted: bool,
    source: str,
) -> PredictedRow:
    kernel = find_kernel(name)
    print(name, problem.shape, flush=True)
    profile = profile_block(kernel, problem, board, config=kernel.configure(config))
    seen = predict_profile(profile, problem, board)
    assert profile.binary.resources is not None
    return PredictedRow(
        board=board.name,
        kernel=name,
        config=config,
        m=problem.m,
        n=problem.n,
        k=problem.k,
        predicted_us=seen.microseconds,
        predicted_tflops=seen.tflops,
        measured_us=measured_us,
        measured_tflops=measured_tflops,
        limiter=seen.limiter,
        registers=profile.binary.resources.registers,
        occupancy=seen.occupancy.theoretical,
        fitted=fitted,
        source=source,
        epilogue=str(problem.epilogue),
    )


def write(path: Path, rows: Sequence[PredictedRow]) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in rows))


def sections() -> dict[str, str]:
    """The page's generated parts."""
    rows = read_rows(TIMED)
    main = main_configs(rows)
    defaults = [each for each in rows if each.config == main[each.kernel]]
    others = [each for each in rows if each.config != main[each.kernel]]
    return {
        "accuracy": accuracy_table(defaults).to_markdown(),
        "speeds": speed_table(defaults).to_markdown(),
        "worst": detail_table(worst(defaults)).to_markdown(),
        "configurations": detail_table(others).to_markdown(),
        "tensor accuracy": accuracy_table(read_rows(TENSOR)).to_markdown(),
        "tensor": detail_table(read_rows(TENSOR)).to_markdown(),
        "fused accuracy": accuracy_table(read_rows(FUSED)).to_markdown(),
        "fused": detail_table(read_rows(FUSED)).to_markdown(),
        **{each.board: detail_table(read_rows(each.file)).to_markdown() for each in PUBLISHED},
    }


def pictures() -> dict[str, str]:
    """The page's pictures: file name to SVG text."""
    rows = read_rows(TIMED)
    return {"h100.svg": svg(scatter_figure(rows)), "h100-roofline.svg": ladder_roofline(rows)}


def ladder_roofline(rows: Sequence[PredictedRow]) -> str:
    """The ladder's way under the roofs of L2 and shared memory, as measured."""
    board, main = find_board("H100"), main_configs(rows)
    problem = GemmProblem(ROOFLINE_SIZE, ROOFLINE_SIZE, ROOFLINE_SIZE)
    speeds = {
        each.kernel: each.measured_tflops
        for each in rows
        if (each.m, each.n, each.k) == (problem.m, problem.n, problem.k)
        and each.config == main[each.kernel]
    }
    points = []
    for kernel in LADDER:
        if kernel.name not in speeds:
            continue
        seen = predict(kernel, problem, board, config=kernel.configure(main[kernel.name]))
        found = intensities(
            problem,
            {},
            dram_bytes=seen.dram_bytes,
            l2_bytes=seen.l2_bytes,
            shared_bytes=seen.shared_bytes,
        )
        points += [
            RooflinePoint(str(kernel.rung), level, intensity, speeds[kernel.name], predicted=False)
            for level, intensity in found.items()
            if level != "DRAM"
        ]
    return svg(roofline_figure(roofline(board), points))


def main_configs(rows: Sequence[PredictedRow]) -> dict[str, dict[str, int]]:
    """The configuration that most rows of a kernel have: its default when they were measured."""
    counts: defaultdict[str, Counter[tuple[tuple[str, int], ...]]] = defaultdict(Counter)
    for each in rows:
        counts[each.kernel][tuple(each.config.items())] += 1
    return {kernel: dict(found.most_common(1)[0][0]) for kernel, found in counts.items()}


def render() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, text in pictures().items():
        (PICTURES / name).write_text(text, "utf-8")
    page = PAGE.read_text("utf-8")
    PAGE.write_text(replace_generated(page, sections(), writer=WRITER), "utf-8")


def fit() -> None:
    """Mean and median error over the fitted rows, for other values of each fitted figure.

    Emulated runs, which take most of the time, are made once for each row.
    """
    board, cases, measured = find_board("H100"), [], []
    for record in read_records(RESULTS / "h100-sweep.json"):
        if record.problem.m in FITTED_SIZES and record.time_us is not None:
            kernel = find_kernel(record.kernel)
            problem = GemmProblem(record.problem.m, record.problem.n, record.problem.k)
            cases.append((profile_block(kernel, problem, board), problem))
            measured.append(record.time_us.median)
    kernels = np.array([profile.plan.kernel for profile, _ in cases])
    for name, values in FIGURES.items():
        errors = {}
        for value in values:
            changes: dict[str, Any] = {name: value}
            machine = replace(machine_of(board), **changes)
            seen = [predict_profile(*case, board, machine=machine) for case in cases]
            off = [abs(each.microseconds / us - 1) for each, us in zip(seen, measured, strict=True)]
            errors[value] = np.array(off)
            mean, median = errors[value].mean(), np.median(errors[value])
            print(f"{name} {value:4.2f}  mean {mean:.4f}  median {median:.4f}", flush=True)
        for kernel in dict.fromkeys(kernels):
            others = kernels != kernel
            best = min(values, key=lambda value: errors[value][others].mean())
            print(f"  without {kernel}: {best:.2f}")


if __name__ == "__main__":
    main()
