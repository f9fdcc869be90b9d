"""Figures drawn by Matplotlib as SVG or PNG, legible on light and dark pages."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmkit.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A gray that contrasts with white and black; figures have a transparent background.
INK = "#7a7f87"
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
    form = path.suffix.lower().removeprefix(".")
    if form not in ("svg", "png"):
        raise UsageError(f"cannot draw '{path.name}': its name must end in .svg or .png")
    try:
        path.write_bytes(_draw(fill, size, form))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


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
