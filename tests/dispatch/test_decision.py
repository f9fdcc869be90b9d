"""`gemmkit.which`: the decision, its launch, and why others lose."""

from __future__ import annotations

import re
import subprocess
import sys

import msgspec
import pytest

import gemmkit
from gemmkit.dispatch.choose import Dispatcher
from gemmkit.dispatch.prices import Ranked
from gemmkit.dispatch.runners_up import why_it_loses
from gemmkit.dispatch.which import Decision, which
from gemmkit.errors import UsageError
from gemmkit.gpu import BOARDS, find_board
from gemmkit.kernels.plan import TileConfig
from gemmkit.problem import GemmProblem
from gemmkit.report.decision import decision_text
from gemmkit.trials.entry import Entry, ProblemClass, gpu_key
from gemmkit.trials.freshness import Freshness, source_digest
from gemmkit.trials.store import Store

H100 = find_board("h100")


def test_a_decision_says_what_is_launched():
    found = which("700x900x1100", "h100", store=None)
    assert (found.shape, found.gpu, found.size, found.aligned) == (
        "700x900x1100",
        "H100",
        "medium",
        True,
    )
    kernel = gemmkit.find_kernel(found.kernel)
    config = gemmkit.TileConfig(**found.config)
    plan = kernel.plan(GemmProblem(700, 900, 1100), config, H100)
    assert (found.grid, found.block) == (plan.grid, plan.block)
    assert found.source == "heuristic"
    assert found.time_us == found.estimate_us
    assert found.tflops == pytest.approx(2 * 700 * 900 * 1100 / found.time_us / 1e6)
    assert found.tflops < H100.peak_tflops


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ("2049x2050x2049", ("the last 1 row and 2 columns", "4 chunks of k")),
        ("2048x2056x2048", ("the last 8 columns,",)),
        ("16384", ("grouped rasterization",)),
    ],
)
def test_what_follows_from_the_problem_is_told(shape, told):
    found = which(shape, "h100", store=None)
    text = decision_text(found)
    assert all(each in text for each in told), text
    plain = decision_text(which(2048, "h100", store=None))
    assert not any(word in plain for word in ("edge ", "order ", "sums "))


def test_stages_of_the_launch_are_told_where_they_are_fewer():
    """Old values of C take the shared memory of one of the four."""
    plain, added = (
        which(4096, "h100", dtype="bfloat16", beta=beta, store=None) for beta in (0.0, 1.0)
    )
    assert plain.config == added.config
    assert (plain.stages, plain.fewer_stages) == (plain.config["stages"], "")
    assert added.stages == plain.stages - 1
    assert added.fewer_stages in decision_text(added)
    assert "stages " not in decision_text(plain)


def test_alternatives_are_the_next_by_estimate_and_the_guides_tile():
    found = which("3072x3072x1024", "h100", store=None)
    times = [each.estimate_us for each in found.alternatives]
    assert times == sorted(times)
    assert times[0] >= found.time_us
    assert all(each.why for each in found.alternatives)
    shown = [(each.config["BM"], each.config["BN"]) for each in found.alternatives if each.by_size]
    own = (found.config["BM"], found.config["BN"])
    assert (128, 256) in [*shown, own]
    chosen = (found.kernel, found.config)
    assert chosen not in [(each.kernel, each.config) for each in found.alternatives]
    assert len(which(512, "h100", store=None, alternatives=0).alternatives) <= 1


@pytest.mark.parametrize("board", BOARDS.values(), ids=lambda board: board.key)
@pytest.mark.parametrize("shape", [(1, 4096, 4096), (300, 301, 0), (0, 5, 5), (8192, 8192, 8192)])
@pytest.mark.sample
def test_every_decision_can_be_told_and_read_again(board, shape):
    found = which(shape, board, epilogue="bias+relu", store=None)
    assert msgspec.json.decode(found.to_json(), type=Decision) == found
    text = decision_text(found)
    assert found.kernel in text
    assert found.reason in text
    assert "with bias+relu" in text


