"""Run compute-sanitizer over the corpus of planted bugs, and lay gemmkit's findings beside.

    python benchmarks/compare_sanitizer.py --collect raw.json   on a machine with a GPU
    python benchmarks/compare_sanitizer.py --raw raw.json       anywhere: into the result file
    python benchmarks/compare_sanitizer.py --refresh            anywhere: gemmkit's part of it anew
    python benchmarks/compare_sanitizer.py --render             puts it into docs/sanitizers.md

Every bug, and every rung as it is, runs in a process of its own for each tool. `--missing` collects
only what the result file does not hold yet; the rest of the file stays.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests" / "corpus"), str(HERE.parent / "tests")]

from mutation import CONFIGS, Mutation  # noqa: E402
from planted import MUTATIONS, clean_problems, seen  # noqa: E402

from gemmkit import GemmProblem, Kernel, check, find_board, find_kernel  # noqa: E402
from gemmkit.gpu import GpuSpec  # noqa: E402
from gemmkit.kernels.plan import LaunchPlan  # noqa: E402
from rung_boards import board_for, device_for  # noqa: E402

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
PLAIN = "plain"

# Options that spare the output what is not about the kernel; one that the tool lacks is left out.
OPTIONS = {
    "": ("--print-limit", "1000", "--report-api-errors", "no", "--show-backtrace", "no"),
    # Room behind each allocation, so that what lies there is no other matrix.
    "memcheck": ("--padding", "4096"),
}

LIMIT_S, HANGING_LIMIT_S = 60.0, 20.0
KEPT_CHARACTERS = 20_000

# What a row of the results says of the GPU before the tools have run there.
NOT_RUN: Mapping[str, Any] = {"gpu_result": "not run", "compute_sanitizer": {}}


@dataclass(frozen=True)
class Target:
    """Something to launch: a mutant, or a rung as it is."""

    name: str
    kernel: Kernel
    problem: GemmProblem
    hangs: bool = False

    @property
    def config(self) -> dict[str, int]:
        return CONFIGS[self.kernel.name]


def targets(folder: Path, only: str | None = None) -> dict[str, Target]:
    """Targets by name: all, or only one; changed includes are written to the folder."""
    found = [
        Target(label(each), each.mutant(folder), each.problem, each.hangs)
        for each in MUTATIONS
        if only in (None, label(each))
    ]
    found += [
        Target(f"{kernel}, as it is, {name}", find_kernel(kernel), problem)
        for kernel in CONFIGS
        for name, problem in clean_problems(kernel).items()
    ]
    return {each.name: each for each in found}


def planned(target: Target, board: GpuSpec) -> LaunchPlan:
    """The launch that the tests make: of persistent kernels one with few blocks, which have several
    tiles each."""
    config = target.kernel.configure(target.config)
    return target.kernel.plan(target.problem, config, board_for(target.kernel, board))


def label(mutation: Mutation) -> str:
    return f"{mutation.kernel}: {mutation.name}"


# --- on the GPU -------------------------------------------------------------------------------


def launch(target: Target, *, plain: bool) -> dict[str, Any]:
    """Launch once. Plain: with poisoned output, and check the result.

    Else what BLAS does not read is memory that nobody has written, and nothing is read back.
    """
    import numpy as np

    from gemmkit.devices.cuda import CudaDevice
    from gemmkit.devices.device import Scratch
    from gemmkit.devices.operands import Operands, bind_arguments
    from gemmkit.jit.compiler import compile_plan
    from gemmkit.verify import check as judge
    from gemmkit.verify import make_inputs

    device, problem = CudaDevice(), target.problem
    plan = planned(target, device.spec)
    binary = compile_plan(plan, device.spec.arch)
    inputs = make_inputs(problem)

    written = {"a": problem.alpha != 0, "b": problem.alpha != 0, "c": problem.beta != 0}

    def place(name: str, array: np.ndarray) -> Any:
        read = plain or written.get(name, True)
        return device.upload(array) if read else device.empty(array.nbytes)

    operands = Operands(**{name: place(name, each) for name, each in inputs.arrays.items()})
    bound = bind_arguments(problem, operands)
    scratch = Scratch.of(device, plan, bound)
    device.launch(binary, plan, bound | scratch.arguments)
    if not plain:
        return {}
    result, _ = operands.results(device, inputs.arrays)
    return {"correct": judge(problem, inputs, result).correct}


def collect(
    path: Path, sanitizer: str, workers: int, folder: Path, known_rows: Mapping[str, Any]
) -> None:
    """Run every target under every tool, and once without; write what each printed.

    Targets that have run according to `known_rows` are left out.
    """
    from gemmkit.devices.cuda import CudaDevice
    from gemmkit.jit.compiler import compile_many

    found = {
        name: target
        for name, target in targets(folder).items()
        if not known_rows.get(name, NOT_RUN)["compute_sanitizer"]
    }
    device = CudaDevice()
    plans = [planned(each, device.spec) for each in found.values()]
    compile_many(plans, device.spec.arch)
    known = _output([sanitizer, "--help"])
    commands = {tool: [sanitizer, *options(tool, known)] for tool in TOOLS} | {PLAIN: []}
    raw: dict[str, Any] = {
        "gpu": device.spec.name,
        "version": _output([sanitizer, "--version"]).strip().splitlines()[-1],
        "commands": {tool: " ".join(command) for tool, command in commands.items() if command},
        "environment": device.environment(),
        "help": known,
        "runs": {name: {} for name in found},
    }
    del device

    def one(job: tuple[Target, str]) -> None:
        target, tool = job
        words = [sys.executable, __file__, "--launch", target.name, "--folder", str(folder)]
        plain = ["--plain"] if tool == PLAIN else []
        limit = HANGING_LIMIT_S if target.hangs else LIMIT_S
        raw["runs"][target.name][tool] = _run([*commands[tool], *words, *plain], limit)

    # Launches that may hang come last: they hold up the others on the GPU.
    for hanging in (False, True):
        chosen = [each for each in found.values() if each.hangs == hanging]
        jobs = [(each, tool) for each in chosen for tool in (PLAIN, *TOOLS)]
        with ThreadPoolExecutor(workers) as pool:
            for done, _ in enumerate(pool.map(one, jobs), 1):
                if done % 50 == 0 or done == len(jobs):
                    print(f"{done} of {len(jobs)}", flush=True)
        path.write_text(json.dumps(raw, indent=1) + "\n", "utf-8")


def options(tool: str, known: str) -> list[str]:
    """The tool's options, without those that its help does not know."""
    words = [*OPTIONS[""], *OPTIONS.get(tool, ())]
    pairs = zip(words[::2], words[1::2], strict=True)
    return ["--tool", tool, *(word for pair in pairs if pair[0] in known for word in pair)]


