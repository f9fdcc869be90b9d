"""A kernel on a board: what-if curves of occupancy, and the roofline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gemmkit.analysis.explain import Facts
from gemmkit.analysis.explain.derived import level_intensities
from gemmkit.analysis.occupancy import launch_resources
from gemmkit.analysis.roofline import roofline
from gemmkit.analysis.what_if import what_if
from gemmkit.gpu import BOARDS, FP32, GpuSpec, MathPipe
from gemmkit.report.layout import Table
from gemmkit.report.occupancy import boards_table, what_if_figure, what_if_text
from gemmkit.report.pictures.drawn import Picture
from gemmkit.report.roofline import RooflinePoint, roofline_figure

if TYPE_CHECKING:
    from rich.text import Text

_CURVES_SIZE, _ROOFLINE_SIZE = (10.0, 3.2), (7.0, 4.5)


def residency(facts: Facts) -> tuple[Text, Table] | None:
    """The what-if curves on the kernel's board, and its occupancy on every known board.

    The register count is that of the compilation for its own board. None if it is unknown, or if
    the grid is empty.
    """
    taken = _taken(facts)
    if taken is None:
        return None

    def age(board: GpuSpec) -> tuple[int, int, str]:
        return board.capability.major, board.capability.minor, board.name

    boards = sorted(BOARDS.values(), key=age)
    return what_if_text(what_if(facts.gpu, **taken)), boards_table(boards, **taken)


def board_pictures(gathered: Sequence[Facts]) -> Iterator[Picture]:
    """The what-if curves of each kernel, and one roofline of all with predicted speeds."""
    for facts in gathered:
        taken = _taken(facts)
        if taken is not None:
            figure = what_if_figure(what_if(facts.gpu, **taken))
            yield Picture(f"{facts.name}-occupancy", figure, _CURVES_SIZE)
    points = roofline_points(gathered)
    if points:
        first = gathered[0]
        figure = roofline_figure(roofline(first.gpu, pipe_of(first)), points)
        yield Picture(f"{first.name}-roofline", figure, _ROOFLINE_SIZE)


def roofline_points(gathered: Sequence[Facts]) -> list[RooflinePoint]:
    """Each kernel at each level of memory, where its speed is predicted."""
    return [point for facts in gathered for point in _points(facts)]


def pipe_of(facts: Facts) -> MathPipe:
    """What the first kernel multiplies with, whose peak is drawn."""
    return facts.prediction.pipe if facts.prediction is not None else FP32


def _taken(facts: Facts) -> Mapping[str, int] | None:
    if facts.occupancy is None:
        return None
    return launch_resources(facts.plan, facts.binary)


def _points(facts: Facts) -> Iterator[RooflinePoint]:
    if facts.prediction is None:
        return
    for level, intensity in level_intensities(facts).items():
        yield RooflinePoint(facts.name, level, intensity, facts.prediction.tflops, predicted=True)
