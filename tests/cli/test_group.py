"""The group: what it imports, how it fails."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

from gemmkit.cli import FAILED, INTERRUPTED, VERBS
from gemmkit.errors import DeviceError

HEAVY = ("numpy", "llvmlite", "cuda", "matplotlib", "rich", "msgspec", "platformdirs")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["ladder", "--help"]])
def test_help_imports_nothing_heavy(words):
    program = (
        "import sys, json, atexit\n"
        "atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))\n"
        "from gemmkit.cli import main\n"
        f"sys.argv[1:] = {words!r}\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0
    imported = {name.partition(".")[0] for name in json.loads(done.stderr)}
    assert "click" in imported
    assert imported.isdisjoint(HEAVY)


def test_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "gemmkit", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert all(verb in done.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_file_and_help(call, verb):
    assert importlib.import_module(f"gemmkit.cli.{verb}").command.name == verb
    result = call(verb, "--help")
    assert result.exit_code == 0
    assert "--debug" in result.output


def test_an_unknown_verb_is_an_error(call):
    result = call("lader")
    assert result.exit_code == 2
    assert "unknown command 'lader': did you mean ladder?" in result.stderr
    assert "did you mean check or bench?" in call("bencheck").stderr
    assert "use one of ladder, sweep" in call("xyzzy").stderr


@pytest.fixture
def broken(monkeypatch):
    """Make `gemmkit build` raise something."""

    def breaking(error: BaseException) -> None:
        def build_all(*_, **__):
            raise error

        monkeypatch.setattr("gemmkit.jit.compiler.build_all", build_all)

    return breaking


def test_an_error_of_ours_is_one_message_and_status_2(call, broken):
    broken(DeviceError("the GPU is on fire; pour water on it"))
    result = call("build", "--gpu", "t4")
    assert result.exit_code == FAILED == 2
    assert result.stderr == "gemmkit: the GPU is on fire; pour water on it\n"
    assert result.stdout == ""


@pytest.mark.parametrize(
    "words", [["--debug", "build", "--gpu", "t4"], ["build", "--gpu", "t4", "--debug"]]
)
def test_debug_adds_the_traceback_wherever_it_stands(call, broken, words):
    broken(DeviceError("on fire"))
    result = call(*words)
    assert result.exit_code == FAILED
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("gemmkit: on fire\n")


def test_an_unexpected_error_asks_for_debug(call, broken):
    broken(ZeroDivisionError("division by zero"))
    result = call("build", "--gpu", "t4")
    assert result.exit_code == FAILED
    assert "unexpected ZeroDivisionError: division by zero" in result.stderr
    assert "--debug" in result.stderr
    assert "Traceback" not in result.stderr


def test_ctrl_c_is_status_130_and_one_word(call, broken):
    broken(KeyboardInterrupt())
    result = call("build", "--gpu", "t4")
    assert result.exit_code == INTERRUPTED == 130
    assert result.stderr.splitlines()[-1] == "interrupted"
    assert "Traceback" not in result.output
