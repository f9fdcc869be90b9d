"""The sizes of products that bound what gemmkit's kernels take."""

from __future__ import annotations

# The most rows (or columns) of a product that counts as skinny.
SKINNY = 16

# The largest k that counts as short.
SHORT_K = 32

# Rows, columns and depth are 32-bit in the kernels, and the last tile reaches past the edge.
MAX_EXTENT = 2**31 - 2**17
