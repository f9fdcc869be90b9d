"""`grouped_mma`: groups on the tensor cores, with the mainloop of `typed_mma`."""

from __future__ import annotations

from gemmkit.kernels.production import grouped, typed_mma

KERNEL = grouped.of_any_type(
    typed_mma,
    "grouped_mma",
    "Products of different shapes in one launch, such as the experts of a mixture, multiplied by "
    "mma.sync on the tensor cores.",
)
