"""docs/check-a-hopper-kernel.md: its commands print what it says, and its tests pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "check-a-hopper-kernel.md").read_text("utf-8")
CONSOLE = re.findall(r"^```console\n(.*?)^```$", PAGE, re.S | re.M)
# The lines of commands, each continued by "\", and what is printed below.
BLOCKS = [re.match(r"((?:\$ (?:.*\\\n)*.*\n)+)([\s\S]*)", each).groups() for each in CONSOLE]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the kernel, the page's tests and the command."""
    made = tmp_path_factory.mktemp("hopper")
    kernel = (ROOT / "examples" / "hopper.cu").read_text("utf-8")
    (made / "hopper.cu").write_text(kernel, "utf-8")
    (tests,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    (made / "test_hopper.py").write_text(tests, "utf-8")
    (made / "gemmkit").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gemmkit "$@"\n', "utf-8")
    (made / "gemmkit").chmod(0o755)
    return made


@pytest.mark.parametrize(("commands", "told"), BLOCKS, ids=["sound", "broken"])
def test_a_command_prints_what_stands_below_it(folder, commands, told):
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "COLUMNS": "100"}
    done = subprocess.run(
        re.sub(r"^\$ ", "", commands, flags=re.M),
        shell=True,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = ["(?:.*\n)*" if line == "…" else f"{re.escape(line)} *\n" for line in told.splitlines()]
    assert re.fullmatch("".join(lines), done.stdout), done.stdout + done.stderr
    assert done.returncode == ("broken.cu" in commands)


@pytest.mark.slow
def test_the_tests_of_the_page_pass(folder):
    options = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    done = subprocess.run(
        [sys.executable, *options], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1].startswith("3 passed"), done.stdout


def test_the_page_shows_where_the_example_stands():
    source = (ROOT / "examples" / "hopper.cu").read_text("utf-8")
    (command,) = re.findall(r"^//   (gemmkit check .*?)^#include", source, re.S | re.M)
    asked = set(re.sub(r"\\\n//", "", command).split()) - {"examples/hopper.cu"}
    assert asked <= set(BLOCKS[0][0].split())
