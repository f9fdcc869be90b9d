"""Errors of fp32 products on a GPU, beside cuBLAS's: `precision_on_gpu.py --results FILE`.

Inputs are those of `precision_errors.py`, with 1024 rows and columns. gemmkit chooses the kernel,
for precision "fp32" and "ieee"; cuBLAS's fp32 comes through PyTorch, and so do the products in
float64 that all are compared with. With `--write FILE` such results become the table of
`docs/precision.md`, which needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from precision_errors import FAMILIES, SEED, UNIT, units_text, write_section

SIDE, LENGTHS = 1024, (64, 128, 256, 1024, 4096, 16384, 65536)
BEGIN = "<!-- errors on a GPU: written by benchmarks/precision_on_gpu.py -->"
END = "<!-- end of errors on a GPU -->"
METHODS = {"cublas": "cuBLAS fp32", "ieee": '"ieee"', "fp32": '"fp32"'}


def measured() -> dict[str, Any]:
    """The errors of all methods, a row for each family and length."""
    import torch

    import gemmkit

    torch.backends.cuda.matmul.allow_tf32 = False
    rows = []
    for family, make in FAMILIES.items():
        for k in LENGTHS:
            pair = make(np.random.default_rng(SEED), SIDE, SIDE, k)
            a, b = (torch.from_numpy(each).cuda() for each in pair)
            left, right = a.double(), b.double()
            exact, magnitude = left @ right, left.abs() @ right.abs()
            if not torch.isfinite(exact.float()).all():
                continue  # beyond fp32's range, whoever adds them up
            norms = left.norm(dim=1)[:, None] * right.norm(dim=0)[None]
            of_all = ((magnitude if family == "cancelling" else exact) / norms).norm()
            row: dict[str, Any] = {"inputs": family, "k": k}
            for name in METHODS:
                found = torch.mm(a, b) if name == "cublas" else gemmkit.matmul(a, b, precision=name)
                off = (found.double() - exact).abs()
                norm_wise, largest = (off / norms).norm() / of_all, (off / magnitude).max()
                row[name] = [float(norm_wise) / UNIT, float(largest) / UNIT]
            rows.append(row)
            print(json.dumps(row), flush=True)
    environment = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gemmkit": gemmkit.__version__,
        "command": "python benchmarks/precision_on_gpu.py",
    }
    return {"environment": environment, "rows": rows}


def table(results: dict[str, Any]) -> str:
    """The table in Markdown."""
    lines = [f"| inputs | k | {' | '.join(METHODS.values())} |"]
    lines.append("|---|--:|" + "--:|" * len(METHODS))
    for row in results["rows"]:
        cells = [" / ".join(map(units_text, row[name])) for name in METHODS]
        lines.append(f"| {row['inputs']} | {row['k']:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, help="where to write what is measured")
    parser.add_argument("--write", type=Path, help="results that the page is to show")
    arguments = parser.parse_args()
    if arguments.results is not None:
        arguments.results.write_text(json.dumps(measured(), indent=1) + "\n")
    if arguments.write is not None:
        write_section(BEGIN, END, table(json.loads(arguments.write.read_text("utf-8"))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
