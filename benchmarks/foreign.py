"""Predicted beside measured speed of public SGEMM kernels, none of which is part of gemmkit.

`foreign_kernels.json` names the kernels: repository, file, launch. FOLDER holds the files under the
paths given there. Compilation is not always repeatable, so all three steps share BINARIES, a file
that `compile` writes, with any machine's NVRTC:

    python benchmarks/foreign.py compile FOLDER BINARIES
    python benchmarks/foreign.py measure FOLDER BINARIES    # on a GPU
    python benchmarks/foreign.py predict FOLDER BINARIES

`measure` checks and times, and writes `results/h100-foreign.json`, one record per line. Kernels
that read C compute C = A·B + C. `predict` writes `results/h100-foreign-predicted.json` and the
tables of `docs/predicted-speed.md`; `render` makes the tables from the file as it is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
from predict import PAGE, RESULTS, write
from this_gpu import this_gpu

from gemmkit.analysis.accuracy import PredictedRow
from gemmkit.analysis.block_profile import BlockProfile, profile_block
from gemmkit.analysis.model import predict_profile
from gemmkit.bench.run import run_binary
from gemmkit.bench.workload import Workload
from gemmkit.errors import GemmkitError
from gemmkit.gpu import find_board
from gemmkit.jit.binary import Binary
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import GemmProblem
from gemmkit.record import Record
from gemmkit.report.predicted import accuracy_table, detail_table, read_rows
from gemmkit.report.readme import read_records, replace_generated

HERE = Path(__file__).resolve().parent
WRITER = "benchmarks/foreign.py"
MEASURED = RESULTS / "h100-foreign.json"
PREDICTED = RESULTS / "h100-foreign-predicted.json"


class Foreign(msgspec.Struct, frozen=True, kw_only=True):
    """A public kernel: where it is from, and how it is launched."""

    name: str
    repository: str
    file: str
    entry: str
    grid: str
    block: str
    args: str | None = None
    options: tuple[str, ...] = ()

    def kernel(self, folder: Path) -> Kernel:
        """As gemmkit reads it."""
        return Kernel.from_file(
            folder / self.file,
            entry=self.entry,
            args=self.args,
            grid=self.grid,
            block=self.block,
            name=self.name,
            options=self.options,
        )


class Listed(msgspec.Struct, frozen=True):
    """`foreign_kernels.json`."""

    sizes: tuple[str, ...]
    kernels: tuple[Foreign, ...]


def listed() -> Listed:
    """All kernels and shapes."""
    return msgspec.json.decode((HERE / "foreign_kernels.json").read_bytes(), type=Listed)


def compiled(folder: Path) -> dict[str, Binary]:
    """Every kernel for an H100, by its name."""
    board, problem, found = find_board("H100"), GemmProblem(4096, 4096, 4096), {}
    for each in listed().kernels:
        kernel = each.kernel(folder)
        found[each.name] = compile_plan(kernel.plan(problem, kernel.default, board), board.arch)
    return found


def measured(folder: Path, binaries: Mapping[str, Binary], commit: str | None) -> Iterator[Record]:
    """Every kernel that takes each shape, checked and timed on this machine's GPU."""
    device, everything = this_gpu(), listed()
    added = {"command": " ".join(["python", *sys.argv])}
    if commit:
        added["commit"] = commit
    for shape in everything.sizes:
        workloads: dict[bool, Workload] = {}
        for each in everything.kernels:
            kernel = each.kernel(folder)
            adds = "beta" in kernel.signature
            if adds not in workloads:
                problem = replace(GemmProblem.from_shape(shape), beta=float(adds))
                workloads[adds] = Workload(problem, device)
            workload = workloads[adds]
            try:
                plan = kernel.plan(workload.problem, kernel.default, device.spec)
                record = run_binary(kernel, kernel.default, plan, binaries[each.name], workload)
            except GemmkitError as error:
                print(f"left out: {each.name} at {shape}: {error}", flush=True)
                continue
            environment = {**record.environment, **added, "repository": each.repository}
            verdict = "right" if record.correct else f"WRONG: {record.check}"
            print(f"{each.name} {shape}: {verdict}, {record.tflops:.2f} TFLOP/s", flush=True)
            yield msgspec.structs.replace(record, environment=environment)


def predicted(folder: Path, binaries: Mapping[str, Binary]) -> Iterator[PredictedRow]:
    """Every timed record, predicted."""
    board = find_board("H100")
    kernels = {each.name: each.kernel(folder) for each in listed().kernels}
    for record in read_records(MEASURED):
        if record.time_us is None:
            continue
        seen = record.problem
        problem = GemmProblem(seen.m, seen.n, seen.k, beta=seen.beta)
        kernel, binary = kernels[record.kernel], binaries[record.kernel]
        try:
            profile = profile_block(kernel, problem, board, binary=binary)
        except GemmkitError as error:
            print(f"left out: {record.kernel}: {error}", flush=True)
            continue
        yield _row(record, profile, problem)


def _row(record: Record, profile: BlockProfile, problem: GemmProblem) -> PredictedRow:
    assert record.time_us is not None
    assert record.tflops is not None
    assert profile.binary.resources is not None
    board = find_board("H100")
    seen = predict_profile(profile, problem, board)
    return PredictedRow(
        board=board.name,
        kernel=record.kernel,
        config={},
        m=problem.m,
        n=problem.n,
        k=problem.k,
        predicted_us=seen.microseconds,
        predicted_tflops=seen.tflops,
        measured_us=record.time_us.median,
        measured_tflops=record.tflops,
        limiter=seen.limiter,
        registers=profile.binary.resources.registers,
        occupancy=seen.occupancy.theoretical,
        fitted=False,
        source=record.environment.get("repository", ""),
    )


def sections() -> dict[str, str]:
    """The page's tables of public kernels."""
    rows = read_rows(PREDICTED)
    return {
        "public accuracy": accuracy_table(rows).to_markdown(),
        "public kernels": detail_table(rows).to_markdown(),
    }


def render() -> None:
    page = PAGE.read_text("utf-8")
    PAGE.write_text(replace_generated(page, sections(), writer=WRITER), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("compile", "measure", "predict"):
        added = verbs.add_parser(verb)
        added.add_argument("folder", type=Path)
        added.add_argument("binaries", type=Path)
        added.add_argument("--results", type=Path, help="file to write")
        added.add_argument("--commit", help="of this tree, where git does not tell")
    verbs.add_parser("render")
    arguments = parser.parse_args()
    if arguments.verb == "compile":
        arguments.binaries.write_bytes(msgspec.msgpack.encode(compiled(arguments.folder)))
        return
    if arguments.verb != "render":
        kept = arguments.binaries.read_bytes()
        binaries = msgspec.msgpack.decode(kept, type=dict[str, Binary])
    if arguments.verb == "measure":
        with (arguments.results or MEASURED).open("w", encoding="utf-8") as file:
            for record in measured(arguments.folder, binaries, arguments.commit):
                print(record.to_json(), file=file, flush=True)
        return
    if arguments.verb == "predict":
        write(arguments.results or PREDICTED, list(predicted(arguments.folder, binaries)))
    render()


if __name__ == "__main__":
    main()
