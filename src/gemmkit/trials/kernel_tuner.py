"""Kernel Tuner's files: its cache, one for each kernel and problem, and T4 results.

A cache that gemmkit wrote comes back as it was. Of one that Kernel Tuner wrote, it is not known
which source its kernel had: its entries are stale from the start, which makes them the first to be
tried.

Formats: Kernel Tuner's cache schema 1.1.0 and its T4 results schema 1.0.0
(https://github.com/KernelTuner/kernel_tuner, folder `kernel_tuner/schema`). Times there are in
milliseconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from gemmkit.decoding import from_builtins, from_json
from gemmkit.errors import TuningError, UsageError
from gemmkit.gpu import BOARDS
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import read_problem
from gemmkit.trials.entry import Entry, Outcome, ProblemClass, gpu_key
from gemmkit.trials.exchange import read_whole, write_text

CACHE_SCHEMA, RESULTS_SCHEMA = "1.1.0", "1.0.0"
MS_PER_US = 1e-3

# What stands in place of a time, and how T4 calls it. Kernel Tuner has no word for a wrong result.
_FAILURES: dict[Outcome, str] = {
    "uncompiled": "CompilationFailedConfig",
    "unlaunched": "RuntimeFailedConfig",
    "wrong": "InvalidConfig",
}
_INVALIDITY: dict[Outcome, str] = {
    "ok": "correct",
    "uncompiled": "compile",
    "unlaunched": "runtime",
    "wrong": "correctness",
}
# Kernel Tuner's times of its own work, which a cache must have and gemmkit does not keep.
_UNKNOWN_TIMES = (
    "compile_time",
    "verification_time",
    "benchmark_time",
    "strategy_time",
    "framework_time",
)
# A whole entry, so that what gemmkit wrote it can read again.
_ENTRY_KEY = "gemmkit_entry"


class _Cache(msgspec.Struct, frozen=True):
    """What of a cache file is read; Kernel Tuner writes more."""

    device_name: str
    kernel_name: str
    problem_size: tuple[int, ...] | int | str
    tune_params_keys: tuple[str, ...]
    cache: dict[str, dict[str, Any]]


def write_caches(path: Path, entries: Iterable[Entry]) -> dict[Path, int]:
    """Write one cache file for each GPU, kernel, problem and epilogue; files and their entries.

    One file is called `path`; of several, each has what it is for in its name.

    Raises:
        TuningError: a file cannot be written.
    """
    groups: dict[tuple[str, str, ProblemClass, str], list[Entry]] = {}
    for entry in entries:
        key = entry.gpu, entry.kernel, entry.problem, entry.epilogue
        groups.setdefault(key, []).append(entry)
    written: dict[Path, int] = {}
    for (gpu, kernel, problem, epilogue), members in groups.items():
        target = path
        if len(groups) > 1:
            words = [path.stem, gpu, kernel, re.sub(r"\W+", "-", str(problem)).strip("-")]
            words += [epilogue.replace("+", "-")] if epilogue != "none" else []
            target = path.with_name("-".join(words) + (path.suffix or ".json"))
        write_text(target, _cache_text(gpu, kernel, problem, members))
        written[target] = len(members)
    return written


def _cache_text(gpu: str, kernel: str, problem: ProblemClass, members: Sequence[Entry]) -> str:
    """A cache as Kernel Tuner writes it: an entry per line, so that it can append further ones."""
    keys = list(members[0].config)
    values = {key: sorted({each.config.get(key, 1) for each in members}) for key in keys}
    head = json.dumps(
        {
            "schema_version": CACHE_SCHEMA,
            "device_name": _board_name(gpu),
            "kernel_name": kernel,
            "problem_size": _sizes(problem),
            "tune_params_keys": keys,
            "tune_params": values,
            "objective": "time",
        },
        indent=0,
    )
    lines = []
    for each in members:
        name = ",".join(str(each.config.get(key, 1)) for key in keys)
        lines.append(f"{json.dumps(name)}: {json.dumps(_cache_line(each))}")
    return head.removesuffix("\n}") + ',\n"cache": {\n' + ",\n".join(lines) + "}\n}"


def _sizes(problem: ProblemClass) -> list[int]:
    """[M, N, K], and the number of products where there are several."""
    sizes = [problem.m, problem.n, problem.k]
    return sizes if problem.batch == 1 else [*sizes, problem.batch]


def _cache_line(entry: Entry) -> dict[str, Any]:
    time: float | str = _FAILURES.get(entry.outcome, "")
    if entry.time_us is not None and entry.outcome == "ok":
        time = entry.time_us * MS_PER_US
    return {
        **entry.config,
        "time": time,
        **dict.fromkeys(_UNKNOWN_TIMES, 0),
        "timestamp": _timestamp(entry),
        _ENTRY_KEY: msgspec.to_builtins(entry),
    }


def read_cache(path: Path) -> list[Entry]:
    """The entries of a cache of one of gemmkit's kernels.

    Raises:
        TuningError: no such file, no cache, or one of an unknown kernel, key, GPU or problem.
    """
    text = read_whole(path).decode("utf-8", errors="replace").strip()
    if text.endswith(","):
        # Kernel Tuner leaves a file open while it tunes.
        text = text.removesuffix(",") + "}\n}"
    try:
        cache = from_json(text, _Cache)
    except msgspec.DecodeError as error:
        raise TuningError(f"{path} is not a Kernel Tuner cache: {error}") from None
    try:
        kernel = find_kernel(cache.kernel_name)
    except UsageError as error:
        raise TuningError(f"{path} is not of a kernel of gemmkit: {error}") from None
    unknown = set(cache.tune_params_keys) - kernel.default.as_dict().keys()
    if unknown:
        raise TuningError(f"{path}: '{kernel.name}' has no key {', '.join(sorted(unknown))}")
    return [_entry(path, cache, kernel, line) for line in cache.cache.values()]


def _entry(path: Path, cache: _Cache, kernel: Kernel, line: dict[str, Any]) -> Entry:
    try:
        if _ENTRY_KEY in line:
            return from_builtins(line[_ENTRY_KEY], Entry)
        time, sizes = line["time"], cache.problem_size
        if not isinstance(sizes, tuple) or len(sizes) not in (3, 4):
            raise TuningError(
                f"{path}: problem_size must be [M, N, K] or [M, N, K, BATCH], not {sizes}"
            )
        outcome: Outcome = "ok"
        if not isinstance(time, int | float):
            outcome = next((each for each, word in _FAILURES.items() if word == time), "wrong")
        config = kernel.configure({key: int(line[key]) for key in cache.tune_params_keys})
        return Entry(
            gpu=_gpu(path, cache.device_name),
            problem=ProblemClass.of(read_problem(sizes)),
            kernel=kernel.name,
            config=config.as_dict(),
            outcome=outcome,
            source="",
            compiler="",
            time_us=time / MS_PER_US if outcome == "ok" else None,
            samples=len(line.get("times", ())),
            reason="" if outcome == "ok" else f"Kernel Tuner: {time}",
        )
    except (KeyError, TypeError, ValueError, msgspec.ValidationError, UsageError) as error:
        raise TuningError(f"{path}: an entry cannot be read ({error})") from None


def write_results(path: Path, entries: Sequence[Entry]) -> int:
    """Write T4 results, of any number of kernels; how many.

    Raises:
        TuningError: the file cannot be written.
    """
    results = [
        {
            "timestamp": _timestamp(each),
            "configuration": {
                "kernel": each.kernel,
                "problem": each.problem.shape,
                "epilogue": each.epilogue,
                **each.config,
            },
            "objectives": ["time"],
            "times": {"runtimes": [each.time_us * MS_PER_US] if each.time_us else []},
            "invalidity": _INVALIDITY[each.outcome],
            "correctness": 0 if each.outcome == "wrong" else 1,
            "measurements": _measurements(each),
        }
        for each in entries
    ]
    document = {"schema_version": RESULTS_SCHEMA, "results": results}
    write_text(path, json.dumps(document, indent=1) + "\n")
    return len(results)


def _measurements(entry: Entry) -> list[dict[str, Any]]:
    if entry.time_us is None or entry.tflops is None:
        return []
    return [
        {"name": "time", "value": entry.time_us * MS_PER_US, "unit": "ms"},
        {"name": "TFLOP/s", "value": entry.tflops, "unit": "TFLOP/s"},
    ]


def _timestamp(entry: Entry) -> str:
    return datetime.fromtimestamp(entry.measured_at, UTC).isoformat()


def _board_name(gpu: str) -> str:
    return next((board.name for board in BOARDS.values() if gpu_key(board) == gpu), gpu)


def _gpu(path: Path, device_name: str) -> str:
    """The key of the board that a device's name is of: the one with the most words in it.

    Raises:
        TuningError: no known board, and no key either.
    """
    words = set("".join(c if c.isalnum() else " " for c in device_name.lower()).split())
    boards = [each for each in BOARDS.values() if set(each.name.lower().split()) <= words]
    if boards:
        return gpu_key(max(boards, key=lambda each: len(each.name.split())))
    if device_name.endswith("sm"):
        return device_name
    raise TuningError(f"{path}: gemmkit does not know the GPU '{device_name}'")
