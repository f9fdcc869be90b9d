"""The generated parts of the READMEs and docs/results.md: what they show, and whether it is up to
date."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest

from gemmkit.errors import UsageError
from gemmkit.kernels.catalog import find_kernel
from gemmkit.record import BaselineRecord, DeviceRecord, TimeRecord
from gemmkit.report.readme import (
    COUNTED,
    PICTURED,
    PICTURES,
    README,
    README_CHINESE,
    RESULTS,
    RESULTS_PAGE,
    SESSION,
    markers,
    read_records,
    render,
    replace_generated,
)

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


THEMES = ("light", "dark")
# The width of a character in a picture of a terminal.
CHARACTER = 12.2


def lines(svg):
    """The lines of a picture of a terminal, without trailing spaces."""
    found = {}
    for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        row, column = float(element.get("y")), round(float(element.get("x")) / CHARACTER)
        text = "".join(element.itertext()).replace("\N{NO-BREAK SPACE}", " ").rstrip("\n")
        found[row] = found.get(row, "").ljust(column) + text
    return [line.rstrip() for line in found.values()]


def test_measured_results_have_a_column_a_size(results):
    markdown = render(results).pages[RESULTS_PAGE][RESULTS]
    assert markdown.startswith("**Measured on an H100**\n")
    assert "1024³, TFLOP/s (× cuBLAS) | 2048³, TFLOP/s (× cuBLAS) |" in markdown
    assert "| 2 | `naive` |" in markdown
    assert "| yes | 10.2 (0.25) | 20.5 (0.25) |" in markdown
    assert "median of 7 to 7 samples" in markdown
    assert "is its fastest at 1024³: cuBLAS 13.1.0 (fast); 2048³: cuBLAS" in markdown
    assert "driver 580.1; compiler NVRTC 13.5" in markdown


def test_counted_results_are_the_session_that_makes_them(results):
    session = render(results).pages[RESULTS_PAGE][COUNTED]
    assert session.startswith(
        "```console\n$ python3 run.py ladder --device emulator --size 64\n"
        "Running on the emulator, for RTX 3090.\nC = αAB + βC, 64x64x64"
    )
    assert "naive              1.5e-06 / 3.0e-05" in session


def test_every_picture_is_shown(results):
    rendering = render(results)
    assert set(rendering.pictures) == {
        "a-emulated-ladder.svg",
        "a-emulated-ladder-light.svg",
        "a-emulated-ladder-dark.svg",
        "h100-ladder.svg",
        "h100-sweep.svg",
    }
    for name, svg in rendering.pictures.items():
        shown = [
            *(f"(images/{name})" in part for part in rendering.pages[RESULTS_PAGE].values()),
            f'"docs/images/{name}"' in rendering.pages[README][SESSION],
        ]
        assert shown.count(True) == 1, name
        assert "<svg" in svg


def test_the_picture_of_a_session_has_its_words_in_both_themes(results):
    rendering = render(results)
    light, dark = (rendering.pictures[f"a-emulated-ladder-{each}.svg"] for each in THEMES)
    command = "gemmkit ladder --device emulator --size 64 --kernels naive"
    shown, chinese = (rendering.pages[page][SESSION] for page in (README, README_CHINESE))
    assert f'alt="A terminal: {command}"' in shown
    assert chinese == shown.replace("A terminal: ", "终端：")
    assert f"$ {command}" in lines(light)
    assert "C = αAB + βC, 64x64x64" in "\n".join(lines(light))
    assert lines(light) == lines(dark)
    assert light != dark
    assert "http" not in light.replace("http://www.w3.org/2000/svg", ""), "loads nothing"


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


AGAIN = "run `.venv/bin/python benchmarks/render_readme.py`"


@pytest.fixture(scope="module")
def rendering():
    """Of the results in the repository."""
    return render(ROOT / "benchmarks" / "results")


@pytest.mark.parametrize("name", [README, README_CHINESE, RESULTS_PAGE])
def test_a_page_shows_the_results_in_the_repository(rendering, name):
    page = (ROOT / name).read_text("utf-8")
    assert replace_generated(page, rendering.pages[name]) == page, AGAIN


def test_the_pictures_are_those_of_the_results_in_the_repository(rendering):
    folder = ROOT / PICTURES
    assert {path.name for path in folder.glob("*.svg")} == set(rendering.pictures), AGAIN
    for name in rendering.pages[README][SESSION].split('"'):
        if name.endswith(".svg"):
            stored = (ROOT / name).read_text("utf-8")
            assert lines(stored) == lines(rendering.pictures[Path(name).name]), AGAIN
            assert len(stored) < 50_000


def test_the_readmes_picture_is_what_the_command_prints(rendering):
    (command,) = re.findall('alt="A terminal: gemmkit (.*?)"', rendering.pages[README][SESSION])
    assert command.endswith(",".join(PICTURED))
    done = subprocess.run(
        [sys.executable, "-m", "gemmkit", *command.split()],
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if name != "COLUMNS"},
    )
    shown = lines(next(svg for name, svg in rendering.pictures.items() if "-dark" in name))
    shown = [line for line in shown if line]
    assert shown[0] == f"$ gemmkit {command}"
    assert shown[1] in done.stderr
    assert shown[2:] == [line for line in done.stdout.splitlines() if line]


def test_kernels_are_described_as_they_are_now(results, make_record):
    text = render(results).pages[RESULTS_PAGE][RESULTS]
    assert make_record().idea not in text
    assert find_kernel("naive").idea in text
