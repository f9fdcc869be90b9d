"""Read Nsight Compute's counters of every rung, to hold the emulator's against.

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

_ACCESSES = ("mem_global_op_ld", "mem_global_op_st", "mem_global_op_ldgsts")
WANTED = (
    *(f"l1tex__t_{what}_pipe_lsu_{each}.sum" for each in _ACCESSES
      for what in ("requests", "sectors", "bytes")),
    *(f"l1tex__t_sectors_pipe_lsu_{_ACCESSES[2]}_cache_{how}.sum" for how in ("access", "bypass")),
    *(f"smsp__inst_executed_op_{each}.sum"
      for each in ("global_ld", "global_st", "shared_ld", "shared_st", "ldgsts")),
    *(f"l1tex__data_pipe_lsu_wavefronts_mem_shared{each}.sum" for each in ("", "_op_ld", "_op_st")),
    *(f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{each}.sum" for each in ("ld", "st")),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", default="512,1024", help="N or MxNxK, parted by commas")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--ncu", default="ncu", help="the profiler's command")
    arguments = parser.parse_args()
    metrics = choose_metrics(run([arguments.ncu, "--query-metrics"]))
    launches = profile(arguments.ncu, arguments.shapes, metrics)
    (gpu,) = {str(launch.pop("gpu")) for launch in launches}
    found = {
        "gpu": gpu,
        "profiler": run([arguments.ncu, "--version"]).strip().splitlines()[-1],
        "command": " ".join(["python", *sys.argv]),
        "launches": launches,
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    key = "".join(each for each in gpu.lower() if each.isalnum())
    path = arguments.results / f"{key}-ncu.json"
    path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(f"{len(launches)} launches, {len(metrics)} metrics each: {path}")


def choose_metrics(query: str) -> list[str]:
    """Those of `WANTED` that this profiler knows for this GPU, by its `--query-metrics`."""
    known = {line.split()[0] for line in query.splitlines() if line.strip()}
    return [name for name in WANTED if name.rsplit(".", 1)[0] in known]


def profile(ncu: str, shapes: str, metrics: Sequence[str]) -> list[dict[str, object]]:
    """One entry a launch: what ran, and its metrics."""
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
