"""Read Nsight Compute's counters of every rung, to compare the emulator's with.

Run it on a machine with a GPU, `ncu` and leave to read its counters; it writes
`results/<gpu>-ncu.json`, which `tests/emulator/test_against_ncu.py` compares.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent

_ACCESSES = ("mem_global_op_ld", "mem_global_op_st", "mem_global_op_ldgsts_cache_access")
_SHARED = ("mem_shared_op_ld", "mem_shared_op_st")
WANTED = (
    *(f"l1tex__t_{what}_pipe_lsu_{each}.sum" for each in _ACCESSES
      for what in ("requests", "sectors", "bytes", "set_accesses", "output_wavefronts")),
    *(f"smsp__sass_l1tex_t_{what}_pipe_lsu_mem_global_op_ldgsts_cache_{how}.sum"
      for what in ("requests", "sectors") for how in ("access", "bypass")),
    *(f"smsp__inst_executed_op_{each}.sum"
      for each in ("global_ld", "global_st", "shared_ld", "shared_st", "ldgsts")),
    *(f"smsp__inst_executed_op_shared_{each}_pred_on_any.sum" for each in ("ld", "st")),
    *(f"smsp__sass_inst_executed_op_shared_{each}.sum" for each in ("ld", "st")),
    *(f"l1tex__data_pipe_lsu_wavefronts_{each}.sum"
      for each in ("mem_shared", *_SHARED, "mem_shared_op_misc")),
    *(f"l1tex__data_bank_conflicts_pipe_lsu_{each}.sum"
      for each in (*_SHARED, "mem_shared_op_ldgsts")),
    *(f"smsp__sass_l1tex_data_pipe_lsu_wavefronts_{each}.sum"
      for each in (*_SHARED, "mem_shared_op_ldgsts")),
    "smsp__sass_l1tex_pipe_lsu_wavefronts_mem_shared.sum",
    "smsp__sass_l1tex_tags_mem_global.sum",
)  # fmt: skip
# How ncu describes a launch; `--query-metrics` does not list these.
LAUNCH = (
    "sm__maximum_warps_per_active_cycle_pct",
    *("launch__registers_per_thread", "launch__waves_per_multiprocessor"),
    *(f"launch__shared_mem_per_block_{each}"
      for each in ("static", "dynamic", "driver", "allocated")),
    *(f"launch__occupancy_limit_{each}"
      for each in ("barriers", "blocks", "registers", "shared_mem", "warps")),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--shapes", default="512,1024,255x257x129", help="N or MxNxK, comma-separated"
    )
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--ncu", default="ncu", help="the profiler's command")
    arguments = parser.parse_args()
    metrics = choose_metrics(run([arguments.ncu, "--query-metrics"]))
    launches = profile(arguments.ncu, arguments.shapes, metrics)
    (gpu,) = {str(launch.pop("gpu")) for launch in launches}
    found = {
        "gpu": gpu,
        "profiler": run([arguments.ncu, "--version"]).strip().splitlines()[-1],
        "command": f"python benchmarks/compare_ncu.py --shapes {arguments.shapes}",
        "launches": launches,
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    key = "".join(each for each in gpu.lower() if each.isalnum())
    path = arguments.results / f"{key}-ncu.json"
    path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(f"{len(launches)} launches, {len(metrics)} metrics each: {path}")


def choose_metrics(query: str) -> list[str]:
    """Those of `WANTED` that this profiler knows for this GPU, by its `--query-metrics`, and
    those of `LAUNCH`."""
    known = {line.split()[0] for line in query.splitlines() if line.strip()}
    return [*(name for name in WANTED if name.removesuffix(".sum") in known), *LAUNCH]


def profile(ncu: str, shapes: str, metrics: Sequence[str]) -> list[dict[str, object]]:
    """One entry per launch: what ran, and its metrics."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        printed = run([
            ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
            "--log-file", str(log), "--metrics", ",".join(metrics),
            sys.executable, str(HERE / "launch_once.py"), "--shapes", shapes,
        ])  # fmt: skip
        rows = read_rows(log.read_text("utf-8").splitlines(), metrics)
    launches = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    if len(rows) != len(launches):
        raise SystemExit(f"ncu saw {len(rows)} kernels where {len(launches)} were launched")
    for launch, (name, values) in zip(launches, rows, strict=True):
        if launch["kernel"] not in name or not launch["correct"]:
            raise SystemExit(f"{launch['kernel']}: ncu saw {name}, correct: {launch['correct']}")
        launch["metrics"] = values
    return launches


def read_rows(lines: Iterable[str], metrics: Collection[str]) -> list[tuple[str, dict[str, float]]]:
    """Kernel name and metrics of each row of ncu's table of raw values.

    ncu's own messages surround the table; the row under its head holds units. A metric that it
    could not read is left out.
    """
    table = [line for line in lines if line.startswith('"')]
    rows = []
    for row in list(csv.DictReader(table))[1:]:
        values = {}
        for name in metrics:
            text = (row.get(name) or "").replace(",", "")
            if text.replace(".", "", 1).isdecimal():
                values[name] = float(text)
        rows.append((row["Kernel Name"], values))
    return rows


def run(command: Sequence[str]) -> str:
    """A command's standard output; ends this program with its messages if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
