"""Dispatch: which kernel and configuration computes a problem on a board, and why."""