def test_what_was_measured_is_told_beside_the_estimate(tmp_path):
    problem = GemmProblem(500, 501, 502)
    kernel = gemmkit.find_kernel("naive")
    store = Store(tmp_path / "store.sqlite3", Freshness(compiler="13.5"))
    store.put(
        Entry(
            gpu=gpu_key(H100),
            problem=ProblemClass.of(problem),
            kernel="naive",
            config={"BM": 8, "BN": 32},
            outcome="ok",
            source=source_digest(kernel),
            compiler="13.5",
            time_us=1234.5,
        )
    )
    found = which(problem, H100, store=store)
    assert (found.source, found.kernel, found.time_us) == ("store", "naive", 1234.5)
    assert found.estimate_us != found.time_us
    text = decision_text(found)
    assert "1,234.5 µs" in text
    assert "measured; estimated" in text
    assert "rows not aligned" in text
    assert any("only estimated" in each.why for each in found.alternatives)


def test_no_time_of_another_problem_is_called_measured(tmp_path):
    problem = GemmProblem(500, 501, 502)
    store = Store(tmp_path / "store.sqlite3", Freshness(compiler="13.5"))
    store.put(
        Entry(
            gpu=gpu_key(H100),
            problem=ProblemClass.of(problem),
            kernel="naive",
            config={"BM": 8, "BN": 32},
            outcome="ok",
            source=source_digest(gemmkit.find_kernel("naive")),
            compiler="13.5",
            time_us=1234.5,
        )
    )
    found = which(problem, H100, store=store, epilogue="bias+relu")
    assert (found.source, found.kernel, found.measured) == ("store", "naive", False)
    text = decision_text(found)
    assert "measured; estimated" not in text
    assert "TFLOP/s, estimated" in text


def test_other_types_have_alternatives_and_estimates_of_their_own(tmp_path):
    found = which("1024x1024x9216", H100, store=None, dtype="float16")
    assert found.kernel == "gemm_wgmma"
    assert {each.kernel for each in found.alternatives} <= {"gemm_wgmma", "typed_mma", "typed"}
    assert found.time_us == found.estimate_us
    assert all(each.estimate_us >= found.estimate_us for each in found.alternatives)


def test_a_decision_for_no_board_is_for_the_default_one():
    assert which(64, store=None).gpu == "RTX 3090"


@pytest.mark.parametrize(
    ("shape", "board", "message"),
    [("12x", "h100", "is not a valid shape"), ("64", "h10", "unknown board")],
)
def test_what_cannot_be_meant_is_refused(shape, board, message):
    with pytest.raises(UsageError, match=message):
        which(shape, board, store=None)


def test_choosing_imports_nothing_heavy():
    program = (
        "import sys, gemmkit\n"
        "gemmkit.choose(gemmkit.GemmProblem(300, 200, 100), gemmkit.find_board('h100'))\n"
        "heavy = {'numpy', 'llvmlite', 'cuda', 'matplotlib', 'rich', 'torch', 'numba'}\n"
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ("64x64x64*4000", {}),
        (1024, {"dtype": "float64"}),
        (512, {}),
        ("7x1000x30000", {}),
        ("100000x100000x100000", {"dtype": "float64"}),
        (8192, {"dtype": "float16", "layout": "tn"}),
        ("1x8192x8192", {}),
        ("100x100x100000", {}),
        ("64x65536x8", {}),
        ("3x1x200000", {"dtype": "float64"}),
        ("64x64x64", {"dtype": "float8_e4m3"}),
        ("513x511x129", {"precision": "tf32"}),
        ("200x300x400", {"precision": "fp32"}),
    ],
)
@pytest.mark.parametrize("board", ["h100", "rtx3090"])
def test_reasons_are_true_of_the_estimates(board, shape, options):
    """No part is longer than the whole, and what "differs little" does."""
    problem = GemmProblem.of_groups(shape) if "*" in str(shape) else shape
    found = which(problem, board, store=None, **options)
    for each in found.alternatives:
        little = each.estimate_us < 1.03 * found.estimate_us
        if "differs little" in each.why:
            assert little, each
        elif "launches" not in each.why:
            shares, times = (
                [float(number) for number in re.findall(rf"([0-9.]+) {unit}", each.why)]
                for unit in ("%", "[µm]s")
            )
            assert shares == sorted(shares), each
            assert times == sorted(times, reverse=True), each
            for numbers in (shares, times):
                assert len(set(numbers)) == len(numbers), each


