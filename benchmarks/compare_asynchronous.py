"""Run compute-sanitizer over the bugs planted in asynchronous kernels, beside gemmkit's findings.

    python benchmarks/compare_asynchronous.py --collect raw.json   on a machine with an H100
    python benchmarks/compare_asynchronous.py --raw raw.json       anywhere: into the result file
    python benchmarks/compare_asynchronous.py --refresh            anywhere: gemmkit's part of it
    python benchmarks/compare_asynchronous.py --render             puts it into docs/sanitizers.md

`--family NAME` leaves the others out, and what the result file has of them stays; `--missing`
collects only what it does not hold yet. The kernels are those of `tests/emulator`, with the
products that they compute there. Every bug, and every sound kernel, runs in a process of its own
for each tool, and three times without one.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import SequenceMatcher
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests" / "emulator"
RESULTS = HERE / "results" / "h100-asynchronous.json"
PAGE = HERE.parent / "docs" / "sanitizers.md"
# A sound kernel for sizes of its own.
OTHER_SIZES = {"two warpgroups"}
PLAIN = "plain"
REPETITIONS = 3
LIMIT_S = 15.0
# Name of a family of kernels: folder and module that has them.
FAMILIES = {
    "bulk copies": ("asynchronous", "pipelines"),
    "tensor copies": ("asynchronous", "tensor_pipelines"),
    "wgmma": ("warpgroups", "warpgroup_kernels"),
    "clusters": ("clusters", "cluster_kernels"),
    "flags, counters, dependent launches": ("sanitizer", "flag_kernels"),
}
# What a row of the results says of the GPU before the tools have run there.
NOT_RUN: dict[str, Any] = {"gpu_result": "not run", "compute_sanitizer": {}}

sys.path[:0] = [str(HERE), str(TESTS), *(str(TESTS / folder) for folder, _ in FAMILIES.values())]

from compare_sanitizer import TOOLS, _output, _run, options, reports  # noqa: E402

SECTION = "asynchronous bugs"


@dataclass(frozen=True)
class Target:
    """A kernel of a family; `bug` is empty for a sound one."""

    family: str
    name: str
    bug: bool

    @property
    def label(self) -> str:
        return f"{self.family}: {self.name}{'' if self.bug else ', as it is'}"


def families() -> Iterator[tuple[str, ModuleType]]:
    for name, (folder, module) in FAMILIES.items():
        if (TESTS / folder / f"{module}.py").is_file():
            yield name, import_module(module)


def targets(only: str = "") -> list[Target]:
    return [
        Target(family, name, bug)
        for family, module in families()
        if only in ("", family)
        for names, bug in ((module.SOUND, False), (module.BUGS, True))
        for name in names
        if name not in OTHER_SIZES
    ]


def run_target(target: Target, **options: Any) -> tuple[Any, Any]:
    """What the tests run: the execution, and what the kernel wrote."""
    module = dict(families())[target.family]
    chosen = module.with_bug(target.name) if target.bug else module.SOUND[target.name]
    return written(target, module.run(chosen, **options))


def written(target: Target, returned: tuple[Any, ...]) -> tuple[Any, Any]:
    """The execution and the output of what a family's `run` returns."""
    return returned[0], returned[-1 if target.family == "tensor copies" else 1]


# --- on the GPU -------------------------------------------------------------------------------


def launch(label: str) -> dict[str, Any]:
    """Run a kernel on the GPU in place of the emulator: is the product that of the sound one?"""
    import numpy as np
    from gpu_executor import GPU

    from gemmkit.emulator.ptx.cfg import ControlFlow
    from gemmkit.emulator.ptx.parser import parse

    class Program:
        def __init__(self, text: str, name: str) -> None:
            self._text, self._flow = text, ControlFlow.of(parse(text).kernels[name])

        def run(self, request: Any, memory: Any, **_: Any) -> Any:
            return GPU.run(self._text, self._flow, request, memory)

    (target,) = (each for each in targets() if each.label == label)
    module: Any = dict(families())[target.family]
    wanted = sound_product(target)
    module.load = lambda text, name, **_: Program(text, name)
    _, found = run_target(target, sanitize=False)
    return {"correct": bool(np.array_equal(found, wanted))}