def _run(command: Sequence[str], limit: float) -> dict[str, Any]:
    """Run a command in a process group of its own, and end all of that after a while."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
        process = subprocess.Popen(
            command, stdout=printed, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait(limit)
            timed_out = False
        except subprocess.TimeoutExpired:
            timed_out = True
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        printed.seek(0)
        text = printed.read()
    return {
        "status": process.returncode,
        "timed_out": timed_out,
        "seconds": round(time.monotonic() - began, 1),
        "printed": text[:KEPT_CHARACTERS],
        "end": text[KEPT_CHARACTERS:][-1000:],
    }


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


# --- anywhere ---------------------------------------------------------------------------------

# A report begins with a line that has one space after the signs; its details have more.
_REPORT = re.compile(r"^========= (?P<head>\S.*)\n(?P<details>(?:^=========  .*\n)*)", re.MULTILINE)
_INVALID = re.compile(r"Invalid (__\w+__ \w+) of size \d+ bytes")
_UNINITIALIZED = re.compile(r"Uninitialized (__\w+__) memory read of size \d+ bytes")
_BARRIER = re.compile(r"Barrier error detected\. (.+?)\.?$")
_RACE = re.compile(r"(?:Error|Warning): Race reported between (\w+) access at ")
_OTHER = re.compile(r"and (\w+) access at ")
_MISALIGNED = re.compile(r"is misaligned")
_ERRORS = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")


def kinds(printed: str) -> list[str]:
    """The kinds of error that the sanitizer reported, in short."""
    found: set[str] = set()
    for report in _REPORT.finditer(printed):
        head, details = report["head"], report["details"]
        if match := _INVALID.match(head):
            how = "misaligned" if _MISALIGNED.search(details) else "out of bounds"
            found.add(f"{how} {match[1]}")
        elif match := _UNINITIALIZED.match(head):
            found.add(f"uninitialized {match[1]} read")
        elif match := _BARRIER.match(head):
            found.add(f"barrier: {match[1]}")
        elif match := _RACE.match(head):
            found |= {f"race: {match[1]} and {other}" for other in _OTHER.findall(details)}
    return sorted(found)


def errors(run: Mapping[str, Any]) -> int | None:
    """The errors that the tool summed up; None where it was ended before it could."""
    found = _ERRORS.findall(run["printed"] + run["end"])
    return int(found[-1]) if found else None


def compare(raw: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The results: for each target what each tool reports, and what gemmkit does.

    `raw` is what `collect` wrote, with the rows of an earlier result file as `targets`: they tell
    of what did not run this time.
    """
    from gemmkit.devices.emulated import EmulatedDevice

    device = EmulatedDevice(find_board(raw["gpu"]), sanitize=True)
    planted = {label(each): each for each in MUTATIONS}
    rows = []
    for name, target in targets(folder).items():
        own = device_for(target.kernel, device)
        (record,) = check(target.kernel, [target.problem], config=target.config, device=own)
        row: dict[str, Any] = {"target": name, "kernel": target.kernel.name}
        if name in planted:
            mutation = planted[name]
            row |= {
                "file": mutation.changed_file,
                "old": mutation.old,
                "new": mutation.new,
                "expects": list(mutation.expects),
            }
        row |= {
            "shape": target.problem.shape,
            "config": target.config,
            **on_gpu(raw, name),
            "gemmkit": sorted(seen(record)),
            "findings": sorted({f"{each.check}: {each.kind}" for each in record.findings}),
        }
        rows.append(row)
    about = {key: raw[key] for key in ("gpu", "version", "commands")}
    # The kernels are those of this checkout, whatever lay on the machine with the GPU.
    environment = {key: raw["environment"][key] for key in raw["environment"] if key != "commit"}
    return {**about, "environment": environment, "targets": rows}


