"""Which kernel the emulator runs for a product of host arrays."""

import pytest

from gemmkit.dispatch.choose import choose
from gemmkit.epilogue import Epilogue
from gemmkit.gpu import DEFAULT_BOARD, find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem

SMALL, LARGE = (16, 32), (128, 128)


def tiles(*sizes, **rest):
    config = choose(GemmProblem(*sizes, **rest), DEFAULT_BOARD, emulated=True).config
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
    choice = choose(problem, DEFAULT_BOARD, emulated=True)
    assert choice.kernel.supports(problem, choice.config, DEFAULT_BOARD) is None
    assert not choice.measured


def test_what_is_tuned_for_the_board_says_nothing_of_the_emulator():
    """The H100's own table has this shape."""
    h100, problem = find_board("h100"), GemmProblem(1, 4096, 4096)
    assert choose(problem, h100, store=None).measured
    assert choose(problem, h100, emulated=True).source == "heuristic"


def test_the_board_does_not_count():
    problem = GemmProblem(700, 800, 900)
    chosen = {
        choose(problem, find_board(name), emulated=True).config for name in ("rtx3090", "h100")
    }
    assert len(chosen) == 1


def test_groups_have_a_kernel_and_tiles_of_theirs():
    problem = GemmProblem.of_groups("5x6x7,300x200x100")
    chosen = choose(problem, DEFAULT_BOARD, emulated=True)
    assert chosen.kernel is find_kernel("gemm_grouped")
    assert chosen.kernel.supports(problem, chosen.config, DEFAULT_BOARD) is None


@pytest.mark.parametrize(
    "types", [{"dtype": "float64"}, {"dtype": "bfloat16"}, {"out_dtype": "float16"}]
)
def test_groups_of_other_types_have_theirs(types):
    problem = GemmProblem.of_groups("5x6x7,300x200x100", **types)
    chosen = choose(problem, DEFAULT_BOARD, emulated=True)
    assert chosen.kernel is find_kernel("grouped_typed")
    assert chosen.kernel.supports(problem, chosen.config, DEFAULT_BOARD) is None
