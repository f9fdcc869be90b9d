"""`grouped_typed`: groups of every type, with the mainloop of `typed`."""

from __future__ import annotations

from gemmkit.kernels.production import grouped, typed

KERNEL = grouped.of_any_type(
    typed,
    "grouped_typed",
    "Products of different shapes in one launch, of every type: elements become what the sums are "
    "made of on their way to shared memory.",
)
