#!/usr/bin/env python3
"""Set gemmkit up in `.venv` and run the ladder or the checks: `python3 run.py ladder|test`.

Needs Python 3.11 or newer with pip and venv, nothing else. The packages come from the lock files,
with their hashes checked; they are installed again when a lock file changes.
"""

# Older interpreters read this file too, to look for a newer one: keep to Python 3.7.
from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
SCRIPTS = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = SCRIPTS / ("python.exe" if os.name == "nt" else "python")
RUNTIME, DEVELOPMENT = "requirements.lock", "requirements-dev.lock"
# What `.venv` holds, as `wanted_state` writes it, or that an installation has begun.
STATE = VENV / "gemmkit-state"
UNFINISHED = "unfinished"
OLDEST = (3, 11)
MAX_TEST_PROCESSES = 8
USAGE = """\
usage: python3 run.py ladder [options]   run the ladder of kernels and show one table
       python3 run.py test [options]     run linters, types, layers and the tests

Options of `ladder` are those of `gemmkit ladder` (see --help), options of `test` those of pytest.
"""


def main(arguments: list[str]) -> int:
    """Run one of the two commands and return its exit status."""
    if not arguments or arguments[0] not in ("ladder", "test"):
        asked_for_help = arguments[:1] in (["-h"], ["--help"])
        print(USAGE, end="", file=sys.stdout if asked_for_help else sys.stderr)
        return 0 if asked_for_help else 2
    if sys.version_info < OLDEST:
        return run([newer_python(), __file__, *arguments])
    command, *options = arguments
    with one_at_a_time():
        set_up(RUNTIME if command == "ladder" else DEVELOPMENT)
    if command == "ladder":
        return run([str(PYTHON), "-m", "gemmkit", "ladder", *options])
    return check(options)


def newer_python() -> str:
    """The path of the oldest Python on PATH that is new enough."""
    for minor in range(OLDEST[1], OLDEST[1] + 5):
        path = shutil.which(f"python3.{minor}")
        if path and quiet([path, "-c", "import venv, ensurepip"])[0] == 0:
            return path
    raise failure(
        f"gemmkit needs Python 3.{OLDEST[1]} or newer with pip and venv. This is Python "
        f"{version()} ({sys.executable}), and there is no newer one on PATH: install one from "
        "python.org or with the system's package manager, and run this again."
    )


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Make a second run.py wait until the first one has finished with `.venv`."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    descriptor = os.open(str(ROOT), os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def set_up(lock: str) -> None:
    """Make `.venv` hold the packages of a lock file, unless it does already."""
    state = STATE.read_text("utf-8") if STATE.is_file() else ""
    works = quiet([str(PYTHON), "-c", f"import sys; sys.exit(sys.version_info < {OLDEST})"])[0] == 0
    enough = {RUNTIME, DEVELOPMENT} if lock == RUNTIME else {DEVELOPMENT}
    if works and state in map(wanted_state, enough):
        return
    # Scripts in it hold their own path, so one that was moved is made again, as is an unfinished
    # one; one that is merely old, or was made by hand, is installed into.
    spoilt = bool(state) and state.split("\n")[0] != str(ROOT)
    if spoilt or not works:
        say(f"making .venv with Python {version()}")
        shutil.rmtree(str(VENV), ignore_errors=True)
        VENV.mkdir(exist_ok=True)
        STATE.write_text(UNFINISHED, "utf-8")
        base = getattr(sys, "_base_executable", sys.executable)
        status, output = quiet([base, "-m", "venv", str(VENV)])
        if status != 0:
            raise failure(
                f"could not make a virtual environment with {base}; on Debian and Ubuntu, "
                "`apt install python3-venv` adds what is missing.",
                output,
            )
    STATE.write_text(UNFINISHED, "utf-8")
    say(f"installing {lock} (downloads about 200 MB the first time)")
    install(["--require-hashes", "--only-binary", ":all:", "-r", lock])
    install(["--no-index", "--no-deps", "--no-build-isolation", "--editable", "."])
    STATE.write_text(wanted_state(lock), "utf-8")


def wanted_state(lock: str) -> str:
    """What the state file says when `.venv` holds this lock file's packages."""
    content = (ROOT / lock).read_bytes() + (ROOT / "pyproject.toml").read_bytes()
    return f"{ROOT}\n{lock}\n{hashlib.sha256(content).hexdigest()}\n"


def install(arguments: list[str]) -> None:
    """Run pip in `.venv`, or end with what it said."""
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    status, output = quiet([*pip, "--quiet", "--no-user", *arguments])
    if status != 0:
        raise failure(
            "pip could not install gemmkit's packages. The first run needs a connection to a "
            "Python package index, about 1 GB of free disk, and wheels for this platform "
            f"(Python {version()}, {sys.platform}).",
            output,
        )


def check(options: list[str]) -> int:
    """Run every check, also after one has failed; print a summary; 0 if all passed."""
    cuda = [str(path) for path in sorted((ROOT / "src").rglob("*.cu*"))]
    processes = str(min(os.cpu_count() or 1, MAX_TEST_PROCESSES))
    checks = {
        "ruff check": ["ruff", "check", "."],
        "ruff format": ["ruff", "format", "--check", "."],
        "clang-format": ["clang-format", "--dry-run", "-Werror", *cuda],
        "mypy": ["mypy"],
        "import-linter": ["lint-imports"],
        "pytest": ["pytest", "-rs", "-n", processes, *options],
    }
    summary = []
    failed = False
    for name, (tool, *arguments) in checks.items():
        say(name)
        start = time.monotonic()
        status = run([str(SCRIPTS / tool), *arguments])
        failed |= status != 0
        result = "failed" if status else "passed"
        summary.append(f"{name:14} {result} {time.monotonic() - start:7.1f} s")
    print("", *summary, sep="\n", flush=True)
    return int(failed)


def run(command: list[str]) -> int:
    """Run a command in the repository, its output on the screen; returns its exit status.

    Ctrl-C reaches the command too, which is left to end by itself.
    """
    with subprocess.Popen(command, cwd=str(ROOT)) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()
            raise


def quiet(command: list[str]) -> tuple[int, str]:
    """Run a command in the repository; returns its exit status and what it printed."""
    try:
        done = subprocess.run(
            command, cwd=str(ROOT), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout.decode(errors="replace")


def version() -> str:
    """This interpreter's version."""
    return sys.version.split()[0]


def say(text: str) -> None:
    """Tell what happens now."""
    print(f"run.py: {text}", file=sys.stderr, flush=True)


def failure(message: str, output: str = "") -> SystemExit:
    """Show what a command printed, if anything, and what to do; return what ends the process."""
    if output:
        print(output.rstrip(), file=sys.stderr)
    say(message)
    return SystemExit(2)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
