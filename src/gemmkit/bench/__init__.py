"""Runs kernels and turns what is seen into records."""
