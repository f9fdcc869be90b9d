"""The model: committed predictions come out again, limits are named, bad input is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemmkit.analysis.block_profile import BlockProfile, profile_block
from gemmkit.analysis.model import predict, predict_profile
from gemmkit.errors import UnsupportedProblem, UsageError
from gemmkit.gpu import GpuSpec, MathPipe, find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.report.predicted import read_rows
from gemmkit.report.readme import read_records

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
H100 = find_board("H100")
RECOMPUTED = (
    ("naive_uncoalesced", 512, 1024),
    ("naive", 4096, 1024),
    ("coarsening_2d", 2048, 1024),
    ("vectorized", 1024, 1024),
    ("async_copy", 2048, 2048),
    ("stream_k", 2048, 2048),
)


@pytest.fixture(scope="module")
def pipelined(profile_of) -> BlockProfile:
    return profile_of("double_buffered")


def at(profile: BlockProfile, size: int, spec: GpuSpec = H100):
    problem = GemmProblem(size, size, 1024)
    kernel = find_kernel(profile.plan.kernel)
    plan = kernel.plan(problem, kernel.default, spec)
    return predict_profile(replace(profile, plan=plan), problem, spec)


@pytest.mark.parametrize(("name", "size", "depth"), RECOMPUTED)
@pytest.mark.sample(6)
def test_committed_predictions_come_out_again(name, size, depth):
    rows = read_rows(RESULTS / "h100-predicted.json")
    row = next(each for each in rows if (each.kernel, each.m, each.k) == (name, size, depth))
    kernel = find_kernel(name)
    config = kernel.configure(row.config)
    seen = predict(kernel, GemmProblem(size, size, depth), H100, config=config)
    assert seen.microseconds == pytest.approx(row.predicted_us, rel=0.01), (
        "run `.venv/bin/python benchmarks/predict.py`"
    )
    assert seen.limiter == row.limiter
    assert seen.microseconds == pytest.approx(row.measured_us, rel=0.25)


@pytest.mark.parametrize("stride", [8, 16])
def test_volkovs_case_on_an_rtx3090(stride):
    """A stride of 8 at 33 % occupancy beats a stride of 1 at 100 %; one of 16 does not beat 8."""
    kernel, problem = find_kernel("coarsening_1d"), GemmProblem(1024, 1024, 1024)
    config = kernel.configure({"TM": stride})
    seen = predict(kernel, problem, find_board("RTX 3090"), config=config)
    rows = read_rows(RESULTS / "rtx3090-predicted.json")
    row = next(each for each in rows if each.config.get("TM") == stride and "TN" not in each.config)
    assert seen.tflops == pytest.approx(row.predicted_tflops, rel=0.01)
    assert seen.occupancy.theoretical == pytest.approx(1 / 3)


@pytest.mark.parametrize("board", ["RTX 4090", "A100", "L4"])
@pytest.mark.parametrize("name", ["typed", "typed_mma"])
@pytest.mark.sample(6)
def test_no_launch_is_faster_than_a_pipe_that_one_warp_keeps_busy(name, board):
    """fp64 instructions hold their pipe for longer than their results take, on most boards."""
    problem, spec = GemmProblem(512, 512, 512, dtype="float64"), find_board(board)
    seen = predict(find_kernel(name), problem, spec)
    assert seen.microseconds >= seen.terms[0].microseconds
    assert seen.tflops < spec.peak(seen.pipe)


def test_terms_are_sorted_and_the_limiter_is_the_longest(pipelined):
    seen = at(pipelined, 4096)
    times = [term.microseconds for term in seen.terms]
    assert times == sorted(times, reverse=True)
    assert seen.limiter == seen.terms[0].name
    assert seen.limiter in ("the FMA pipe", "issue slots")
    assert seen.microseconds >= times[0]
    assert len({term.name for term in seen.terms}) == len(seen.terms) == 7
    assert "predicted" in seen.summary
    assert seen.limiter in seen.summary


def test_a_grid_of_few_blocks_leaves_sms_idle(pipelined):
    few, many = at(pipelined, 1024), at(pipelined, 4096)
    assert few.busy_share == pytest.approx(64 / 132)
    assert "48 % of the time" in few.summary
    assert many.busy_share > 0.95
    assert few.tflops < many.tflops / 2


def test_the_time_of_full_waves_grows_with_them(pipelined):
    one, *times = [at(pipelined, size).microseconds for size in (128, 1024, 2048, 4096, 8192)]
    assert times == sorted(times)
    # A block of its own reads all of its operands from memory, where others share them.
    assert one == pytest.approx(times[0], rel=1e-3)
    assert times[-1] / times[-2] == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize(
    ("change", "faster"),
    [
        ({"clock_mhz": 2 * H100.clock_mhz}, 1.9),
        ({"sm_count": 2 * H100.sm_count}, 1.8),
        ({"dram_gb_per_s": 2 * H100.dram_gb_per_s}, 1.0),
    ],
)
def test_a_better_board_is_not_slower(pipelined, change, faster):
    ratio = (
        at(pipelined, 4096).microseconds / at(pipelined, 4096, replace(H100, **change)).microseconds
    )
    assert ratio >= faster


def test_a_board_with_little_bandwidth_is_limited_by_it(pipelined):
    slow = replace(H100, dram_gb_per_s=20.0)
    assert at(pipelined, 4096, slow).limiter == "DRAM bandwidth"


def test_what_cannot_be_predicted_is_refused(pipelined):
    naive = find_kernel("naive")
    with pytest.raises(UsageError, match="there is nothing to predict"):
        predict(naive, GemmProblem(16, 16, 0), H100)
    with pytest.raises(UnsupportedProblem):
        predict(naive, GemmProblem(2**31, 16, 16), H100)
    silent = replace(pipelined, binary=replace_resources(pipelined))
    with pytest.raises(UsageError, match="register count is unknown"):
        predict_profile(silent, GemmProblem(1024, 1024, 1024), H100)


def replace_resources(profile: BlockProfile):
    import msgspec

    return msgspec.structs.replace(profile.binary, resources=None)


TILE_64 = {"BM": 64, "BN": 64, "BK": 32, "WM": 32, "WN": 32, "TM": 8, "TN": 4, "stages": 3}


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.sample(3)
def test_a_tile_that_blocks_share_is_counted_once(parts):
    """As much arithmetic as without, more traffic; and less time while the board has room."""
    kernel, problem = find_kernel("gemm_split_k"), GemmProblem(256, 256, 512)
    config = kernel.configure(TILE_64 | {"split_k": parts})
    profile = profile_block(kernel, problem, H100, config=config)
    multiplied = sum(
        count
        for count, action in zip(profile.executed(512), profile.actions, strict=True)
        if action.form.opcode_class == "fma"
    )
    assert profile.tiles == 1 / parts
    # The compiler may compute beta * C, one more for each result, whatever beta is.
    assert multiplied * profile.plan.blocks * 32 in (256 * 256 * 512, 256 * 256 * (512 + 1))
    seen = predict_profile(profile, problem, H100)
    again = 2 * parts if parts > 1 else 0
    results = 4 * 256 * 256
    assert seen.l2_bytes == 256 * 256 * 4 * (512 / 64 * 2) + results * (1 + again)
    names = [term.name for term in seen.terms]
    assert ("the fix-up of shared tiles" in names) is (parts > 1)


def test_more_blocks_on_a_board_that_is_empty_are_faster():
    kernel, problem = find_kernel("gemm_split_k"), GemmProblem(256, 256, 2048)
    times = [
        predict(
            kernel, problem, H100, config=kernel.configure(TILE_64 | {"split_k": parts})
        ).microseconds
        for parts in (1, 8)
    ]
    assert times == sorted(times, reverse=True)


def test_even_shares_save_the_last_wave():
    """1.2 tiles per SM: nearly half of the board idles, or nothing does."""
    problem = GemmProblem(768, 832, 1024)
    config = {"BM": 64, "BN": 64, "BK": 8, "WM": 32, "WN": 32, "TM": 8, "TN": 4, "stages": 3}
    whole, even = (
        predict(kernel, problem, H100, config=kernel.configure(config))
        for kernel in map(find_kernel, ("gemm_tiled", "gemm_stream_k"))
    )
    assert whole.busy_share < 0.8
    assert even.busy_share == 1
    assert even.microseconds < 0.85 * whole.microseconds


@pytest.mark.parametrize(
    ("name", "dtype", "keys", "pipe", "measured_us"),
    [
        # benchmarks/results/h100-typed.json, 4096³, NN.
        (
            "typed_mma",
            "float16",
            {"BM": 128, "BN": 128, "BK": 32, "WM": 64, "WN": 64},
            MathPipe("float16", tensor=True),
            606.6,
        ),
        (
            "typed_mma",
            "float64",
            {"BM": 64, "BN": 64, "BK": 16, "WM": 32, "WN": 32},
            MathPipe("float64", tensor=True),
            3695.3,
        ),
        ("typed", "float64", {"BM": 64, "BN": 64, "BK": 16}, MathPipe("float64"), 7271.4),
    ],
)
@pytest.mark.sample(3)
def test_types_are_predicted_by_the_pipe_that_multiplies_them(name, dtype, keys, pipe, measured_us):
    kernel = find_kernel(name)
    config = kernel.configure({**keys, **({"WN": 32, "TN": 4} if name == "typed" else {})})
    seen = predict(kernel, GemmProblem(4096, 4096, 4096, dtype=dtype), H100, config=config)
    assert seen.pipe == pipe
    assert 0.05 < seen.tflops / H100.peak(pipe) < 1
    assert seen.microseconds == pytest.approx(measured_us, rel=0.35)
    assert any(term.name == "the tensor cores" for term in seen.terms) == pipe.tensor


BATCHES = {
    record.problem.shape: record
    for record in read_records(RESULTS / "h100-bench.json")
    if record.suite == "batched" and record.problem.epilogue == "none"
}


@pytest.mark.parametrize("shape", ["32x32x32x4096", "256x256x256x256", "512x512x64x128"])
@pytest.mark.sample(3)
def test_batches_are_predicted_as_they_were_measured(shape):
    measured = BATCHES[shape]
    kernel = find_kernel(measured.kernel)
    assert measured.time_us is not None
    config = kernel.configure(measured.config)
    seen = predict(kernel, GemmProblem.from_shape(shape), H100, config=config)
    assert seen.microseconds == pytest.approx(measured.time_us.median, rel=0.06)


@pytest.mark.parametrize(
    ("name", "shape"), [("gemm_skinny", "8x128x512x5"), ("gemm_split_k", "128x256x512x3")]
)
@pytest.mark.sample(2)
def test_products_of_a_batch_that_share_blocks(name, shape):
    """A long batch takes as many times as long as it has products."""
    kernel, problem = find_kernel(name), GemmProblem.from_shape(shape)
    few, many = (
        predict(kernel, replace(problem, batch=times * problem.batch), H100).microseconds
        for times in (40, 80)
    )
    launch = H100.pipes.launch_us
    assert (many - launch) / (few - launch) == pytest.approx(2, rel=0.1)
