"""Why a kernel is as fast as it is: figures that follow from code, counters and board."""

from gemmkit.analysis.loads import Loads, count_loads
from gemmkit.analysis.occupancy import Occupancy, occupancy

__all__ = ["Loads", "Occupancy", "count_loads", "occupancy"]
