"""`ladder` and `sweep`: what they ask for, print, write and exit with."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

import gemmkit
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.record import Record

DEVICE = SimpleNamespace(kind="emulator", spec=find_board("rtx3090"))


@pytest.fixture
def fake(monkeypatch, make_record):
    """Replace the run behind a verb by one that gives the records put in `fake.records`."""
    state = SimpleNamespace(records=[make_record()], asked=None, sizes=None, error=None)

    def run(progress, **asked):
        state.asked = asked
        progress.opened(DEVICE, "")
        progress.compiled(1, 1, "naive")
        progress.skipped(find_kernel("naive"), GemmProblem(1, 1, 1), "no reason")
        for done, record in enumerate(state.records):
            progress.started(find_kernel("naive"), GemmProblem(64, 64, 64), done, 2)
            progress.launched(0.5)
            progress.finished(record)
        if state.error is not None:
            raise state.error
        return state.records

    def sweep(sizes, **asked):
        state.sizes = sizes
        return run(**asked)

    monkeypatch.setattr("gemmkit.bench.ladder.ladder", run)
    monkeypatch.setattr("gemmkit.bench.sweep.sweep", sweep)
    monkeypatch.setattr("gemmkit.devices.choose.open_device", lambda *_, **__: DEVICE)
    return state


def test_ladder_prints_the_table_alone_on_stdout(call, fake):
    result = call("ladder", "--device", "emulator")
    assert result.exit_code == 0
    assert result.stdout.startswith("C = αAB + βC, 64x64x64")
    assert "naive" in result.stdout
    assert "Left out: no reason." in result.stdout
    assert result.stderr.splitlines() == [
        "Running on the emulator, for RTX 3090.",
        "[1/1] compiled naive",
        "[1/2] naive 64x64x64",
    ]


def test_auto_says_why_it_took_the_emulator(call, fake, monkeypatch):
    monkeypatch.setattr("gemmkit.cli.watch.gpu_problem", lambda: "the driver finds no GPU")
    assert "RTX 3090: the driver finds no GPU." in call("ladder").stderr
    monkeypatch.setattr("gemmkit.cli.watch.gpu_problem", lambda: None)
    assert "RTX 3090: this machine's GPU is another board." in call("ladder").stderr


def test_ladder_passes_every_option_on(call, fake):
    call(
        *("ladder", "--shape", "1x2x3", "--device", "emulator", "--gpu", "h100"),
        *("--kernels", "naive, shared_tiling", "--config", "BM=16,stride=4"),
        *("--epilogue", "bias+relu", "--alpha", "2", "--beta", "0.5", "--seed", "7"),
        *("--layout", "NT", "--dtype", "fp32", "--out-dtype", "fp16"),
        *("--precision", "tf32"),
    )
    assert fake.asked == {
        "size": None,
        "shape": "1x2x3",
        "device": "emulator",
        "gpu": "h100",
        "kernels": ("naive", "shared_tiling"),
        "config": {"BM": 16, "stride": 4},
        "epilogue": "bias+relu",
        "alpha": 2.0,
        "beta": 0.5,
        "layout": "NT",
        "dtype": "fp32",
        "out_dtype": "fp16",
        "precision": "tf32",
        "seed": 7,
        "production": gemmkit.choose,
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--config", "BM"], "'BM' is not KEY=VALUE"),
        (["--config", "BM=-1"], "'BM=-1' is not KEY=VALUE"),
        (["--config", "BM=1,BM=2"], "'BM' is given twice"),
        (["--kernels", "naive,"], "has an empty part"),
        (["--size", "many"], "'many' is not a valid integer"),
        (["--device", "tpu"], "unknown device 'tpu': use one of auto, cuda"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(call, fake, words, message):
    result = call("ladder", *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert fake.asked is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--kernels", "naif"], "unknown kernel 'naif': did you mean naive"),
        (["--config", "TM=2", "--kernels", "naive"], "kernel 'naive' has no key 'TM'"),
        (["--gpu", "rtx3091", "--device", "emulator"], "unknown board 'rtx3091'"),
        (["--shape", "1x2"], "'1x2' is not a valid shape"),
        (["--size", "1", "--shape", "1x2x3"], "give a size or a shape, not both"),
        (["--size", "-1"], "sizes must be 0 or more"),
        (["--epilogue", "tanh"], "unknown epilogue 'tanh'"),
        (["--kernels", "naive_uncoalesced", "--epilogue", "relu"], "has no fused epilogue"),
    ],
)
def test_what_cannot_be_meant_is_one_message(call, words, message):
    result = call("ladder", *words)
    assert result.exit_code == 2
    assert message in result.stderr.splitlines()[-1]


def test_a_wrong_result_is_seen_and_is_status_1(call, fake, make_record):
    fake.records = [make_record(), make_record(correct=False)]
    for verb in ("ladder", "sweep"):
        result = call(verb)
        assert result.exit_code == 1
        assert "WRONG RESULTS: 1 of 2 (naive)." in result.stdout


def test_json_goes_to_a_file_one_record_a_line(call, fake, make_record, tmp_path):
    fake.records = [make_record(), make_record(kernel="other")]
    path = tmp_path / "records.json"
    result = call("ladder", "--json", path)
    assert [Record.from_json(line) for line in path.read_text().splitlines()] == fake.records
    assert result.stdout.startswith("C = ")


def test_json_on_stdout_leaves_the_table_to_stderr(call, fake):
    result = call("ladder", "--json", "-")
    assert Record.from_json(result.stdout) == fake.records[0]
    assert "C = αAB + βC" in result.stderr


def test_json_into_nowhere_fails_before_anything_runs(call, fake, tmp_path):
    result = call("ladder", "--json", tmp_path / "no" / "such.json")
    assert result.exit_code == 2
    assert "cannot write" in result.stderr
    assert fake.asked is None


def test_ctrl_c_keeps_what_is_done(call, fake, tmp_path):
    fake.error = KeyboardInterrupt()
    path = tmp_path / "records.json"
    result = call("ladder", "--json", path)
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == "interrupted"
    assert Record.from_json(path.read_text()) == fake.records[0]
    assert "naive" in result.stdout


def test_an_error_keeps_what_is_done_too(call, fake):
    fake.error = RuntimeError("out of luck")
    result = call("ladder")
    assert result.exit_code == 2
    assert "naive" in result.stdout


def test_sweep_on_the_emulator_ends_at_2048_and_says_so(call, fake):
    result = call("sweep")
    assert fake.sizes == (128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
    assert "--sizes 3072,4096,6144,8192,12288,16384" in result.stderr
    assert fake.asked["kernels"] is None
    assert fake.asked["groups"] == ()


def test_sweep_takes_the_sizes_that_are_asked_for(call, fake):
    result = call("sweep", "--sizes", "64, 4096", "--kernels", "naive")
    assert fake.sizes == (64, 4096)
    assert fake.asked["kernels"] == ("naive",)
    assert "--sizes" not in result.stderr
    assert call("sweep", "--sizes", "64,x").exit_code == 2


def test_sweep_on_a_gpu_takes_all_fifteen(call, fake, monkeypatch):
    gpu = SimpleNamespace(kind="cuda", spec=find_board("h100"))
    monkeypatch.setattr("gemmkit.devices.choose.open_device", lambda *_, **__: gpu)
    call("sweep")
    assert len(fake.sizes) == 15
    assert fake.sizes[-1] == 16384


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--size", "9999999999"), "no kernel takes it: .*must be"),
        (("--size", "8", "--seed", "-1"), "not in the range"),
        (("--kernels", "nope"), "unknown kernel 'nope'"),
        (("--kernels", "naive,my.cu"), "'my.cu' is a file, and a kernel of gemmkit is needed"),
    ],
)
def test_what_cannot_be_run_is_an_error(call, words, message):
    result = call("ladder", *words, "--device", "emulator")
    assert result.exit_code == 2
    assert re.search(message, " ".join(result.output.split()))


def test_a_batch_on_the_ladder(call):
    result = call(
        *("ladder", "--shape", "3×4×5×2", "--kernels", "typed", "--gpu", "h100"),
        *("--device", "emulator"),
    )
    assert result.exit_code == 0
    assert "3x4x5x2" in result.stdout


@pytest.mark.parametrize("verb", ["ladder", "sweep"])
def test_a_run_as_a_page(call, fake, tmp_path, verb):
    page = tmp_path / "page.html"
    result = call(verb, "--html", page)
    assert result.exit_code == 0, result.output
    assert f"wrote {page}" in result.stdout
    assert "Stopped early" not in page.read_text("utf-8")
    fake.error = KeyboardInterrupt()
    call(verb, "--html", page)
    assert "Stopped early" in page.read_text("utf-8")
