"""`gemmkit which`: text, JSON, stores, and arguments that are not valid."""

from __future__ import annotations

import json
import re

import pytest

from gemmkit.dispatch.which import which


def test_text_names_what_is_launched_and_why(call):
    result = call("which", "3072x3072x1024", "--gpu", "h100", "--no-store")
    assert result.exit_code == 0
    decision = which("3072x3072x1024", "h100", store=None)
    lines = dict(line.split(maxsplit=1) for line in result.stdout.splitlines()[:8])
    assert lines["problem"] == "3072x3072x1024 on H100, large"
    assert lines["kernel"] == decision.kernel
    assert lines["reason"] == decision.reason
    assert lines["source"] == decision.source
    assert "estimated" in lines["time"]
    assert "runners-up" in result.stdout
    for each in decision.alternatives:
        assert each.why in result.stdout


def test_prepared_operands(call):
    words = ("which", "512x4096x4096", "--gpu", "h100", "--no-store", "--precision", "fp32")
    result = call(*words, "--prepared", "B")
    assert result.exit_code == 0
    assert "prepared B, as two parts of fp16: 67.1 MB, made once" in result.stdout
    assert "copies   A, by a launch before it" in result.stdout
    assert "prepared" not in call(*words).stdout
    wrong = call(*words, "--prepared", "c")
    assert wrong.exit_code == 2
    assert "use a, b or ab" in wrong.stderr


@pytest.mark.parametrize("words", [("200000",), ("1x1000000x1000000",), ("30000", "--gpu", "t4")])
def test_long_times_are_in_units_that_read(call, words):
    result = call("which", *words, "--no-store")
    assert result.exit_code == 0, result.output
    assert re.search(r"estimated at [\d.,]+ m?s\b", result.stdout)
    assert not re.search(r"\d{5}\.\d", result.stdout)


def test_an_empty_result_launches_nothing(call):
    done = call("which", "0x5x7", "--gpu", "h100", "--no-store")
    assert done.exit_code == 0, done.output
    assert "nothing is launched" in done.output
    assert "waves" not in done.output


def test_json_is_the_decision(call):
    result = call("which", "100", "--gpu", "a100", "--no-store", "--epilogue", "relu", "--json")
    assert result.exit_code == 0
    read = json.loads(result.stdout)
    assert read == json.loads(which(100, "a100", epilogue="relu", store=None).to_json())
    assert (read["epilogue"], read["gpu"]) == ("relu", "A100")


def test_scales_are_part_of_the_problem(call):
    words = ("which", "3072x3072x1024", "--gpu", "h100", "--no-store")
    plain, scaled, cleared = (
        json.loads(call(*words, "--json", *scales).stdout)
        for scales in ((), ("--alpha", "2", "--beta", "0.5"), ("--alpha", "0", "--beta", "0.5"))
    )
    assert (plain["alpha"], plain["beta"]) == (1, 0)
    assert (scaled["alpha"], scaled["beta"]) == (2, 0.5)
    # The table's time is one of β = 0, and with α = 0 only C is read.
    assert plain["measured"]
    assert not scaled["measured"]
    assert cleared["time_us"] < scaled["time_us"] / 4
    assert cleared["tflops"] == 0
    text = call(*words, "--alpha", "2", "--beta", "0.5").stdout
    assert "3072x3072x1024 on H100, large, α = 2, β = 0.5\n" in text


def test_a_beta_of_groups_alike_counts(call):
    words = ("which", "--groups", "64x64x64*512", "--gpu", "h100", "--no-store", "--json")
    without, beta = (json.loads(call(*words, *each).stdout) for each in ((), ("--beta", "1")))
    assert without["time_us"] < beta["time_us"]


def test_without_a_board_and_a_gpu_it_is_an_rtx_3090(call, monkeypatch):
    monkeypatch.setattr("gemmkit.cli.board.gpu_problem", lambda: "none here")
    assert "on RTX 3090" in call("which", "64").stdout


def test_a_store_that_was_named_has_to_be_one(call, tmp_path):
    path = tmp_path / "other.sqlite3"
    words = ("which", "64", "--gpu", "t4", "--store", str(path))
    result = call(*words)
    assert result.exit_code == 2
    assert f"there is no tuning store {path}" in result.stderr
    path.write_bytes(b"no store" * 2000)
    result = call(*words)
    assert result.exit_code == 2
    assert f"{path} is not a tuning store of gemmkit, and was left as it is" in result.stderr
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == b"no store" * 2000


def test_how_matrices_in_host_memory_are_streamed(call):
    words = ("which", "20000x30000x7000", "--gpu", "h100", "--host")
    told = json.loads(call(*words, "--device-memory", "1GiB", "--devices", "2", "--json").stdout)
    assert told["device_bytes"] <= told["memory_bytes"] == 2**30
    assert told["devices"] == 2
    assert told["bytes_out"] == 4 * 20000 * 30000
    text = call(*words).stdout
    assert "limiter  product" in text
    assert "limiter  copies to the host" in call(*words, "--link", "2").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["64", "--host", "--no-store"], "--host and --store exclude each other"),
        (["64", "--devices", "2"], "go with --host"),
        (["64", "--host", "--device-memory", "8 apples"], "'8GiB'"),
        (["64", "--host", "--devices", "0"], "give positive numbers"),
        (["64", "--host", "--link", "nan"], "give positive numbers"),
        (["0", "--host"], "nothing is streamed"),
        (["64", "--store", "x", "--no-store"], "leave one of them out"),
        (["64x"], "is not a valid shape"),
        (["64", "--gpu", "gtx1"], "unknown board"),
        (["64", "--epilogue", "tanh"], "unknown epilogue"),
        (["64", "--alpha", "nan"], "alpha = nan is not a finite fp32 number"),
        (["3000000000x1x1"], "no kernel takes 3000000000x1x1"),
    ],
)
def test_what_cannot_be_meant_is_one_message(call, words, message):
    result = call("which", *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
