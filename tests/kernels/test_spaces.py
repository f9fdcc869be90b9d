"""Shortcuts through the spaces of kernels: what they leave out is refused anyway."""

import itertools
from dataclasses import replace

import pytest

from gemmkit.gpu import BOARDS
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.spaces import fitting_values


@pytest.mark.parametrize(
    "name",
    [
        "naive",
        "coarsening_1d",
        "coarsening_2d",
        "warp_tiled",
        "gemm_tiled",
        "gemm_split_k",
        "gemm_stream_k",
        "gemm_skinny",
        "gemm_small_k",
        "typed",
        "typed_mma",
        "grouped_typed",
        "grouped_mma",
        "warp_reduce",
    ],
)
@pytest.mark.parametrize("board", ["h100", "t4"])
def test_shortcuts_lose_no_configuration(name, board):
    kernel = find_kernel(name)
    # Some values of each key will do for a comparison with the whole product.
    space = {key: values[-2:] for key, values in kernel.space.items()}
    combinations = itertools.product(*space.values())
    every = [kernel.configure(dict(zip(space, values, strict=True))) for values in combinations]
    allowed = {config for config in every if kernel.rule(config, BOARDS[board]) is None}
    found = list(replace(kernel, space=space).configurations(BOARDS[board]))
    assert len(set(found)) == len(found)
    assert set(found) == allowed


def test_large_spaces_are_never_multiplied_out():
    space = {**dict.fromkeys(("TM", "TN", "WM", "WN", "BM", "BN"), tuple(range(1, 65))), "BK": (8,)}
    found = list(itertools.islice(fitting_values(space, BOARDS["h100"]), 1000))
    assert len(found) == 1000
    for values in found:
        assert list(values) == list(space)
        assert values["BM"] % values["WM"] == values["WM"] % values["TM"] == 0
        assert values["WM"] * values["WN"] == 32 * values["TM"] * values["TN"]
