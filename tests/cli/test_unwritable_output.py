"""Output that nobody reads, or that there is no room for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

VERBS = ["--help", "info", "show naive", "counters", "which 64 --gpu t4", "which --help"]


def run(words, stdout):
    return subprocess.run(
        [sys.executable, "-m", "gemmkit", *words.split()],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("words", [*VERBS, "ladder --size 8 --kernels naive --json -"])
@pytest.mark.sample(4)
def test_a_closed_pipe_ends_every_verb_as_sigpipe_would(words):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run(words, writer)
    finally:
        os.close(writer)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr
    assert "gemmkit:" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", VERBS)
@pytest.mark.sample(3)
def test_a_full_disk_is_one_clear_sentence(words):
    with Path("/dev/full").open("w") as full:
        done = run(words, full)
    assert done.returncode == 2
    assert done.stderr == "gemmkit: cannot write the output: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_records_that_cannot_be_written_are_one_clear_sentence(call):
    done = call(
        "ladder", "--size", 8, "--kernels", "naive", "--device", "emulator", "--json", "/dev/full"
    )
    assert done.exit_code == 2
    assert "cannot write /dev/full: No space left on device" in done.stderr
    assert "bug" not in done.stderr


def test_places_that_cannot_be_written_are_refused_before_the_run(call, tmp_path, monkeypatch):
    def run(*_, **__):
        raise AssertionError

    monkeypatch.setattr("gemmkit.analysis.explain.gather", run)
    monkeypatch.setattr("gemmkit.cli.tuning.measure", run)
    file = tmp_path / "file"
    file.touch()
    explain, tune = ("explain", "naive", "--shape", "16"), ("tune", "--shape", "16", "--explain")
    for words, message in {
        (*explain, "--pictures", file): f"--pictures takes the name of a folder: {file} is a file",
        (*explain, "--pictures", file / "in" / "it"): f"of a folder: {file} is a file",
        (*explain, "--html", tmp_path / "no" / "page.html"): "there is no folder",
        (*explain, "--timeline", file / "trace.json"): "there is no folder",
        (*tune, "--plot", tmp_path / "no" / "plot.svg"): "there is no folder",
        (*tune, "--plot", tmp_path / "plot.gif"): "its name must end in .svg or .png",
        ("tune", "--shape", "16", "--export", tmp_path / "no" / "table"): "there is no folder",
        ("ladder", "--size", "8", "--json", tmp_path / "no" / "records"): "No such file",
    }.items():
        done = call(*words)
        assert done.exit_code == 2
        assert message in done.stderr
    # A folder that is yet to be made is no obstacle.
    assert "AssertionError" in call(*explain, "--pictures", tmp_path / "new" / "folder").stderr
