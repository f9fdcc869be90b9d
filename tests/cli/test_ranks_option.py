"""`--ranks` of `which` and `bench`."""

from __future__ import annotations

import json
import sys

import pytest

from gemmkit.distributed import measure
from gemmkit.distributed.planning import plan
from gemmkit.errors import DistributedError

LARGE = ("8192", "--dtype", "bf16", "--gpu", "h200", "--ranks", "2")


def test_which_explains_the_choice(call):
    result = call("which", *LARGE, "--placement", "S(1),S(0)->S(0)")
    assert result.exit_code == 0, result.output
    assert "A S(1), B S(0) → C S(0)" in result.stdout
    assert "each rank sends 67.1 MB" in result.stdout
    assert "limiter" in result.stdout
    assert "rank 1  product |" in result.stdout


def test_which_prints_the_plan_as_json(call):
    result = call("which", "512x256x128", "--gpu", "h200", "--ranks", "4", "--json")
    expected = plan("512x256x128", 4, ("S(0)", "S(1)"), "S(1)", gpu="h200")
    assert json.loads(result.stdout) == json.loads(expected.to_json())


def test_which_explains_a_mesh(call):
    result = call("which", "8192", "--dtype", "bf16", "--gpu", "h100", "--ranks", "2x2")
    assert result.exit_code == 0, result.output
    assert "on a mesh of 2×2 H100" in result.stdout
    assert "panels of A and B" in result.stdout
    assert "rank 3  product |" in result.stdout


def test_which_draws_the_timeline(call, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "ranks.svg"
    result = call("which", *LARGE, "--placement", "S(1),S(0)->S(0)", "--picture", str(path))
    assert result.exit_code == 0, result.output
    text = path.read_text()
    assert all(f"rank {rank} {lane}" in text for rank in (0, 1) for lane in ("multiplies", "sends"))
    assert "S(1) × S(0) → S(0) on 2 H200: copies-" in text


@pytest.mark.parametrize("shape", ["0x5x7", "5x0x7", "5x7x0", "1x1x1"])
def test_tiny_and_empty_products(call, shape):
    for placement in ("S(0),S(1)", "S(1),S(0)->R", "R,S(1)"):
        words = ("which", shape, "--ranks", "3", "--placement", placement)
        result = call(*words)
        assert result.exit_code == 0, result.output
        assert "strategy" in result.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("which", "64", "--placement", "R,R"), "give --ranks as well"),
        (("which", "64", "--ranks", "2", "--placement", "rows"), "no placement of a product"),
        (("which", "64", "--ranks", "2", "--placement", "R,R->P"), "no rank holds a part"),
        (("which", "64x64x64x2", "--ranks", "2"), "no batches"),
        (("which", "64", "--picture", "a.svg"), "give --ranks as well"),
        (("which", "64", "--ranks", "2", "--picture", "a.gif"), "must end in .svg or .png"),
        (("which", "64", "--ranks", "2x0"), "is not a valid number of ranks"),
        (("which", "64", "--ranks", "2x2", "--placement", "R,R"), "1 placement for a mesh of 2"),
        (("which", "64", "--ranks", "2x2x2"), "such as 'S(0) S(1) R,S(0) S(1) R->S(0) S(1) R'"),
        (("which", "64", "--ranks", "1", "--picture", "a.svg"), "has no timeline"),
        (("bench", "--placement", "R,R"), "give --ranks as well"),
        (("bench", "gemm_tiled", "--ranks", "2"), "leave out TARGET"),
        (("bench", "--ranks", "2", "--epilogue", "relu"), "plain products"),
    ],
)
def test_what_does_not_go_together(call, words, said):
    result = call(*words)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_a_rank_that_fails_ends_the_others_with_its_message(monkeypatch, tmp_path):
    task = measure.Task(
        m=4, n=4, k=4, dtype="float32", out_dtype="float32", precision="ieee", a="S(0)", b="S(1)",
        result="S(1)", gpu="H200",
    )  # fmt: skip
    script = tmp_path / "python"
    script.write_text(
        f"#!{sys.executable}\nimport os, sys, time\n"
        "sys.exit('no such luck') if os.environ['RANK'] == '1' else time.sleep(60)\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr(measure.sys, "executable", str(script))
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(DistributedError, match="rank 1 of 2 failed: no such luck"):
        measure.measure(task, 2)


def test_bench_checks_all_strategies_without_a_gpu(call, tmp_path):
    pytest.importorskip("torch")
    file = tmp_path / "records.json"
    words = ("--shape", "24x16x20", "--ranks", "2", "--placement", "S(1),S(0)->R")
    result = call("bench", *words, "--json", str(file))
    assert result.exit_code == 0, result.output
    (record,) = map(json.loads, file.read_text().splitlines())
    assert record["correct"]
    assert {"collective", "group-1", "group-2"} <= record["environment"]["error_ratios"].keys()
    assert "not timed  group-1" in result.stdout
