"""Performance analysis of a kernel from its code, its counters and the board."""

from gemmkit.analysis.loads import Loads, count_loads
from gemmkit.analysis.occupancy import Occupancy, occupancy

__all__ = ["Loads", "Occupancy", "count_loads", "occupancy"]
