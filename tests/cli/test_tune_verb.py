import json
import sys

import pytest

from fake_gpu import FakeGpu, fake_binary
from gemmkit.cli import tuning
from gemmkit.trials.store import Store
from gemmkit.tune import predicted
from gemmkit.tune import run as tune_run

SHAPE = "40x48x32"


@pytest.fixture
def gpu(monkeypatch):
    """The GPU of this machine is a fake one, and so is the compiler."""
    from gemmkit.bench import timer

    gpu = FakeGpu()
    monkeypatch.setattr(timer, "WARM_UP_S", 0.0)
    for owner in (tune_run, "gemmkit.devices.choose", "gemmkit.cli.board"):
        for name, value in (("gpu_problem", lambda: None), ("open_device", lambda *_: gpu)):
            target = f"{owner}.{name}" if isinstance(owner, str) else f"{owner.__name__}.{name}"
            monkeypatch.setattr(target, value)
    monkeypatch.setattr(
        tune_run, "compile_plan", lambda plan, arch, cache_dir=None: fake_binary(plan, arch)
    )
    return gpu


@pytest.fixture
def no_gpu(monkeypatch):
    for owner in ("gemmkit.tune.run", "gemmkit.devices.choose", "gemmkit.cli.board"):
        monkeypatch.setattr(f"{owner}.gpu_problem", lambda: "this machine has no driver")


@pytest.fixture
def tuned(call, gpu, tmp_path):
    """A store in which one shape was tuned, its path."""
    path = tmp_path / "store.sqlite3"
    done = call("tune", "--shape", SHAPE, "--kernels", "warp_tiled", "--store", path)
    assert done.exit_code == 0, done.output
    return path


def test_a_shape_is_tuned_and_remembered(call, gpu, tmp_path):
    path, lines = tmp_path / "store.sqlite3", tmp_path / "lines.json"
    words = ("--shape", SHAPE, "--kernels", "warp_tiled", "--store", path, "--json", lines)
    done = call("tune", *words, "--strategy", "random", "--seed", "1")
    assert done.exit_code == 0
    assert "Tuned on H100" in done.stdout
    assert "All configurations were tried." in done.stdout
    assert "Tuning on the GPU, H100." in done.stderr
    assert "configurations to try" in done.stderr
    found = json.loads(lines.read_text())
    best = Store(path).best("h100-132sm", Store(path).entries()[0].problem)
    assert found["best"]["config"] == best.config
    assert best.label in done.stdout
    again = call("tune", *words)
    assert f"{found['tried']['ok']} already in the store" in again.stderr


@pytest.mark.slow
def test_a_batch_is_tuned_as_a_class_of_its_own(call, gpu, tmp_path):
    path, shape = tmp_path / "store.sqlite3", "12x32x32x40"
    words = ("--shape", shape, "--kernels", "gemm_skinny", "--store", path)
    done = call("tune", *words, "--budget", "1s")
    assert done.exit_code == 0, done.output
    assert shape in done.stdout
    (problem,) = {each.problem for each in Store(path).entries()}
    assert problem.shape == shape
    assert all(each.outcome == "ok" for each in Store(path).entries())
    explained = call("tune", "--explain", *words, "--budget", "1s")
    assert explained.exit_code == 0, explained.output
    assert "analyzing: winner" in explained.output


def test_a_batch_is_predicted(call, monkeypatch):
    # One prediction is enough.
    monkeypatch.setattr(predicted, "usable_cores", lambda: 1)
    words = ("--device", "model", "--shape", "12x32x32x40", "--gpu", "h100", "--budget", "0s")
    done = call("tune", *words, "--kernels", "gemm_tiled")
    assert done.exit_code == 0
    assert "12x32x32x40" in done.stdout


def test_the_store_is_listed(call, gpu, tmp_path, tuned):
    listed = call("tune", "--store", tuned)
    assert listed.exit_code == 0
    assert "h100-132sm" in listed.stdout
    assert SHAPE in listed.stdout
    nothing = call("tune", "--store", tmp_path / "none.sqlite3")
    assert nothing.stdout.startswith("Nothing is tuned yet in ")


def test_ctrl_c_keeps_what_was_timed(call, gpu, tmp_path, monkeypatch):
    path = tmp_path / "store.sqlite3"
    shown = tuning.TuneWatch.tried

    def tried(self, entry, count, leader):
        shown(self, entry, count, leader)
        if count == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr(tuning.TuneWatch, "tried", tried)
    done = call("tune", "--shape", SHAPE, "--kernels", "warp_tiled", "--store", path)
    assert done.exit_code == 130
    assert "Interrupted: the same command continues from here." in done.stdout
    assert str(path) in done.stdout.replace("\n", "")
    assert len(Store(path).entries()) == 7


def test_without_a_gpu_it_says_what_can_be_done(call, no_gpu, tmp_path):
    done = call("tune", "--shape", SHAPE, "--store", tmp_path / "store.sqlite3")
    assert done.exit_code == 2
    assert "this machine has no driver: without one, `gemmkit tune --device model" in done.stderr


