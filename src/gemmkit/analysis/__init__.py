"""Figures that follow from counters and resources, such as occupancy."""
