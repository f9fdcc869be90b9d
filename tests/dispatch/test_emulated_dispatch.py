"""Which kernel the emulator runs for a product of host arrays."""

import pytest

from gemmkit.dispatch.emulated import choose_emulated, grouped_tiles
from gemmkit.epilogue import Epilogue
from gemmkit.gpu import DEFAULT_BOARD
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem

SMALL, LARGE = (16, 32), (128, 128)


def tiles(*sizes, **rest):
    _, config = choose_emulated(GemmProblem(*sizes, **rest))
    return config["BM"], config["BN"]


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ((64, 64, 64), SMALL),
        ((256, 256, 256), SMALL),
        ((512, 512, 512), LARGE),
        ((129, 4097, 2048), LARGE),
        # Large tiles would be nearly empty.
        ((16, 4096, 4096), SMALL),
        ((8192, 2, 8192), SMALL),
        ((0, 512, 512), SMALL),
    ],
)
def test_large_products_have_large_tiles_where_they_fill_them(sizes, wanted):
    assert tiles(*sizes) == wanted


def test_the_products_of_a_batch_count_together():
    assert tiles(128, 128, 128, batch=4) == SMALL
    assert tiles(128, 128, 128, batch=64) == LARGE


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("size", [33, 777])
@pytest.mark.parametrize(("transa", "transb"), [(False, True), (True, True)])
def test_what_is_chosen_takes_every_layout_epilogue_and_type(dtype, size, transa, transb):
    problem = GemmProblem(
        *(size, size + 1, size + 2),
        dtype=dtype,
        transa=transa,
        transb=transb,
        batch=3,
        epilogue=Epilogue("row", "gelu", residual=True, scale=0.5, auxiliary=True),
        alignment=8 if dtype == "float64" else 4,
    )
    kernel, config = choose_emulated(problem)
    assert kernel.supports(problem, config, DEFAULT_BOARD) is None


def test_the_tiles_of_groups_are_a_configuration_of_theirs():
    kernel = find_kernel("gemm_tiled")
    assert kernel.supports(GemmProblem(1, 1, 1), grouped_tiles(), DEFAULT_BOARD) is None