def on_gpu(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What the tools said of a target, now or earlier."""
    if name not in raw["runs"]:
        earlier = rows_by_name(raw).get(name, NOT_RUN)
        return {key: earlier[key] for key in NOT_RUN}
    runs = raw["runs"][name]
    return {
        "gpu_result": _plain_result(runs[PLAIN]),
        "compute_sanitizer": reports(runs),
    }


def reports(runs: Mapping[str, Any]) -> dict[str, Any]:
    """What each tool said of a target."""
    return {
        tool: {
            "errors": errors(runs[tool]),
            "kinds": kinds(runs[tool]["printed"]),
            "timed_out": runs[tool]["timed_out"],
        }
        for tool in TOOLS
    }


def rows_by_name(results: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of a result file."""
    return {each["target"]: each for each in results["targets"]}


def joined(raw: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
    """What `collect` wrote, and the rows of the result file of that GPU as it was.

    Raises:
        SystemExit: they come from different versions of the tool or the driver.
    """
    if raw["runs"].keys() >= rows_by_name(results).keys():
        results = {**results, "targets": []}
    elif raw["version"] != results["version"] or _driver(raw) != _driver(results):
        raise SystemExit("the result file was made with another version: collect without --missing")
    return {**raw, "targets": results["targets"]}


def _driver(about: Mapping[str, Any]) -> str:
    return str(about["environment"]["driver"])


def _plain_result(run: Mapping[str, Any]) -> str:
    if run["timed_out"]:
        return "never ends"
    lines = [line for line in run["printed"].splitlines() if line.startswith("{")]
    if not lines:
        return "error"
    return "right" if json.loads(lines[-1])["correct"] else "wrong"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--collect", type=Path, metavar="FILE", help="run the tools, write FILE")
    parser.add_argument("--missing", action="store_true", help="collect what has not run yet")
    parser.add_argument("--board", default="h100", help="whose result file is meant")
    parser.add_argument("--refresh", action="store_true", help="gemmkit's findings anew")
    parser.add_argument("--raw", type=Path, metavar="FILE", help="what --collect wrote")
    parser.add_argument("--render", action="store_true", help="write the page's tables")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--sanitizer", default="compute-sanitizer", help="the tool's command")
    parser.add_argument("--workers", type=int, default=12, help="processes at a time")
    parser.add_argument("--launch", metavar="TARGET", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.launch is not None:
        target = targets(given.folder, given.launch)[given.launch]
        print(json.dumps(launch(target, plain=given.plain)), flush=True)
        return
    path = given.results / f"{find_board(given.board).key}-sanitizer.json"
    results = json.loads(path.read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        if given.collect is not None:
            known = rows_by_name(results) if given.missing else {}
            collect(given.collect, given.sanitizer, given.workers, Path(folder), known)
        if given.raw is not None:
            results = joined(json.loads(given.raw.read_text("utf-8")), results)
        if given.raw is not None or given.refresh:
            found = compare({"runs": {}, **results}, Path(folder))
            path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
            print(path)
    if given.render:
        from sanitizer_page import write_page

        write_page(given.results)


if __name__ == "__main__":
    main()
