"""`Candidate`: a kernel and a configuration that may be chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from gemmkit.dtypes import ITEM_BYTES, Dtype
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import TileConfig


@dataclass(frozen=True)
class Candidate:
    """A kernel, by its name, and a configuration of it."""

    name: str
    config: TileConfig

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel."""
        return find_kernel(self.name)

    @cached_property
    def label(self) -> str:
        """Kernel and full configuration as command lines take them."""
        return f"{self.name}:{self.config}"

    @cached_property
    def instance(self) -> str:
        """The label without what is no part of the compiled code: how often k is cut."""
        return f"{self.name}:{replace(self.config, split_k=None)}"

    def costed_as(self, dtype: Dtype) -> str:
        """The name under which its costs for a type are stored: types of a size share costs, and
        float32 has them by the precision in which the kernel multiplies it."""
        fp32 = "" if self.kernel.precision == "ieee" else f" of {self.kernel.precision}"
        narrow = f" of {8 * ITEM_BYTES[dtype]} bits"
        short = {"float32": fp32, "float64": " of fp64"}.get(dtype, narrow)
        return f"{self.instance}{short}"

    def split(self, parts: int) -> Candidate:
        """The same with k cut over so many blocks."""
        return Candidate(self.name, replace(self.config, split_k=parts))


# The keys of kernels of wgmma, in the order of their tables.
WGMMA_KEYS = "BM BN BK stages consumers pingpong cluster_m cluster_n cluster_k"


def rows(name: str, keys: str, *rows: tuple[int, ...]) -> tuple[Candidate, ...]:
    """Configurations of one kernel, as a table with the names of their keys above."""
    kernel = find_kernel(name)
    return tuple(
        Candidate(name, kernel.configure(dict(zip(keys.split(), row, strict=True)))) for row in rows
    )
