"""Finds what is wrong with a kernel while it runs: accesses, unwritten memory, races, barriers."""
