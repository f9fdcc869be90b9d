"""Why a kernel is as fast as it is: figures that follow from code, counters and board."""

from gemmkit.analysis.occupancy import Occupancy, occupancy

__all__ = ["Occupancy", "occupancy"]
