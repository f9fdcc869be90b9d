"""`LIBRARY`: kernels that are no rungs of the ladder, for problems that no rung takes."""

from __future__ import annotations

from gemmkit.kernels import typed, typed_mma
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
    Kernel(
        name="typed_mma",
        rung=None,
        idea="Warps multiply float16, bfloat16 or float64 tiles by mma.sync, on the tensor cores, "
        "whose peak is many times that of single multiply-adds.",
        default=TileConfig(BM=64, BN=64, BK=32, WM=32, WN=32),
        space={
            "BM": (32, 64, 128),
            "BN": (32, 64, 128, 256),
            "BK": (16, 32, 64),
            "WM": (16, 32, 64),
            "WN": (16, 32, 64),
        },
        launch=typed_mma.launch,
        rule=typed_mma.rule,
        signature=FULL_SIGNATURE,
        layouts=LAYOUTS,
        # Of float32 it makes results alone.
        dtypes=("float16", "bfloat16", "float64", "float32"),
        condition=typed_mma.condition,
        pairing=typed_mma.pairing,
    ),
)


def find_library_kernel(name: str) -> Kernel:
    """The kernel of that very name."""
    return next(kernel for kernel in LIBRARY if kernel.name == name)