def sound_product(target: Target) -> Any:
    """What the sound kernel in which a bug is planted writes, on the emulator."""
    module: Any = dict(families())[target.family]
    base = module.BUGS[target.name][0] if target.bug else target.name
    if base not in module.SOUND:
        # Some bugs are planted in a variant of a sound kernel.
        texts = {name: SequenceMatcher(None, each, base) for name, each in module.SOUND.items()}
        base = max(texts, key=lambda name: texts[name].quick_ratio())
    return written(target, module.run(module.SOUND[base], sanitize=False))[1]


def collect(
    path: Path, sanitizer: str, workers: int, family: str, known_rows: Mapping[str, Any]
) -> None:
    """Run every target under every tool, and without; write what each printed.

    Targets that have run according to `known_rows` are left out.
    """
    chosen = [
        each
        for each in targets(family)
        if not known_rows.get(each.label, NOT_RUN)["compute_sanitizer"]
    ]
    known = _output([sanitizer, "--help"])
    commands = {tool: [sanitizer, *options(tool, known)] for tool in TOOLS}
    plain = [f"{PLAIN} {number}" for number in range(REPETITIONS)]
    jobs = [(each.label, tool) for each in chosen for tool in (*plain, *TOOLS)]
    from gemmkit.devices.choose import open_device

    seen = open_device("cuda").environment()
    raw: dict[str, Any] = {
        **{key: seen[key] for key in ("gpu", "driver")},
        "command": " ".join(["python", *sys.argv]),
        "version": _output([sanitizer, "--version"]).strip().splitlines()[-1],
        "runs": {each.label: {} for each in chosen},
    }

    def one(job: tuple[str, str]) -> None:
        label, tool = job
        words = [sys.executable, __file__, "--launch", label]
        raw["runs"][label][tool] = _run([*commands.get(tool, []), *words], LIMIT_S)

    with ThreadPoolExecutor(workers) as pool:
        for done, _ in enumerate(pool.map(one, jobs), 1):
            if done % 50 == 0 or done == len(jobs):
                print(f"{done} of {len(jobs)}", flush=True)
                path.write_text(json.dumps(raw, indent=1) + "\n", "utf-8")


# --- anywhere ---------------------------------------------------------------------------------


def plain_result(runs: dict[str, Any]) -> str:
    """The worst of what happened without a tool."""
    seen = []
    for number in range(REPETITIONS):
        run = runs[f"{PLAIN} {number}"]
        lines = [line for line in run["printed"].splitlines() if line.startswith("{")]
        if run["timed_out"]:
            seen.append("never ends")
        elif not lines:
            seen.append("launch fails")
        else:
            seen.append("right" if json.loads(lines[-1])["correct"] else "wrong")
    return max(seen, key=("right", "wrong", "launch fails", "never ends").index)


