"""The peer Triton: the same product from its compiler, in fp32 or TF32, with its tiles tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gemmkit.bench.baseline import Arguments, Way
from gemmkit.bench.torch_peer import cuda_torch
from gemmkit.bench.torch_tensors import device_tensor, operand_tensors
from gemmkit.devices.device import TimedDevice, Work
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import MAX_GRID_YZ
from gemmkit.kernels.plan import ceil_div
from gemmkit.problem import GemmProblem


class Tiles(NamedTuple):
    """A configuration: the block's tile, warps and stages."""

    BM: int
    BN: int
    BK: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"{self.BM}x{self.BN}x{self.BK}, {self.warps} warps, {self.stages} stages"


# Without tensor cores Triton unrolls a tile's products, so that a large BK only bloats the code; it
# takes none below 16.
CONFIGURATIONS = (
    Tiles(128, 128, 16, 8, 3),
    Tiles(128, 128, 16, 4, 3),
    Tiles(128, 64, 16, 4, 3),
    Tiles(64, 128, 16, 4, 3),
    Tiles(64, 64, 16, 4, 4),
    Tiles(32, 64, 32, 4, 3),
    Tiles(32, 32, 32, 2, 2),
    Tiles(16, 64, 32, 2, 4),
    Tiles(16, 128, 32, 4, 3),
)
GROUP = 8
# Fewer tiles leave nearly all SMs without work, and more reuse too little to be worth a trial.
LEAST_TILES, MOST_TILES = 8, 16384
SKINNY_ROWS = 16


class TritonBaseline:
    """A tiled kernel of our own in Triton, compiled for those of `CONFIGURATIONS` that suit.

    Raises:
        ImportError: Triton or PyTorch is not installed.
        RuntimeError: PyTorch is, but without CUDA.
    """

    def __init__(self, device: TimedDevice) -> None:
        import triton

        self._torch = cuda_torch()
        from gemmkit.bench.triton_kernel import matmul

        self._matmul = matmul
        self._ordinal = device.stream.device.device_id
        self.name = f"Triton {triton.__version__}"

    def candidates(self, problem: GemmProblem, arguments: Sequence[Arguments]) -> dict[str, Way]:
        """A way for each configuration that suits the shape; the first launch compiles it.

        Raises:
            UnsupportedProblem: the kernel has no such layout, type or epilogue, or there are more
                products than a grid has room for.
        """
        if problem.groups is not None:
            raise UnsupportedProblem("the Triton kernel multiplies products of one shape")
        epilogue = problem.epilogue
        plain = epilogue.activation in ("none", "relu") and epilogue.bias != "row"
        floats = {problem.dtype, problem.result_dtype} == {"float32"}
        if problem.layout != "nn" or not floats or not plain or epilogue.takes_matrices:
            raise UnsupportedProblem(
                "the Triton kernel multiplies row-major float32 matrices, with a bias for each "
                "column, relu, both or none"
            )
        if problem.batch > MAX_GRID_YZ:
            raise UnsupportedProblem(f"its grid has room for {MAX_GRID_YZ:,} products of a batch")
        return {
            f"{self.name} ({tiles})": Way([self._work(problem, tiles, each) for each in arguments])
            for tiles in suitable(problem)
        }

    def _work(self, problem: GemmProblem, tiles: Tiles, bound: Arguments) -> Work:
        torch, ordinal = self._torch, self._ordinal
        m, n, k = problem.m, problem.n, problem.k
        one = problem.single  # a tensor tells the kernel its address and nothing else
        operands = [*operand_tensors(torch, ordinal, one, bound)]
        biased = bool(problem.epilogue.bias)
        operands.append(
            device_tensor(torch, ordinal, bound["bias"], (n,), (1,)) if biased else operands[-1]
        )
        grid: tuple[int, ...] = (ceil_div(m, tiles.BM) * ceil_div(n, tiles.BN),)
        if problem.batch != 1:
            grid = (*grid, problem.batch)
        launch = self._matmul[grid]

        def enqueue(stream: Any) -> None:
            outer = torch.cuda.ExternalStream(int(stream.handle), device=ordinal)
            with torch.cuda.stream(outer):
                launch(
                    *operands,
                    *(m, n, k, problem.lda, problem.ldb, problem.ldc),
                    *problem.strides,
                    *(problem.alpha, problem.beta),
                    BM=tiles.BM,
                    BN=tiles.BN,
                    BK=tiles.BK,
                    GROUP=GROUP,
                    BATCHED=problem.batch != 1,
                    SCALED=problem.alpha != 1,
                    ADDED=problem.beta != 0,
                    BIAS=biased,
                    RELU=problem.epilogue.activation == "relu",
                    PRECISION="tf32" if problem.precision == "tf32" else "ieee",
                    num_warps=tiles.warps,
                    num_stages=tiles.stages,
                )

        return enqueue


def suitable(problem: GemmProblem) -> list[Tiles]:
    """The configurations worth a trial for a shape; at least one."""
    skinny = problem.m <= SKINNY_ROWS
    found = [each for each in CONFIGURATIONS if (each.BM <= SKINNY_ROWS) == skinny]
    fitting = [each for each in found if LEAST_TILES <= _tiles(problem, each) <= MOST_TILES]
    return fitting or found


def _tiles(problem: GemmProblem, tiles: Tiles) -> int:
    """Tiles of all products."""
    return ceil_div(problem.m, tiles.BM) * ceil_div(problem.n, tiles.BN) * problem.batch
