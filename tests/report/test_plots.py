"""Pictures: that they hold what the records say, and are the same each time."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET

import msgspec
import pytest

from gemmkit.errors import UsageError
from gemmkit.record import BaselineRecord, TimeRecord
from gemmkit.report.plots import ladder_svg, sweep_svg


@pytest.fixture
def timed(make_record):
    time = TimeRecord(
        median=1.0, p20=1.0, p80=1.0, minimum=1.0, mean=1.0, maximum=1.0, samples=1
    )  # fmt: skip
    return [
        make_record(
            kernel=kernel,
            problem=msgspec.structs.replace(make_record().problem, m=size, n=size),
            time_us=time,
            tflops=10.0,
            baseline=BaselineRecord(name="cuBLAS 13.1 (fastest)", time_us=time, speedup=0.5),
        )
        for kernel in ("naive", "shared_tiling")
        for size in (256, 512)
    ]


def words(svg: str) -> list[str]:
    root = ET.fromstring(svg)
    return [
        "".join(element.itertext()).strip()
        for element in root.iter("{http://www.w3.org/2000/svg}text")
    ]


def test_ladder_names_kernels_sizes_and_the_peer_by_its_short_name(timed):
    seen = words(ladder_svg(timed))
    assert {"naive", "shared_tiling", "cuBLAS", "256³", "512³", "TFLOP/s (fp32)"} <= set(seen)


def test_untimed_ladder_shows_loads(make_record):
    seen = words(ladder_svg([make_record()]))
    assert "loads per result" in seen
    assert "from shared memory" in seen
    assert not any("TFLOP" in word for word in seen)


def test_sweep_has_a_line_a_kernel_and_a_tick_a_size(timed):
    seen = words(sweep_svg(timed))
    assert {"naive", "shared_tiling", "cuBLAS", "256", "512"} <= set(seen)


def test_without_matplotlib_the_extra_is_named(timed, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"^pictures need Matplotlib: .*'gemmkit\[plots\]'`$"):
        ladder_svg(timed)


def test_equal_records_give_equal_bytes(timed):
    assert ladder_svg(timed) == ladder_svg(timed)
    assert sweep_svg(timed) == sweep_svg(timed)


def test_nothing_is_painted_behind_the_plot(timed):
    root = ET.fromstring(ladder_svg(timed))
    for patch in ("patch_1", "patch_2"):
        group = root.find(f".//*[@id='{patch}']")
        assert all("fill: none" in path.get("style", "") for path in group), patch