@pytest.mark.parametrize(("shape", "board"), [("64x65536x8", "rtx3090"), ("1000000x64x5", "a100")])
def test_stores_that_cover_parts_of_sectors_are_the_reason(shape, board):
    others = which(shape, board, store=None).alternatives
    assert "it stores C in parts of sectors, which reaches 45 % of the bandwidth" in others[-1].why


def test_blocks_that_load_memory_ports_unevenly_are_the_reason():
    dispatcher = Dispatcher(find_board("h200"), None)
    problem = GemmProblem(16, 12288, 4096, dtype="bfloat16").laid_out("nt")
    first, *_ = dispatcher.ranked(problem)
    keys = {"BK": 64, "stages": 6, "consumers": 2, "pingpong": 1}
    keys |= {"cluster_m": 1, "cluster_n": 1, "cluster_k": 1}
    wide = dispatcher.costed("gemm_wgmma", TileConfig(BM=16, BN=256, **keys))
    loser = Ranked(wide, wide.estimate(problem))
    why = why_it_loses(loser, first, problem, entered=False)
    assert why.startswith("its 48 blocks load the memory ports of SM groups less evenly")


@pytest.mark.parametrize("board", BOARDS.values(), ids=lambda board: board.key)
@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem.of_groups("64x64x64*4000"),
        GemmProblem.of_groups("1x4096x4096*64"),
        GemmProblem(4096, 4096, 16),
        GemmProblem(8, 8192, 8192),
        GemmProblem(100, 100, 100_000),
    ],
    ids=lambda problem: problem.shape[:20],
)
@pytest.mark.sample
def test_no_part_of_an_estimate_is_longer_than_the_whole(board, problem):
    for each in Dispatcher(board, None).ranked(problem):
        seen = each.estimate
        parts = (seen.memory_us, seen.steps_us, seen.tiles_us, seen.sharing_us, seen.before_us)
        assert max(parts) <= seen.microseconds
        assert seen.memory_us >= problem.minimal_bytes / (board.dram_gb_per_s * 1e3)


def test_a_launch_before_it_is_the_reason():
    found = which("64x64x64", "h100", dtype="float8_e4m3", store=None)
    assert found.kernel == "typed"
    (text,) = {each.why for each in found.alternatives if each.kernel == "gemm_fp8"}
    assert re.fullmatch(
        r"a launch before it copies operands, which takes [0-9.]+ µs; the choice needs none", text
    )


def test_a_slower_pipe_is_the_reason():
    found = which(1024, "h100", dtype="float64", store=None, alternatives=40)
    (text,) = {each.why for each in found.alternatives if each.kernel == "typed"}
    assert text == (
        "it multiplies on the fp64 FMA pipe (peak 33.5 TFLOP/s), the choice on fp64 tensor cores "
        "(peak 66.9 TFLOP/s)"
    )


@pytest.mark.parametrize("shape", ["0x0x0", "0x5x7", "8x0x8"])
def test_where_c_is_empty_there_is_nothing_to_choose(shape):
    found = which(shape, "h100", store=None)
    assert found.reason == "C is empty: there is nothing to compute"
    assert not found.alternatives


def test_a_residual_takes_the_time_of_its_bytes():
    a100 = BOARDS["a100"]
    plain, added, read = (
        which("20000x20000x8", a100, beta=beta, epilogue=epilogue, store=None)
        for beta, epilogue in ((0.0, "none"), (0.0, "residual"), (1.0, "none"))
    )
    assert added.time_us == pytest.approx(read.time_us)
    assert added.time_us - plain.time_us > 4 * 20000**2 / (a100.dram_gb_per_s * 1e3)


def test_matrices_that_do_not_fit_in_memory_are_told():
    told = decision_text(which("3000000x3000000x1", "t4", store=None))
    assert "the matrices take 33,528 GiB and do not fit in the 16 GiB of T4" in told
    assert "do not fit" not in decision_text(which("30000x30000x1", "t4", store=None, beta=1.0))