def test_a_store_is_exported_and_imported(call, tuned, tmp_path):
    table = tmp_path / "table.json"
    assert call("tune", "--store", tuned, "--export", table).exit_code == 0
    assert len(json.loads(table.read_text())["entries"]) == 1
    done = call(
        "tune", "--store", tuned, "--export", table, "--trials", "--shape", SHAPE, "--budget", "0"
    )
    entries = json.loads(table.read_text())["entries"]
    assert f"wrote {table}: {len(entries)} entries" in done.stderr
    assert len(entries) > 10
    other = tmp_path / "other.sqlite3"
    done = call("tune", "--store", other, "--import", table)
    assert done.exit_code == 0
    assert f"imported {len(entries)} of {len(entries)} entries" in done.stderr
    assert "are of another source" not in done.stderr
    done = call("tune", "--store", tuned, "--import", table)
    assert f"{len(entries)} entries measured here were kept" in done.stderr


def test_kernel_tuners_formats(call, tuned, tmp_path):
    cache, results = tmp_path / "cache.json", tmp_path / "results.json"
    words = ("tune", "--store", tuned)
    assert call(*words, "--export", cache, "--format", "kernel-tuner").exit_code == 0
    assert json.loads(cache.read_text())["kernel_name"] == "warp_tiled"
    assert call(*words, "--export", results, "--format", "t4").exit_code == 0
    assert json.loads(results.read_text())["schema_version"] == "1.0.0"
    other = tmp_path / "other.sqlite3"
    done = call("tune", "--store", other, "--import", cache, "--format", "kernel-tuner")
    assert done.exit_code == 0
    assert len(Store(other).entries()) == len(Store(tuned).entries())
    done = call("tune", "--store", other, "--import", results, "--format", "t4")
    assert done.exit_code == 2
    assert "T4 results do not name kernels" in done.stderr


def test_a_search_is_explained(call, tuned, tmp_path, no_gpu):
    plot = tmp_path / "plot.svg"
    words = ("--store", tuned, "--shape", SHAPE, "--gpu", "h100", "--explain", "--plot", plot)
    done = call("tune", *words)
    assert done.exit_code == 0, done.output
    for text in (
        f"What was tried for {SHAPE}",
        "The fastest",
        "Estimated and measured times",
        "median error",
        "How they fill the board",
        "The winner vs. the runner-up: measured",
    ):
        assert text in done.stdout
    assert plot.read_text().startswith("<?xml")


def test_a_plot_without_matplotlib_is_refused_before_tuning(call, tmp_path, monkeypatch):
    def measure(*arguments):
        raise AssertionError("began to tune")

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("gemmkit.cli.tuning.measure", measure)
    monkeypatch.setattr("gemmkit.devices.choose.gpu_problem", lambda: None)
    plot = tmp_path / "plot.svg"
    words = ("--store", tmp_path / "store", "--shape", SHAPE, "--explain", "--plot", plot)
    done = call("tune", *words)
    assert done.exit_code == 2
    assert "pictures need Matplotlib: run `pip install 'gemmkit[plots]'`" in done.stderr
    assert not plot.exists()


def test_what_was_not_tuned_is_not_explained(call, tuned, no_gpu):
    done = call("tune", "--store", tuned, "--shape", "8", "--gpu", "h100", "--explain")
    assert done.exit_code == 2
    assert "there are no results for 8x8x8 on H100" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shape", "8", "--budget", "soon"], "'soon' is not a time: write 60s, 5m or 1h"),
        (["--shape", "8", "--plot", "x.svg"], "--plot needs --explain: use both"),
        (["--device", "model"], "--device model needs a --shape"),
        (["--device", "model", "--shape", "8", "--explain"], "neither measures nor stores"),
        (["--device", "model", "--shape", "8", "--store", "x"], "neither measures nor stores"),
        (["--trials"], "--trials needs --export"),
        (["--format", "t4"], "--format needs --export or --import"),
        (["--explain"], "--explain needs a --shape that was tuned"),
        (["--shape", "8", "--gpu", "h100"], "--gpu is only for --explain and --device model"),
        (["--suite", "sqare"], "square"),
        (["--shape", "8x8"], "'8x8' is not a valid shape"),
        (["--shape", "8", "--kernels", "nave"], "did you mean naive"),
        (["--import", "none.json"], "cannot read none.json"),
        (["--export", "none.json"], "there is nothing to export"),
    ],
)
def test_what_cannot_be_meant_is_one_clear_message(call, gpu, tmp_path, words, message):
    store = () if "model" in words else ("--store", tmp_path / "store.sqlite3")
    done = call("tune", *store, *words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("text", "seconds"), [("60s", 60.0), ("90", 90.0), ("2.5m", 150.0), ("1h", 3600.0), ("0", 0.0)]
)
def test_budgets(text, seconds):
    from gemmkit.cli.tune import _seconds

    assert _seconds(None, None, text) == seconds
