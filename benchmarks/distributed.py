"""Measure products over the GPUs of one host: gemmkit.distributed, NCCL with torch.mm, and torch's
fused symmetric-memory forms, in turn in one run.

    PYTHONPATH=src python benchmarks/distributed.py --ranks 2 --out distributed.json

starts one process per GPU and writes one JSON line per form, type and size: the times of all
strategies in microseconds (the median over repetitions of the slowest rank), the largest error
against a float64 reference on sampled rows, and whether results are the same on all ranks and in
every run. A strategy that fails is recorded with its error, and the others go on. NVLink multicast
stays off.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from distributed_group import Rank
from distributed_rank import STATE, measure, watch

MOST_STARTS = 4
SHAPES = "8192x8192x8192,4096x28672x8192,16384x16384x16384"
FORMS = "column,row"
OURS = "collective,one-shot,group-1,copies-whole,copies-fused,copies-1,copies-2,copies-4"
# Before torch or NCCL is loaded.
NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--shapes", default=SHAPES, help="MxNxK, comma-separated")
    parser.add_argument("--forms", default=FORMS, help="of column, row, row-all, summa")
    parser.add_argument("--mesh", default="", help="of summa, such as 2x2; by default 1 by ranks")
    parser.add_argument("--dtypes", default="bf16", help="of bf16, fp16, fp32")
    parser.add_argument("--ours", default=OURS, help="strategies, and default")
    parser.add_argument(
        "--graphs", default="", help="of these names also a CUDA graph, such as 'gemmkit copies-1'"
    )
    parser.add_argument(
        "--host", action="store_true", help="also time for how long a call takes the host"
    )
    parser.add_argument("--engine", default="gemmkit,torch", help="of our local products")
    parser.add_argument("--ms", type=float, default=150, help="of each measurement, about")
    parser.add_argument(
        "--rest", type=float, default=0.0, help="seconds before each, in which the boards cool down"
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often strategies take turns")
    parser.add_argument("--timeout", type=float, default=170, help="seconds for everything")
    parser.add_argument(
        "--step-timeout", type=float, default=20, help="seconds for one step of one strategy"
    )
    parser.add_argument("--backend", default="nccl", help="gloo measures nothing: it is a test")
    parser.add_argument("--out", type=Path, default=Path("distributed.json"))
    parser.add_argument("--commit", default="", help="of this tree, where git does not tell")
    return parser.parse_args()


# --- the process that starts the others -----------------------------------------------------------


def start(options: argparse.Namespace) -> int:
    """Run all ranks; after a strategy that does not end, again without it, from that problem on."""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("", encoding="utf-8")
    end = time.monotonic() + options.timeout
    skipped: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "hung"
        for _ in range(MOST_STARTS):
            status = start_ranks(options, end, note, skipped)
            if not note.exists() or time.monotonic() > end - 20:
                return status
            hung = json.loads(note.read_text(encoding="utf-8"))
            note.unlink()
            print(f"starting again without {' '.join(hung)}", flush=True)
            skipped.append(hung)
    return status


def start_ranks(
    options: argparse.Namespace, end: float, note: Path, skipped: list[list[str]]
) -> int:
    """One process per rank; all are ended when one fails or the time is up."""
    from gemmkit.distributed.starter import run_ranks

    left = max(end - time.monotonic(), 1)
    environment = {
        **NO_MULTICAST,
        "DISTRIBUTED_HUNG": str(note),
        "DISTRIBUTED_SKIPPED": json.dumps(skipped),
        "DISTRIBUTED_SECONDS": str(left),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "4"),
    }
    command = [sys.executable, __file__, *sys.argv[1:]]
    ended, late = run_ranks(command, options.ranks, left, environment=environment)
    if late:
        print("all ranks were ended: the time was up", file=sys.stderr, flush=True)
    return max(abs(each) for each in ended)


# --- a rank ---------------------------------------------------------------------------------------


def environment(rank: Rank) -> dict[str, Any]:
    import torch

    import gemmkit

    found: dict[str, Any] = {
        "gemmkit": gemmkit.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "ranks": rank.size,
        "backend": rank.options.backend,
        "command": " ".join(["python", "benchmarks/distributed.py", *sys.argv[1:]]),
        "commit": rank.options.commit or _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **NO_MULTICAST,
    }
    if rank.on_gpu:
        found |= {
            "gpu": torch.cuda.get_device_name(),
            "cuda": torch.version.cuda,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        }
    return found


def _commit() -> str:
    try:
        said = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return said.stdout.strip()


def summary(row: dict[str, Any]) -> str:
    lines = [
        f"{row['form']} {'x'.join(map(str, row['shape']))} {row['dtype']}: gemmkit takes "
        f"{row.get('chosen', '?')}"
    ]
    results = row["results"]
    alone = results.get("alone torch", {}).get("us")
    for name, each in results.items():
        if "error" in each:
            lines.append(f"  {name:32} failed: {each['error'][:160]}")
            continue
        over = f"{each['us'] / alone:6.3f} x alone" if alone else ""
        right = "" if each.get("error_ratio", 0) < 4 else "  WRONG"
        flags = "".join(
            f"  {key}: {each[key]}"
            for key in ("same_in_every_run", "same_on_all_ranks", "as_one_product")
            if each.get(key) is False
        )
        ratio = f"  error {each['error_ratio']:.2f} eps|A||B|" if "error_ratio" in each else ""
        host = f"  host {each['host_us']:.1f} us" if "host_us" in each else ""
        lines.append(f"  {name:32} {each['us']:10.1f} us {over}{host}{ratio}{right}{flags}")
    return "\n".join(lines)


def run_rank(options: argparse.Namespace) -> int:
    rank = Rank(options)
    begun = time.monotonic()
    warnings.simplefilter("ignore")
    lines = options.out.read_text(encoding="utf-8").splitlines()
    done = {json.loads(line)["problem"] for line in lines}
    rank.all_of(len(done))
    known = environment(rank)
    from gemmkit.distributed.team import team_of

    finished = watch(rank, options.step_timeout)
    try:
        team = team_of(rank.group, rank.device)
        known["symmetric_memory"] = team.why_not_symmetric or team.symmetric is not None
    except Exception as error:
        rank.say(f"no team: {error}")
        known["symmetric_memory"] = str(error)
        raise
    finally:
        finished()
    rank.say(f"ready after {time.monotonic() - begun:.1f} s: {json.dumps(known)}")
    failed = 0
    for dtype in options.dtypes.split(","):
        for text in options.shapes.split(","):
            for form in options.forms.split(","):
                if not rank.time_left():
                    rank.say(f"no time left for {form} {text} {dtype}")
                    continue
                STATE["problem"] = f"{form} {text} {dtype}"
                if STATE["problem"] in done:
                    continue
                STATE["begun"], STATE["doing"] = "", "matrices"
                finished = watch(rank, options.step_timeout)
                shape = tuple(map(int, text.lower().split("x")))
                try:
                    row = measure(rank, form, shape, dtype)
                except Exception as error:
                    traceback.print_exc()
                    row = {"form": form, "shape": shape, "dtype": dtype, "results": {}}
                    row["error"] = str(error)
                    failed = 1
                finally:
                    finished()
                row["problem"] = STATE["problem"]
                row["environment"] = known
                row["seconds"] = round(time.monotonic() - begun, 1)
                if rank.rank == 0:
                    with options.out.open("a", encoding="utf-8") as file:
                        print(json.dumps(row), file=file, flush=True)
                    print(summary(row), f"\n  at {row['seconds']} s", flush=True)
                if rank.on_gpu:
                    rank.torch.cuda.empty_cache()
    rank.dist.destroy_process_group()
    return failed


if __name__ == "__main__":
    chosen = arguments()
    if "RANK" not in os.environ:
        sys.exit(start(chosen))
    status = run_rank(chosen)
    sys.stdout.flush()
    # Threads of gloo now and then abort a process whose interpreter is being torn down.
    os._exit(status)
