"""Figures drawn by Matplotlib as SVG or PNG, and series of them that remain distinct on light and
dark pages."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmkit.errors import UsageError
from gemmkit.report.output_files import write_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A gray that contrasts with white and black; figures have a transparent background.
INK = "#7a7f87"
# Colors that contrast with both by 3:1 at least, those that differ most first.
COLORS = (
    "#3b82c4",
    "#c9691a",
    "#3f9b5b",
    "#a06cc8",
    "#d1495b",
    "#17919f",
    "#a5733a",
    "#c95fa8",
    "#808a1f",
)
_MARKERS = "osD^vPX<>*hp8"
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
_STYLE: dict[str, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "grid.color": INK,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "gemmkit",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
_SIZE = (8.0, 4.5)
_DOTS_PER_INCH = 150

Fill = Callable[["Figure"], None]


def series_style(number: int) -> dict[str, Any]:
    """Color, marker and dashes of the series of a number; the first 13 differ in two of them.

    The names are those of `Axes.plot`'s arguments.
    """
    return {
        "color": COLORS[number % len(COLORS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": _DASHES[number % len(_DASHES)],
    }


def check_matplotlib() -> None:
    """Check that figures can be drawn.

    Raises:
        UsageError: there is no Matplotlib; the text says how to get it.
    """
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise UsageError("pictures need Matplotlib: run `pip install 'gemmkit[plots]'`")


def svg(fill: Fill, size: tuple[float, float] = _SIZE) -> str:
    """A figure as SVG; equal figures give equal text.

    Args:
        fill: draws into an empty figure.
        size: width and height in inches.

    Raises:
        UsageError: there is no Matplotlib.
    """
    return _draw(fill, size, "svg").decode()


def save(path: Path, fill: Fill, size: tuple[float, float] = _SIZE) -> None:
    """Write a figure in the format given by the file name, SVG or PNG.

    Raises:
        UsageError: the name has another suffix, the file cannot be written, or there is no
            Matplotlib.
    """
    form = check_form(path)
    write_output(path, _draw(fill, size, form))


def check_form(path: Path) -> str:
    """The format given by a file name: svg or png.

    Raises:
        UsageError: the name has another suffix.
    """
    form = path.suffix.lower().removeprefix(".")
    if form not in ("svg", "png"):
        raise UsageError(f"cannot draw '{path.name}': its name must end in .svg or .png")
    return form


def _draw(fill: Fill, size: tuple[float, float], form: str) -> bytes:
    check_matplotlib()
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = io.BytesIO()
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        fill(figure)
        # No date, so that equal figures give equal bytes.
        figure.savefig(
            drawn,
            format=form,
            dpi=_DOTS_PER_INCH,
            metadata={"Date": None} if form == "svg" else None,
        )
    return drawn.getvalue()
