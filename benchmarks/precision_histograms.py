"""Errors of fp32 products by several methods as histograms: the picture of `docs/precision.md`.

`python benchmarks/precision_histograms.py --run` counts them, as `precision_errors.py` computes
results, and writes `results/precision-errors.json`. Without an argument the picture is drawn from
that file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from precision_errors import (
    FAMILIES,
    SEED,
    UNIT,
    Singles,
    fused_chain,
    in_fp16,
    tf32,
    three_tf32,
)

from gemmkit.error_histogram import ErrorHistogram
from gemmkit.report.figures import series_style, svg
from gemmkit.verify.tally import Tally

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "benchmarks" / "results" / "precision-errors.json"
PICTURE = ROOT / "docs" / "images" / "precision" / "errors.svg"
COMMAND = "python benchmarks/precision_histograms.py --run"
SIDE, LENGTHS = 64, (64, 1024)
SHOWN = ("normal", "uniform", "log-uniform", "graded", "cancelling")
# Sizes of errors in u that are drawn, as powers of two; all below count as the least.
LEAST, MOST = -8, 15


def histogram(found: Singles, a: Singles, b: Singles) -> ErrorHistogram:
    """The results by |E| / (|A|·|B|), in units of u = 2^-24."""
    left, right = a.astype(np.longdouble), b.astype(np.longdouble)
    difference = np.float64(found - left @ right)
    error = np.abs(difference)
    ratio = error / np.float64(np.abs(left) @ np.abs(right)) / UNIT
    counted = Tally.of(difference, error, ratio).histogram()
    assert counted is not None
    return counted


def run() -> dict[str, Any]:
    """Histograms by inputs, k and method."""
    methods = {
        "fp32, FFMA": fused_chain,
        "fp16 × 3 (gemm_fp16x3)": in_fp16(64),
        "TF32 × 3": three_tf32,
        "TF32": tf32,
    }
    found = []
    for family, k in product(SHOWN, LENGTHS):
        a, b = FAMILIES[family](np.random.default_rng(SEED), SIDE, SIDE, k)
        for name, method in methods.items():
            with np.errstate(over="ignore", invalid="ignore"):
                counted = histogram(method(a, b), a, b)
            errors = msgspec.to_builtins(counted)
            found.append({"inputs": family, "k": k, "method": name, "errors": errors})
            print(family, k, name, counted.quantile(0.5), file=sys.stderr)
    return {
        "command": COMMAND,
        "seed": SEED,
        "rows and columns": SIDE,
        "numpy": np.__version__,
        "histograms": found,
    }


def shares(errors: ErrorHistogram) -> dict[int, float]:
    """The share of results in each bin that is drawn, by its exponent."""
    bins = dict.fromkeys(range(LEAST, MOST + 1), 0.0)
    bins[LEAST] += errors.exact / errors.elements
    for exponent, count in enumerate(errors.counts, errors.first):
        bins[min(max(exponent, LEAST), MOST)] += count / errors.elements
    bins[MOST] += errors.beyond / errors.elements
    return bins


def picture(data: Mapping[str, Any]) -> str:
    """The histograms as SVG: a row for each kind of inputs, a column for each k."""
    by_place: dict[tuple[str, int], dict[str, ErrorHistogram]] = {}
    for each in data["histograms"]:
        errors = msgspec.convert(each["errors"], ErrorHistogram)
        by_place.setdefault((each["inputs"], each["k"]), {})[each["method"]] = errors

    def fill(figure: Any) -> None:
        axes = figure.subplots(len(SHOWN), len(LENGTHS), sharex=True, sharey=True, squeeze=False)
        for (row, family), (column, k) in product(enumerate(SHOWN), enumerate(LENGTHS)):
            own = axes[row][column]
            for number, (name, errors) in enumerate(by_place[family, k].items()):
                bins = shares(errors)
                places = np.array([*bins, MOST + 1], float)
                style = {"color": series_style(number)["color"], "label": name}
                own.stairs([100 * each for each in bins.values()], places, linewidth=1.4, **style)
            own.axvline(np.log2(k), color="0.6", linestyle=":", linewidth=1)
            own.set_title(f"{family}, k = {k:,}", fontsize=9, loc="left")
            own.set_xticks(range(LEAST, MOST + 2, 4))
            own.set_xticklabels([rf"$2^{{{each}}}$" for each in range(LEAST, MOST + 2, 4)])
        for own in axes[-1]:
            own.set_xlabel("|E| / (|A||B|), in u")
        axes[len(SHOWN) // 2][0].set_ylabel("share of the results, %", labelpad=8)
        axes[0][0].legend(fontsize=7, loc="upper right")

    return svg(fill, (8.0, 9.0))


def main() -> None:
    """Count the errors, or draw them."""
    if "--run" in sys.argv[1:]:
        DATA.write_text(json.dumps(run(), indent=1) + "\n", "utf-8")
        return
    PICTURE.write_text(picture(json.loads(DATA.read_text("utf-8"))), "utf-8")


if __name__ == "__main__":
    main()
