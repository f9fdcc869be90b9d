"""Pictures: that they hold what the records say, and are the same each time."""

from __future__ import annotations

import itertools
import sys
import xml.etree.ElementTree as ET

import msgspec
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gemmkit.errors import UsageError
from gemmkit.record import BaselineRecord, TimeRecord
from gemmkit.report import plots
from gemmkit.report.figures import COLORS, INK, series_style
from gemmkit.report.plots import ladder_svg, sweep_svg
from gemmkit.report.suite_plots import waves_svg


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


def luminance(color: str) -> float:
    """Relative luminance as the Web Content Accessibility Guidelines define it."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts
    ]
    return sum(share * each for share, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("paper", ["#ffffff", "#0d1117"])
@pytest.mark.parametrize("color", [*COLORS, INK])
def test_colors_contrast_with_light_and_dark_pages(color, paper):
    high, low = sorted((luminance(color), luminance(paper)), reverse=True)
    assert (high + 0.05) / (low + 0.05) >= 3.0


def test_a_dozen_series_differ_in_two_of_color_marker_and_dashes():
    styles = [series_style(number) for number in range(13)]
    for one, other in itertools.combinations(styles, 2):
        assert sum(one[key] != other[key] for key in one) >= 2


def legend_and_bars(figure):
    """The rectangles of the legend and of all bars, in pixels."""
    FigureCanvasAgg(figure).draw()
    renderer = figure.canvas.get_renderer()
    (axes,) = figure.axes
    boxes = [bar.get_window_extent(renderer) for group in axes.containers for bar in group]
    (legend,) = figure.legends
    return legend.get_window_extent(renderer), boxes


@pytest.mark.parametrize("measured", [True, False])
def test_the_legend_covers_no_bar(timed, make_record, measured):
    figure = Figure(figsize=(8.0, 4.5), layout="constrained")
    if measured:
        plots._ladder_bars(figure, timed)
    else:
        plots._load_bars(figure, [make_record(), make_record(kernel="other")])
    legend, bars = legend_and_bars(figure)
    assert len(bars) >= 4
    assert not any(legend.overlaps(bar) for bar in bars)
    (axes,) = figure.axes
    assert axes.get_xlabel()
    assert axes.get_ylabel() == "kernel"


def test_a_value_of_zero_is_written_where_its_bar_has_no_length(make_record):
    assert "0" in words(ladder_svg([make_record()]))


def test_waves_have_ticks_at_measured_sizes(timed):
    sizes = (1024, 1088, 1536, 2048)
    problem = timed[0].problem
    records = [
        msgspec.structs.replace(timed[0], problem=msgspec.structs.replace(problem, m=size, n=size))
        for size in sizes
    ]
    seen = words(waves_svg(records))
    assert {"1024", "1536", "2048"} <= set(seen)
    assert "1088" not in seen
