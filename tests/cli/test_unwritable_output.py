"""Output that nobody reads, or that there is no room for."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from gemmkit.cli.output import RecordWriter
from gemmkit.errors import UsageError
from gemmkit.whole_files import write_whole

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


@contextmanager
def files_of(nbytes):
    """Files of so many bytes at most, as where a disk is full."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("option", ["--html", "--timeline"])
def test_a_file_without_room_leaves_what_was_there(call, tmp_path, monkeypatch, option):
    def without_room(path, data):
        with files_of(1000):
            write_whole(path, data)

    monkeypatch.setattr("gemmkit.report.output_files.write_whole", without_room)
    path = tmp_path / "file"
    path.write_text("before")
    done = call("explain", "shared_tiling", "--shape", "64", "--gpu", "t4", option, path)
    assert done.exit_code == 2
    assert done.stderr.count("cannot write") == 1
    assert f"cannot write {path}: File too large" in done.stderr
    assert f"wrote {path}" not in done.stdout
    assert [each.read_text() for each in tmp_path.iterdir()] == ["before"]


def test_records_without_room_are_those_that_are_complete(tmp_path, make_record):
    path, record = tmp_path / "records", make_record()
    line = record.to_json() + "\n"
    with RecordWriter(str(path)) as writer:
        writer.write(record)
        with (
            files_of(len(line) + 100),
            pytest.raises(UsageError, match=r"cannot write .*: File too large"),
        ):
            writer.write(record)
        writer.write(record)
    assert path.read_text() == line


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