def compare(raw: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """The results with what was collected in place of what they had of the same targets."""
    rows = []
    for target in targets():
        runs = raw["runs"].get(target.label)
        if not runs or len(runs) < REPETITIONS + len(TOOLS):
            continue
        rows.append({
            "target": target.label,
            "family": target.family,
            "bug": target.bug,
            "gpu_result": plain_result(runs),
            "compute_sanitizer": reports(runs),
        })  # fmt: skip
    ran = {row["target"]: row for row in rows}
    kept = [ran.pop(row["target"], row) for row in before.get("targets", ())]
    return {**{key: raw[key] for key in raw if key != "runs"}, "targets": [*kept, *ran.values()]}


def refresh(results: dict[str, Any], family: str) -> None:
    """Add what gemmkit finds; of a family that is named also where the tools have not run."""
    rows = rows_of(results)
    for target in targets(family):
        if family and target.label not in rows:
            rows[target.label] = {
                "target": target.label, "family": target.family, "bug": target.bug, **NOT_RUN,
            }  # fmt: skip
            results["targets"].append(rows[target.label])
        if target.label in rows:
            execution, _ = run_target(target, sanitize=True)
            found = {f"{each.check}: {each.kind}" for each in execution.findings}
            rows[target.label]["gemmkit"] = sorted(found)


def reported(row: dict[str, Any]) -> list[str]:
    """The tools that reported something of a target."""
    return [tool for tool, seen in row["compute_sanitizer"].items() if seen["errors"]]


def render(results: dict[str, Any]) -> str:
    """The table: a row for each part of the emulator's tests, and the tools' shares."""
    rows = results["targets"]
    head = ("planted in", "bugs", "found by `gemmkit check`", "found by compute-sanitizer",
            "on the H100: right all the same", "wrong, or the launch fails", "never ends",
            "sound kernels", "reported by gemmkit", "by compute-sanitizer")  # fmt: skip
    lines = [f"| {' | '.join(head)} |", f"|---{'|---:' * (len(head) - 1)}|"]
    found: list[list[object]] = []
    for family in dict.fromkeys(row["family"] for row in rows):
        bugs = [row for row in rows if row["family"] == family and row["bug"]]
        sound = [row for row in rows if row["family"] == family and not row["bug"]]
        counted: list[Callable[[dict[str, Any]], bool]] = [
            lambda row: row["gpu_result"] == "right",
            lambda row: row["gpu_result"] in ("wrong", "launch fails"),
            lambda row: row["gpu_result"] == "never ends",
        ]
        ran = all(row["compute_sanitizer"] for row in (*bugs, *sound))
        found.append([
            family, len(bugs), sum(bool(row["gemmkit"]) for row in bugs),
            sum(bool(reported(row)) for row in bugs) if ran else NOT_RUN["gpu_result"],
            *(sum(map(each, bugs)) if ran else NOT_RUN["gpu_result"] for each in counted),
            len(sound), sum(bool(row["gemmkit"]) for row in sound),
            sum(bool(reported(row)) for row in sound) if ran else NOT_RUN["gpu_result"],
        ])  # fmt: skip
    lines += [f"| {' | '.join(map(str, row))} |" for row in [*found, ["all", *_totals(found)]]]
    tools = ", ".join(
        f"{tool} {sum(tool in reported(row) for row in rows if row['bug'])}" for tool in TOOLS
    )
    version = re.sub(r"Version (\S+).*", r"\1", results["version"], flags=re.DOTALL)
    lines += ["", f"Bugs that each tool of compute-sanitizer {version} reported: {tools}."]
    return "\n".join(lines)


def _totals(found: Sequence[Sequence[object]]) -> list[str]:
    """The sums of the columns; with the number of bugs, or of sound kernels, that ran on the GPU if
    some did not."""
    columns = list(zip(*found, strict=True))
    totals: list[str] = []
    for place, column in enumerate(columns[1:], 1):
        numbers = [each for each in column if isinstance(each, int)]
        of = columns[1 if place < len(columns) - 3 else -3]
        ran = sum(
            int(str(count)) for count, each in zip(of, column, strict=True) if isinstance(each, int)
        )
        left_out = f" of {ran}" if len(numbers) < len(column) else ""
        totals.append(f"{sum(numbers)}{left_out}")
    return totals


def results_before() -> dict[str, Any]:
    """The result file, empty where there is none."""
    return json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}


def rows_of(results: dict[str, Any]) -> dict[str, Any]:
    """The rows of the results, by target."""
    return {row["target"]: row for row in results.get("targets", ())}


def write(results: dict[str, Any]) -> None:
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collect", type=Path)
    parser.add_argument("--raw", type=Path)
    parser.add_argument("--refresh", action="store_true")
    parser.add_argument("--render", action="store_true")
    parser.add_argument("--family", default="", choices=("", *FAMILIES))
    parser.add_argument("--missing", action="store_true")
    parser.add_argument("--launch")
    parser.add_argument("--sanitizer", default="compute-sanitizer")
    parser.add_argument("--workers", type=int, default=12)
    arguments = parser.parse_args()
    if arguments.launch:
        print(json.dumps(launch(arguments.launch)), flush=True)
    elif arguments.collect:
        collect(
            *(arguments.collect, arguments.sanitizer, arguments.workers, arguments.family),
            rows_of(results_before()) if arguments.missing else {},
        )
    elif arguments.raw:
        write(compare(json.loads(arguments.raw.read_text("utf-8")), results_before()))
    if arguments.refresh:
        results = json.loads(RESULTS.read_text("utf-8"))
        refresh(results, arguments.family)
        write(results)
    if arguments.render:
        from gemmkit.report.readme import replace_generated

        text = PAGE.read_text("utf-8")
        parts = {SECTION: render(json.loads(RESULTS.read_text("utf-8")))}
        PAGE.write_text(
            replace_generated(text, parts, writer="benchmarks/compare_asynchronous.py"), "utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
