"""Comparisons as tables, README part and pictures: what they say, also when half is missing."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable

import msgspec
import pytest

from gemmkit.bench.suites import find_suite
from gemmkit.record import (
    ConditionsRecord,
    DeviceRecord,
    LayerRecord,
    Part,
    PeerRecord,
    ProfileRecord,
    Record,
    TimeRecord,
)
from gemmkit.report.comparison import (
    comparison_tables,
    error_ratio,
    fused_overhead,
    geometric_mean,
    next_tile_share,
    profile_table,
)
from gemmkit.report.kinds import kinds_table
from gemmkit.report.performance import performance
from gemmkit.report.readme import RESULTS, RESULTS_PAGE, render
from gemmkit.report.suite_plots import size_sweep_svg, waves_svg


def times(median: float) -> TimeRecord:
    return TimeRecord(
        median=median,
        p20=median,
        p80=median,
        minimum=median,
        mean=median,
        maximum=median,
        samples=9,
    )


PROFILE = ProfileRecord(
    clock_mhz=1980.0,
    peak_tflops=66.9,
    peak_share=0.8,
    gb_per_s=1500.0,
    dram_share=0.45,
    copy_gb_per_s=3000.0,
    copy_share=0.5,
    issue_cycles=1.05,
    tile_share=1.0,
    wave_share=0.97,
)
SEEN = ConditionsRecord(
    sm_clock_mhz=1980.0,
    sm_clock_min_mhz=1980.0,
    sm_clock_max_mhz=1980.0,
    power_watts=650.0,
    temperature_c=60.0,
    samples=50,
)


def peer(library: str, choice: str, speedup: float, **changes: object) -> PeerRecord:
    entry = PeerRecord(
        vendor=library,
        choice=choice,
        name={"cublas": "cuBLAS 13.1.0", "gemmkit": "naive"}.get(library, library) + f" ({choice})",
        candidates=1,
        time_us=times(100.0 * speedup),
        tflops=50.0 / speedup,
        speedup=speedup,
        correct=True,
        max_error=1e-6,
        error_ratio=0.1,
    )
    return msgspec.structs.replace(entry, **changes)


@pytest.fixture
def compared(make_record: Callable[..., Record]) -> Callable[..., Record]:
    def make(suite: str, size: tuple[int, int, int], ratio: float | None, **changes: object):
        peers = changes.pop("peers", None)
        if peers is None and ratio is not None:
            peers = [peer("cublas", "default", ratio + 0.1), peer("cublas", "best", ratio)]
        m, n, k = size
        problem = msgspec.structs.replace(make_record().problem, m=m, n=n, k=k)
        fields = {
            "device": DeviceRecord(kind="cuda", gpu="H100"),
            "time_us": times(100.0),
            "tflops": 50.0,
            "counters": {},
            "conditions": SEEN,
            "profile": PROFILE,
            "environment": {"driver": "580.1", "compiler": "NVRTC 13.5", "commit": "abc"},
            "ratio_to_cublas": ratio,
            "peers": tuple(peers or ()),
        }
        return make_record(suite=suite, problem=problem, **(fields | changes))

    return make


@pytest.fixture
def suites(compared: Callable[..., Record]) -> list[Record]:
    """Some of every suite, with PyTorch and Triton among the peers of the first."""
    others = [peer("torch", "default", 1.3), peer("triton", "best", 2.5)]
    cublas = [peer("cublas", "default", 1.2), peer("cublas", "best", 1.21, max_error=5e-7)]
    fused = [peer("gemmkit", "plain", 0.99), *cublas]
    found = [compared("square", (256,) * 3, 1.21, peers=cublas + others)]
    found += [compared("square", (size,) * 3, 0.9) for size in (512, 1024)]
    found += [compared("skinny", (1, 4096, 4096), 1.5)]
    found += [compared("fused", (1024,) * 3, 1.1, peers=fused)]
    found += [compared("waves", (each.m, each.n, each.k), 1.1) for each in find_suite("waves")]
    return found


def words(svg: str) -> set[str]:
    root = ET.fromstring(svg)
    found = root.iter("{http://www.w3.org/2000/svg}text")
    return {"".join(element.itertext()).strip() for element in found}


def test_a_table_for_each_suite(suites):
    tables = [table.to_text().plain for table in comparison_tables(suites)]
    assert len(tables) == 4
    square, skinny, fused, _ = tables
    assert "square (M = N = K from 256 to 16384), fp32, on H100" in square
    row = next(line for line in square.splitlines() if line.strip().startswith("256³"))
    assert row.split()[-6:] == ["41.32", "1.210", "1.30", "2.50", "1,980", "650"]
    assert "geometric mean 0.993, minimum 0.900; below 1 at 512³, 1024³." in square
    assert "Largest error relative to cuBLAS's on the same inputs: at most 1.50." in square
    assert "skinny (M of 1 to 16 rows, N = K)" in skinny
    assert "torch" not in skinny
    assert "+1.0 %" in fused


def test_what_is_wrong_is_told(compared):
    entry = peer("torch", "default", 1.0, correct=False, check="C[0, 0] is nan")
    record = compared("", (8, 8, 8), None, peers=[entry], correct=False, check="C[1, 1] is 3")
    (table,) = comparison_tables([record])
    text = table.to_text().plain
    assert "WRONG at 8³: C[1, 1] is 3." in text
    assert "torch (default) is wrong at 8³: C[0, 0] is nan." in text
    assert "other shapes" in text
    assert "geometric mean" not in text


def test_figures_of_a_record(compared, suites):
    assert error_ratio(suites[0]) == pytest.approx(1.5e-6 / 1e-6)
    assert error_ratio(compared("", (8, 8, 8), None)) is None
    fused = next(each for each in suites if each.suite == "fused")
    assert fused_overhead(fused) == pytest.approx(1 / 0.99 - 1)
    assert fused_overhead(suites[0]) is None
    assert geometric_mean([0.5, 2.0, 1.0]) == pytest.approx(1.0)


def test_shares(suites):
    text = profile_table(suites[:2]).to_text().plain
    assert "naive" in text
    row = next(line for line in text.splitlines() if line.strip().startswith("256³"))
    assert row.split()[2:10] == ["50.00", "66.9", "80.0", "1,500", "45.0", "50.0", "1.050", "100.0"]
    assert "A device-to-device copy reaches 3,000 GB/s." in text
    without = msgspec.structs.replace(suites[0], profile=None)
    assert "–" in profile_table([without]).to_text().plain


def test_the_page_of_results_shows_each_suite_at_a_glance_and_in_full(suites):
    found = performance(suites, "docs/images/h100-bench")
    assert "**Compared on an H100, fp32**" in found.markdown
    assert (
        "| square: M = N = K from 256 to 16384 | 3 | 0.99 | 0.90 | 512³ | 1 of 3 | 1.5 |"
        in found.markdown
    )
    assert "| 1x4096x4096 | `naive` | 50.00 | 1,500 | 50.0 |" in found.markdown
    assert "over plain" in found.markdown
    assert found.markdown.count("<details>") == 3, "the suite of small steps is a picture only"
    assert "driver 580.1; compiler NVRTC 13.5; commit abc; SM clock 1,980" in found.markdown
    assert set(found.pictures) == {"-square", "-waves"}
    for end in found.pictures:
        assert f"(docs/images/h100-bench{end}.svg)" in found.markdown


def test_off_tile_sizes_are_held_against_the_next_multiple_of_a_tile(compared):
    square = compared("square", (1024,) * 3, 1.1)
    slab = compared("k1024", (1024, 1024, 512), 1.1)
    odd = msgspec.structs.replace(compared("off-tile", (1000,) * 3, 1.1), tflops=48.0)
    lonely = compared("off-tile", (2047,) * 3, 1.1)
    everything = [slab, square, odd, lonely]
    shares = [next_tile_share(each, everything) for each in everything]
    assert shares == [None, None, pytest.approx(0.96), None]
    found = performance(everything, "x").markdown
    assert "% of the next tile multiple" in found
    assert "| 1000³ | `naive` | 48.00 | 96.0 |" in found
    assert "| 2047³ | `naive` | 50.00 | – |" in found


def test_partial_results_render(compared, tmp_path):
    assert performance([], "x").markdown == ""
    alone = compared("square", (256,) * 3, None, peers=[])
    assert performance([alone], "x").markdown == ""
    one = compared("k1024", (256, 256, 1024), 1.2, conditions=None, profile=None)
    found = performance([alone, one], "x")
    assert "k1024" in found.markdown
    assert "square" not in found.markdown
    assert found.pictures == {}
    (tmp_path / "h100-bench.json").write_text(f"{alone.to_json()}\n{one.to_json()}\n")
    assert found.markdown.split("\n")[0] in render(tmp_path).pages[RESULTS_PAGE][RESULTS]


def test_pictures_name_what_they_show(suites):
    square = [each for each in suites if each.suite == "square"]
    seen = words(size_sweep_svg(square))
    assert {"gemmkit", "cuBLAS, best", "PyTorch", "Triton", "M = N = K", "× cuBLAS, best"} <= seen
    assert {"256", "512", "1024"} <= seen
    assert size_sweep_svg(square) == size_sweep_svg(square)
    waves = [each for each in suites if each.suite == "waves"]
    seen = words(waves_svg(waves))
    assert {"gemmkit", "peak × whole waves", "of 256x128 tiles"} <= seen
    elsewhere = DeviceRecord(kind="cuda", gpu="no such board")
    strange = [msgspec.structs.replace(each, device=elsewhere) for each in waves]
    assert "peak × whole waves" not in words(waves_svg(strange))


def layer(make_record, **changes):
    name, sizes = changes.pop("name", "lstm"), changes.pop("sizes", "64 steps")
    parts = {"gemm_stream_k": Part(64, 6.0), "lstm_cell": Part(64, 2.0)}
    peers = [
        peer("torch", "eager", 1.25, call_us=times(75.0), max_error=5e-7),
        peer("torch", "compiled", 1.1, call_us=times(150.0)),
    ]
    fields = {
        "suite": "layers",
        "kernel": f"nn.{name}",
        "device": DeviceRecord(kind="cuda", gpu="H100"),
        "time_us": times(10.0),
        "tflops": 30.0,
        "max_error": 1e-6,
        "ratio_error": 1e-6,
        "ratio_bound": 2e-5,
        "peers": tuple(peers),
        "layer": LayerRecord(
            name=name,
            sizes=sizes,
            flops=3e8,
            minimal_bytes=1_000_000,
            call_us=times(150.0),
            parts=parts,
        ),
    }
    return make_record(**(fields | changes))


def test_layers_have_both_ways_of_timing_in_a_row(make_record):
    record = layer(make_record)
    (table,) = comparison_tables([record, layer(make_record, name="linear", sizes="8x8 -> 8")])
    row = next(line for line in table.to_markdown().splitlines() if line.startswith("| lstm"))
    limiter = "64 products: 75 % of the time, 75 % of the fp32 peak; lstm_cell: 25 % of the time"
    assert row == (
        "| lstm | 64 steps | 1.0e-06 / 2.0e-05 | 30.0 | 10.0 | 10.0 to 10.0 | 1.25 | 1.10 | 150.0 "
        f"| 0.50 | 1.00 | 2.0 | {limiter} |"
    )
    assert "layers (layers of gemmkit.nn beside PyTorch's), fp32, on H100" in table.to_text().plain


def test_layers_of_which_less_is_known(make_record):
    eager = peer("torch", "eager", 1.25, max_error=None, error_ratio=0.05)
    known = layer(make_record).layer
    record = layer(
        make_record,
        max_error=None,
        error_bound=None,
        ratio_bound=None,
        error_ratio=0.1,
        peers=(eager,),
        layer=msgspec.structs.replace(known, call_us=None, parts={}),
    )
    (table,) = comparison_tables([record])
    row = table.to_markdown().splitlines()[-1]
    assert row == "| lstm | 64 steps | 30.0 | 10.0 | 10.0 to 10.0 | 1.25 | – | – | 2.0 | – |"
    wrong = msgspec.structs.replace(record, correct=False, check="C[0, 0] is nan")
    (table,) = comparison_tables([wrong])
    assert "lstm WRONG" in table.to_text().plain
    assert "WRONG: nn.lstm 64 steps: C[0, 0] is nan." in table.to_text().plain


def typed(compared, dtype, layout, ratio, **changes):
    record = compared("typed", (512, 512, 512), ratio, **changes)
    kind = {"dtype": dtype, "out_dtype": dtype, "layout": layout}
    return msgspec.structs.replace(record, problem=msgspec.structs.replace(record.problem, **kind))


def test_types_and_layouts_have_tables_of_their_own(compared):
    torch = [peer("torch", "default", 0.5), peer("gemmkit", "candidate", 0.9)]
    records = [
        typed(compared, "float16", "nn", 1.5),
        typed(compared, "float16", "tn", 1.2),
        typed(compared, "float16", "nn", 0.75, tflops=70.0),
        typed(compared, "float64", "nn", None, peers=torch, correct=False),
    ]
    tables = comparison_tables(records)
    kinds = [table.to_text().plain.strip().partition("\n")[0] for table in tables]
    topic = "typed (float64, float16 and bfloat16 in three layouts)"
    assert kinds == [f"{topic}, {kind}, on H100" for kind in ("fp16", "fp16 TN", "fp64")]
    assert [len(table.rows) for table in tables] == [2, 1, 1]
    assert "over\nplain" not in [column.title for column in tables[2].columns]
    rows = kinds_table(records).to_markdown().splitlines()[2:]
    assert rows == [
        "| typed | fp16 | NN | 2 | 70.0 | 66.7 | 1.06 | 0.75 | 512³ | none |",
        "| typed | fp16 | TN | 1 | 50.0 | 41.7 | 1.20 | 1.20 | 512³ | none |",
        "| typed | fp64 | NN | 1 | 50.0 | 100.0 | 0.50 | 0.50 | 512³ | 1 |",
    ]
    text = performance(records, "pictures/x").markdown
    assert "**Compared on an H100, fp16, fp64**" in text
    assert "| M×N×K | types | kernel |" in text
    assert "| 512³ | fp16 | `naive, TN` |" in text


def test_linear_has_a_column_for_each_way(compared):
    name = "cuBLAS (cublasLtMatmul, BIAS, heuristic {} of 8: tile 64x64)".format
    peers = [
        peer("cublas", "default", 1.3, name=name(1)),
        peer("cublas", "best", 1.2, name=name(4)),
        peer("linear", "eager", 2.5),
        peer("linear", "compiled", 2.25),
    ]
    records = [compared("fused", (512, 512, 512), 1.2, peers=peers)] * 2
    (table,) = comparison_tables(records)
    titles = [column.one_line for column in table.columns]
    assert titles[-4:-2] == ["× linear eager", "× linear compiled"]
    row = next(line for line in table.to_text().plain.splitlines() if "512³" in line)
    assert row.split()[-4:-2] == ["2.50", "2.25"]
    assert "Fastest cuBLAS candidate: heuristic 4 2 times." in table.to_text().plain
    assert "| × linear, eager | × linear, compiled |" in performance(records, "x").markdown


def test_sizes_of_one_type_and_layout_are_drawn(compared):
    def square(size, dtype):
        record = typed(compared, dtype, "nn", 1.2)
        problem = msgspec.structs.replace(record.problem, m=size, n=size, k=size)
        return msgspec.structs.replace(record, suite="square", problem=problem)

    halves = [square(size, "float16") for size in (256, 512)]
    drawn = performance(halves, "x").pictures["-square"]
    assert "TFLOP/s (fp16)" in words(drawn)
    assert performance([*halves, square(256, "float64")], "x").pictures == {}
