"""`Mutation`: a bug planted in a kernel by changing a few words of its source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from gemmkit.kernels import include_files
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import SourceFile
from gemmkit.kernels.policy import STANDARD
from gemmkit.problem import GemmProblem
from rung_boards import SMALL_HOPPER

WRONG_RESULT = "wrong result"

# Small tiles: quick to compile for the emulator, and more than one warp per block.
_SMALL = {"BM": 32, "BN": 32, "BK": 8, "TM": 4, "TN": 4}
_SMALL_WARPS = {"BM": 64, "BN": 64, "BK": 8, "WM": 32, "WN": 32, "TM": 8, "TN": 4}
_SMALL_TENSOR = {"BM": 32, "BN": 32, "BK": 16, "WM": 32, "WN": 16}
CONFIGS = {
    "naive_uncoalesced": {"BM": 16, "BN": 8},
    "naive": {"BM": 8, "BN": 16},
    "shared_tiling": {"BM": 16, "BN": 16, "BK": 16},
    "coarsening_1d": {"stride": 4},
    **dict.fromkeys(("coarsening_2d", "vectorized", "conflict_free", "double_buffered"), _SMALL),
    "warp_tiled": _SMALL_WARPS,
    "async_copy": {**_SMALL_WARPS, "stages": 3},
    "split_k": {**_SMALL_WARPS, "BK": 16, "stages": 2, "split_k": 3},
    "warp_reduce": {"BN": 32, "BK": 64, "stages": 3},
    "stream_k": {**_SMALL_WARPS, "stages": 3},
    **dict.fromkeys(("wmma", "mma_sync"), _SMALL_TENSOR),
    "mma_pipelined": {**_SMALL_TENSOR, "stages": 3},
    **SMALL_HOPPER,
    "gemm_tiled": {**_SMALL_WARPS, "stages": 3},
    "gemm_split_k": {**_SMALL_WARPS, "BK": 16, "stages": 2, "split_k": 3},
    "gemm_skinny": {"BN": 32, "BK": 32, "split_k": 3},
    "gemm_stream_k": {**_SMALL_WARPS, "stages": 3},
    "gemm_grouped": {**_SMALL_WARPS, "stages": 3},
}


@dataclass(frozen=True)
class Mutation:
    """One planted bug.

    `old`, which stands exactly once in `file` (the kernel's own by default, or an include), becomes
    `new`. `problem` shows the bug. `expects` names every check that must report something there,
    or is `WRONG_RESULT` alone for a bug of arithmetic, which breaks no rule of the machine.
    `hangs`: on a GPU the launch may never end.
    """

    name: str
    kernel: str
    problem: GemmProblem
    old: str
    new: str
    expects: tuple[str, ...]
    file: str = ""
    hangs: bool = False

    @property
    def changed_file(self) -> str:
        """The file that is changed."""
        return self.file or f"{self.kernel}.cu"

    def mutant(self, folder: Path) -> Kernel:
        """The rung with the bug; a changed include is written to `folder`.

        Raises:
            ValueError: `old` does not occur exactly once in the file.
        """
        rung = find_kernel(self.kernel)
        sources = {f"{self.kernel}.cu": rung.source, **include_files()}
        text = sources[self.changed_file]
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: not exactly once in {self.changed_file}: {self.old}")
        sources[self.changed_file] = text.replace(self.old, self.new)
        dirs: tuple[str, ...] = ()
        if self.file:
            own = folder / f"{self.kernel}_{self.name}".replace(" ", "_")
            own.mkdir(parents=True, exist_ok=True)
            for name in include_files():
                path = own / name
                path.parent.mkdir(exist_ok=True)
                # Another process may be reading it.
                if not path.exists():
                    path.write_text(sources[name], "utf-8")
            dirs = (str(own),)
        source = SourceFile(
            sources[f"{self.kernel}.cu"],
            f"{self.kernel}.cu",
            include_dirs=dirs,
            options=(STANDARD,),
        )
        return replace(rung, file=source)
