"""`LIBRARY`: kernels that are no rungs of the ladder, for problems that no rung takes."""

from __future__ import annotations

from gemmkit.kernels import typed
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import FULL_SIGNATURE, LAYOUTS, TileConfig

LIBRARY: tuple[Kernel, ...] = (
    Kernel(
        name="typed",
        rung=None,
        idea="Elements stay in their own type until they are stored in shared memory as what the "
        "sums are made of, so that one kernel serves all types, layouts and alignments.",
        default=TileConfig(BM=128, BN=128, BK=8, WM=32, WN=64, TM=8, TN=8),
        space={
            "BM": (32, 64, 128),
            "BN": (32, 64, 128),
            "BK": (8, 16),
            "WM": (16, 32, 64),
            "WN": (16, 32, 64),
            "TM": (4, 8),
            "TN": (4, 8),
        },
        launch=typed.launch,
        rule=typed.rule,
        signature=FULL_SIGNATURE,
        layouts=LAYOUTS,
        dtypes=("float32", "float64", "float16", "bfloat16"),
        condition=typed.condition,
        pairing=typed.pairing,
    ),
)


def find_library_kernel(name: str) -> Kernel:
    """The kernel of that very name."""
    return next(kernel for kernel in LIBRARY if kernel.name == name)
