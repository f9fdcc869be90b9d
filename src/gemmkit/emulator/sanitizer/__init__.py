"""Finds faults of a kernel while it runs: accesses, unwritten memory, races, barriers."""
