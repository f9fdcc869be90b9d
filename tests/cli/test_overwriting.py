"""No output of a command replaces a file that it reads, or another of its outputs."""

from __future__ import annotations

import importlib
import os

import click
import pytest

from gemmkit.cli import VERBS
from gemmkit.cli.files import OutputFile, Verb

LAUNCH = ["--grid", "(N+15)/16,(M+15)/16", "--block", "16,16"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to work in, with a kernel, a file that it includes, and other inputs."""
    monkeypatch.chdir(tmp_path)
    source = '#include "tile.cuh"\n__global__ void row(int M, int N, int K, float *A) {}\n'
    (tmp_path / "row.cu").write_text(source)
    (tmp_path / "tile.cuh").write_text("#define TILE 16\n")
    (tmp_path / "groups.txt").write_text("8x8x8\n")
    (tmp_path / "pictures").mkdir()
    os.link("row.cu", "hard.cu")
    (tmp_path / "soft.cu").symlink_to("row.cu")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("explain row.cu --html row.cu", "--html would overwrite row.cu"),
        ("explain row.cu --html ./pictures/../row.cu", "--html would overwrite row.cu"),
        ("explain row.cu --timeline hard.cu", "--timeline would overwrite row.cu"),
        ("explain row.cu --html soft.cu", "--html would overwrite row.cu"),
        ("explain naive --ncu groups.txt --html groups.txt", "--html would overwrite groups.txt"),
        ("check row.cu --json row.cu", "--json would overwrite row.cu"),
        ("check row.cu --json tile.cuh", "tile.cuh, which row.cu includes"),
        ("check naive --groups groups.txt --html groups.txt", "--html would overwrite groups.txt"),
        ("check row.cu --html x --json x", "would both write x"),
        ("check row.cu --html x --json pictures/../x", "would both write"),
        ("explain row.cu --html x --timeline x", "--html and --timeline would both write x"),
        ("explain naive --pictures pictures --html pictures/x.svg", "could overwrite pictures/x"),
        ("bench row.cu --html x --json x", "would both write x"),
        ("ladder --html x --json x", "would both write x"),
        ("sweep --html x --json x", "would both write x"),
        ("tune --store x --export x", "would both write x"),
        ("tune --import x --export x", "--export would overwrite x"),
        ("tune --explain --plot x.svg --json x.svg", "would both write x.svg"),
    ],
)
def test_an_output_in_use_is_refused_before_the_run(call, folder, words, said):
    before = {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}
    launch = LAUNCH if "row.cu" in words.split()[1] else []
    done = call(*words.split(), *launch)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()} == before


def test_devices_and_standard_output_may_be_named_twice(call, folder):
    words = ["check", "naive", "--shape", "8", "--gpu", "t4"]
    assert call(*words, "--html", os.devnull, "--json", os.devnull).exit_code == 0
    assert call(*words, "--html", folder / "x.html", "--json", "-").exit_code == 0


def test_every_verb_and_every_output_option_takes_part():
    for name in VERBS:
        command = importlib.import_module(f"gemmkit.cli.{name}").command
        assert isinstance(command, Verb)
        for option in command.params:
            if {"--json", "--html", "--export", "--plot", "--timeline"} & {*option.opts}:
                flag = isinstance(option, click.Option) and option.is_flag
                assert flag or isinstance(option.type, OutputFile), option.opts
