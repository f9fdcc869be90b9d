"""The README's generated part: what it shows, and that it is up to date."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gemmkit.errors import UsageError
from gemmkit.kernels.catalog import find_kernel
from gemmkit.record import BaselineRecord, DeviceRecord, TimeRecord
from gemmkit.report.readme import markers, read_records, render, replace_generated

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def results(tmp_path, make_record):
    """A folder with an emulated ladder, a timed one of two sizes, and a timed sweep."""
    time = TimeRecord(
        median=1.0, p20=1.0, p80=1.0, minimum=1.0, mean=1.0, maximum=1.0, samples=7
    )  # fmt: skip
    timed = [
        make_record(
            problem=msgspec.structs.replace(make_record().problem, m=size, n=size, k=size),
            device=DeviceRecord(kind="cuda", gpu="H100"),
            time_us=time,
            tflops=size / 100,
            baseline=BaselineRecord(name="cuBLAS 13.1.0 (fast)", time_us=time, speedup=0.25),
            environment={"driver": "580.1", "compiler": "NVRTC 13.5"},
        )
        for size in (1024, 2048)
    ]
    for name, records in (
        ("a-emulated-ladder.json", [make_record()]),
        ("h100-ladder.json", timed),
        ("h100-sweep.json", timed),
    ):
        (tmp_path / name).write_text("".join(f"{each.to_json()}\n" for each in records))
    return tmp_path


def test_measured_results_come_first_with_a_column_a_size(results):
    markdown = render(results, "docs/images").sections["results"]
    assert markdown.startswith("**Measured on an H100**\n")
    assert "1024³, TFLOP/s (× cuBLAS) | 2048³, TFLOP/s (× cuBLAS) |" in markdown
    assert "| 2 | `naive` |" in markdown
    assert "| yes | 10.2 (0.25) | 20.5 (0.25) |" in markdown
    assert "median of 7 to 7 samples" in markdown
    assert "is its fastest at 1024³: cuBLAS 13.1.0 (fast); 2048³: cuBLAS" in markdown
    assert "driver 580.1; compiler NVRTC 13.5" in markdown


def test_counted_results_are_the_session_that_makes_them(results):
    session = render(results, "docs/images").sections["session"]
    assert session.startswith(
        "```console\n$ python3 run.py ladder --device emulator --size 64\n"
        "Running on the emulator, for RTX 3090.\nC = αAB + βC, 64x64x64"
    )
    assert "naive   1.5e-06 / 3.0e-05" in session


def test_every_picture_is_shown(results):
    rendering = render(results, "docs/images")
    assert set(rendering.pictures) == {
        "a-emulated-ladder.svg",
        "h100-ladder.svg",
        "h100-sweep.svg",
    }
    for name, svg in rendering.pictures.items():
        assert f"(docs/images/{name})" in rendering.sections["results"]
        assert "<svg" in svg


def test_a_line_that_is_no_record_is_named(tmp_path):
    path = tmp_path / "x-ladder.json"
    path.write_text('{"kernel": 1}\n')
    with pytest.raises(UsageError, match=r"x-ladder\.json, line 1, is not a record"):
        read_records(path)


def test_only_what_is_between_the_markers_changes():
    begin, end = markers("x")
    readme = f"head\n{begin}\nold\n{end}\ntail\n"
    once = replace_generated(readme, {"x": "new"})
    assert once == f"head\n{begin}\n\nnew\n{end}\ntail\n"
    assert replace_generated(once, {"x": "new"}) == once
    with pytest.raises(UsageError, match="lacks one of the lines"):
        replace_generated(f"{end} {begin}", {"x": "new"})


def test_the_readme_shows_the_results_in_the_repository():
    rendering = render(ROOT / "benchmarks" / "results", "docs/images")
    readme = (ROOT / "README.md").read_text("utf-8")
    again = "run `.venv/bin/python benchmarks/render_readme.py`"
    assert replace_generated(readme, rendering.sections) == readme, again
    stored = {path.name for path in (ROOT / "docs" / "images").glob("*.svg")}
    assert stored == set(rendering.pictures), again


def test_kernels_are_described_as_they_are_now(results, make_record):
    text = render(results, "images").sections["results"]
    assert make_record().idea not in text
    assert find_kernel("naive").idea in text
