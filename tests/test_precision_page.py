"""docs/precision.md has the errors that its script finds, and the figures of the bound."""

from __future__ import annotations

import json
import re
from itertools import product

import msgspec
import numpy as np
import pytest

from gemmkit.dispatch.candidates import candidates_for
from gemmkit.error_histogram import ErrorHistogram
from gemmkit.gpu import FP32, MathPipe, find_board
from gemmkit.verify.split_products import (
    IN_TF32,
    OF_MMA,
    TF32_UNDERFLOW,
    UNDERFLOW,
    UNIT,
    SplitProducts,
    of_chunk,
)
from split_model import (
    FAMILIES,
    errors,
    fused_chain,
    precision_errors,
    precision_on_gpu,
    split_product,
    tf32x3_product,
)

PAGE = precision_errors.PAGE.read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.partition(precision_errors.BEGIN)[2]
    .partition(precision_errors.END)[0]
    .strip()
    .splitlines()
]


def test_the_table_has_every_kind_of_inputs_and_length():
    lengths = [f"{k:,}" for k in precision_errors.LENGTHS]
    assert [row[:2] for row in ROWS[2:]] == [[each, k] for each in FAMILIES for k in lengths]


@pytest.mark.parametrize("family", FAMILIES)
def test_errors_are_those_of_the_page(family):
    """Those of the kernel by the model, which it equals to the bit."""
    methods = {
        "FFMA": fused_chain,
        "of 64": split_product,
        "of 32": lambda a, b: split_product(a, b, 32),
        "`fp32` in TF32": tf32x3_product,
    }
    columns = {name: next(i for i, x in enumerate(ROWS[0]) if name in x) for name in methods}
    for k in (64, 256):
        row = next(each for each in ROWS if each[:2] == [family, str(k)])
        rng, side = np.random.default_rng(precision_errors.SEED), precision_errors.SIDE
        a, b = FAMILIES[family](rng, side, side, k)
        for name, method in methods.items():
            found = errors(method(a, b), a, b, cancelling=family == "cancelling")
            written = [float(each.replace(",", "")) for each in row[columns[name]].split(" / ")]
            assert found == pytest.approx(written, rel=0.06)


def test_errors_on_a_gpu_are_those_of_the_record():
    stored = precision_errors.PAGE.parent.parent / "benchmarks/results/h100-precision.json"
    shown = PAGE.partition(precision_on_gpu.BEGIN)[2].partition(precision_on_gpu.END)[0].strip()
    assert shown == precision_on_gpu.table(json.loads(stored.read_text("utf-8")))


def test_the_figures_of_the_bound():
    bound = SplitProducts().relative
    assert re.search(r"from (\d+) u at k = 64 to (\d+) u at 16,384", PAGE).groups() == (
        f"{bound(64) / UNIT:.0f}",
        f"{bound(16384) / UNIT:.0f}",
    )
    units = re.search(r"chunks of 32; of 64 \| \*\*([\d.]+) u\*\*; \*\*([\d.]+) u\*\*", PAGE)
    assert units.groups() == tuple(f"{of_chunk(each) / UNIT:.1f}" for each in (32, 64))
    assert "17/16 · 2⁻³⁹" in PAGE
    assert UNDERFLOW == 17 / 16 * 2.0**-39


def test_the_figures_of_the_bound_of_tf32():
    bound = IN_TF32.relative
    assert f"e = 8 u + 8 u + 4 u = **{of_chunk(8, OF_MMA) / UNIT:.1f} u**" in " ".join(PAGE.split())
    told = [f"{bound(k) / UNIT:,.0f} u" for k in (64, 1024, 16384)]
    assert f"(in TF32, {told[0]} to {told[2]})" in PAGE
    assert f"That is {told[0]} at k = 64, {told[1]} at 1,024 and {told[2]} at 16,384" in " ".join(
        PAGE.split()
    )
    assert "17/16 · 2⁻¹³⁶" in PAGE
    assert TF32_UNDERFLOW == 17 / 16 * 2.0**-136


def test_the_peaks_of_schemes_are_those_of_boards():
    rows = re.findall(r"^\| (A100|H100|L40S|RTX 3090)(.*?) \| (\d.*) \|$", PAGE, re.M)
    assert len(rows) == 5
    for name, way, cells in rows:
        board = find_board(name)
        share = board.pipes.mma_sync if "mma" in way and "wg" not in way else 1
        peaks = [
            (FP32, share),
            (MathPipe("tfloat32", tensor=True), 1),
            (MathPipe("tfloat32", tensor=True), 3),
            (MathPipe("float16", tensor=True), 3),
            (MathPipe("bfloat16", tensor=True), 6),
        ]
        found = [share * board.peak(pipe) / products for pipe, products in peaks]
        written = [float(each) for each in cells.split(" | ")]
        assert written == pytest.approx(found, abs=0.5)
        kernels = {each.name for each in candidates_for(board)}
        faster = written[2] > written[0], round(found[1], 3) > round(found[0], 3)
        # wgmma is faster still.
        without = "gemm_fp16x3" not in kernels
        assert ("gemm_tf32x3" in kernels) == (faster[0] and without)
        assert ("gemm_tf32_mma" in kernels) == (faster[1] and without)


def test_lines_with_one_large_element_have_the_errors_of_the_page():
    spreads, *methods = (
        [float(each.strip(" u").replace(",", "")) for each in line.strip("|").split("|")[1:]]
        for line in re.findall(r"^\| (?:s|`fp32` in \w+|FFMA) \|.*\|$", PAGE, re.M)
    )
    for s, in_fp16, in_tf32, of_chain in zip(spreads, *methods, strict=True):
        a, b = FAMILIES["normal"](np.random.default_rng(precision_errors.SEED), 16, 16, 1024)
        a[:, 7] *= np.float32(2.0**s)
        b[7] = 0
        for method, written in (
            (split_product, in_fp16),
            (tf32x3_product, in_tf32),
            (fused_chain, of_chain),
        ):
            found = errors(method(a, b), a, b, cancelling=False)[1]
            assert found == pytest.approx(written, rel=0.06)


def test_the_picture_shows_the_errors_of_the_methods():
    """Its counts are those that the script finds; the kernel's by the model, which it equals."""
    import precision_histograms as histograms

    data = json.loads(histograms.DATA.read_text("utf-8"))
    assert (data["command"], data["seed"]) == (histograms.COMMAND, precision_errors.SEED)
    by_place = {(each["inputs"], each["k"], each["method"]): each for each in data["histograms"]}
    methods = {each["method"] for each in data["histograms"]}
    wanted = set(product(histograms.SHOWN, histograms.LENGTHS, methods))
    assert by_place.keys() == wanted
    side = histograms.SIDE
    a, b = FAMILIES["uniform"](np.random.default_rng(precision_errors.SEED), side, side, 64)
    for name, method in {"FFMA": fused_chain, "fp16 × 3": split_product}.items():
        (stored,) = (
            each
            for place, each in by_place.items()
            if place[:2] == ("uniform", 64) and name in place[2]
        )
        counted = histograms.histogram(method(a, b), a, b)
        known = msgspec.convert(stored["errors"], ErrorHistogram)
        assert (counted.exact, counted.first, counted.counts) == (
            known.exact,
            known.first,
            known.counts,
        )
        shares = histograms.shares(counted)
        assert sum(shares.values()) == pytest.approx(1)
    picture = histograms.PICTURE.read_text("utf-8")
    assert all(f"{each}, k = 1,024" in picture for each in histograms.SHOWN)
    assert "images/precision/errors.svg" in PAGE
