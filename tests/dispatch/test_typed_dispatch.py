"""Problems of other types than float32 get the kernel for all types, with tiles by their size."""

from __future__ import annotations

import itertools

import pytest

from gemmkit.dispatch.candidates import CANDIDATES, candidates_for
from gemmkit.dispatch.choose import choose
from gemmkit.dispatch.which import which
from gemmkit.dtypes import ITEM_BYTES, OPERAND_TYPES, RESULT_TYPES
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import BOARDS, find_board
from gemmkit.problem import GemmProblem

H100 = find_board("h100")


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS.keys())
@pytest.mark.parametrize("out", RESULT_TYPES)
@pytest.mark.parametrize("dtype", ITEM_BYTES)
@pytest.mark.sample(5)
def test_every_pair_of_types_has_a_choice_on_every_board(board, dtype, out):
    for size in (1, 64, 1000, 4096):
        problem = GemmProblem(size, size, size, dtype=dtype, out_dtype=out, transb=True)
        choice = choose(problem, board, store=None)
        assert choice.kernel.supports(problem, choice.config, board) is None
        assert choice.reason


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_larger_products_get_larger_tiles(dtype):
    board, sides = find_board("a100"), []
    for size in (64, 512, 2048, 8192):
        config = choose(GemmProblem(size, size, size, dtype=dtype), board, store=None).config
        sides.append(config["BM"] * config["BN"])
    assert sides == sorted(sides)
    assert sides[0] <= 32 * 64
    assert sides[-1] >= 128 * 128


@pytest.mark.parametrize("dtype", OPERAND_TYPES)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_8_bits_are_multiplied_by_wgmma_by_mma_sync_or_widened(dtype, layout):
    kernels = {"h100": "gemm_fp8", "rtx4090": "gemm_fp8_mma", "rtx5090": "gemm_fp8_mma"}
    for precision, scales in (("ieee", ""), ("fast", "rows"), ("ieee", "blocks")):
        problem = GemmProblem(
            *(4096, 4096, 4096), dtype=dtype, precision=precision, scales=scales
        ).laid_out(layout)
        for key, kernel in (kernels | {"a100": "typed"}).items():
            board = find_board(key)
            found = choose(problem, board, store=None)
            assert found.kernel.name == kernel
            assert found.kernel.supports(problem, found.config, board) is None


def test_hopper_widens_8_bits_rather_than_multiply_them_by_mma_sync():
    """Where wgmma takes none: its mma.sync widens them, too."""
    assert choose(GemmProblem(64, 64, 0, dtype="float8_e4m3"), H100).kernel.name == "typed"
    assert not [each for each in candidates_for(H100) if each.name == "gemm_fp8_mma"]


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("size", [1000, 3000, 5000])
def test_rows_between_sectors_are_shared_by_clusters(layout, size):
    """TMA takes 2.5 times as long for a line of them, so each had better be loaded once."""

    def chosen(size):
        problem = GemmProblem(size, size, size, dtype="bfloat16").laid_out(layout)
        return choose(problem, H100, store=None).config

    assert chosen(size)["cluster_m"] * chosen(size)["cluster_n"] > 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_hopper_multiplies_16_bits_by_wgmma(dtype, layout):
    def chosen(size, board=H100):
        transposed = {"transa": layout[0] == "t", "transb": layout[1] == "t"}
        problem = GemmProblem(size, size, size, dtype=dtype, **transposed)
        return choose(problem, board, store=None)

    for size in (512, 1000, 2048, 8192):
        assert chosen(size).kernel.name == "gemm_wgmma"
    small, large = chosen(256).config, chosen(4096).config
    assert small["BM"] * small["BN"] < large["BM"] * large["BN"]
    # Rows that TMA cannot load are copied, but not where that takes longer than the product.
    assert chosen(1001).kernel.name == "gemm_wgmma"
    assert chosen(33).kernel.name != "gemm_wgmma"
    assert chosen(1024, find_board("rtx4090")).kernel.name == "gemm_mma"
    assert chosen(1024, find_board("t4")).kernel.name == ("typed_mma", "typed")[dtype == "bfloat16"]


def test_mixtures_and_epilogues_have_their_reason():
    problem = GemmProblem(
        300, 200, 100, dtype="float32", out_dtype="float16", epilogue=Epilogue("row", "gelu", True)
    )
    decision = which(problem, H100, store=None)
    assert decision.kernel == "typed"
    assert "estimated at" in decision.reason
    assert decision.time_us == decision.estimate_us > 0
    assert not decision.measured
    assert decision.alternatives


def test_what_is_told_of_a_board_s_fill_follows_from_the_type():
    decision = which(GemmProblem(640, 640, 640, dtype="float16"), BOARDS["t4"], store=None)
    assert decision.kernel == "typed_mma"
    assert decision.blocks_per_sm >= 1
    assert decision.waves < 10


def test_float32_is_left_to_the_rungs():
    assert choose(GemmProblem(300, 200, 100), H100, store=None).kernel.name != "typed"


def test_what_cannot_be_read_is_refused_with_the_reason():
    with pytest.raises(UnsupportedProblem, match="multiples of 8 bytes"):
        choose(GemmProblem(8, 8, 8, dtype="float64", alignment=4), H100, store=None)


TYPED = [each for each in CANDIDATES if each.name.startswith("typed")]


@pytest.mark.parametrize("candidate", TYPED, ids=lambda each: each.label)
def test_some_type_has_each_configuration_in_every_layout(candidate):
    taken = [
        problem
        for dtype, layout, size in itertools.product(RESULT_TYPES, range(4), (63, 64))
        if candidate.kernel.supports(
            problem := GemmProblem(
                *(size, size, size), dtype=dtype, transa=layout > 1, transb=layout % 2 > 0
            ),
            candidate.config,
            H100,
        )
        is None
    ]
    assert {each.layout for each in taken} == {"nn", "nt", "tn", "tt"}
