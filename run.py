#!/usr/bin/env python3
"""Set gemmkit up and run the ladder or the checks, or build its site or distributions.

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
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
# The site is built from the sources alone, by tools that neither users nor the tests need.
DOCS_VENV = ROOT / "build" / "docs-venv"
SCRIPTS = "Scripts" if os.name == "nt" else "bin"
RUNTIME, DEVELOPMENT = "requirements.lock", "requirements-dev.lock"
DOCUMENTATION = "requirements-docs.lock"
SCRIPTS_OF = {"docs": ("docs", "site", "build.py"), "wheel": ("release", "distributions.py")}
# What an environment holds, as `wanted_state` writes it, or that an installation has begun.
STATE = "gemmkit-state"
UNFINISHED = "unfinished"
OLDEST = (3, 11)
MAX_TEST_PROCESSES = 8
# As `nice` counts it, where 0 is what programs have and 19 the lowest.
LOW_PRIORITY = 5
USAGE = """\
usage: python3 run.py ladder [options]   run the ladder of kernels and show one table
       python3 run.py test [options]     run linters, types, layers and the tests
       python3 run.py docs [options]     build the documentation site in build/site
       python3 run.py wheel [options]    build sdist and wheel in dist

Options of `ladder` are those of `gemmkit ladder` (see --help), options of `test` those of pytest.
`wheel --repository URL` gives the project's address to the metadata and to the links and pictures
of the description; without it, these links are plain text and the pictures are left out.
"""


def main(arguments: list[str]) -> int:
    """Run one of the commands and return its exit status."""
    locks = {"ladder": RUNTIME, "test": DEVELOPMENT, "docs": DOCUMENTATION, "wheel": RUNTIME}
    if not arguments or arguments[0] not in locks:
        asked_for_help = arguments[:1] in (["-h"], ["--help"])
        print(USAGE, end="", file=sys.stdout if asked_for_help else sys.stderr)
        return 0 if asked_for_help else 2
    if sys.version_info < OLDEST:
        return run([newer_python(), __file__, *arguments])
    command, *options = arguments
    venv = DOCS_VENV if command == "docs" else VENV
    with one_at_a_time():
        set_up(locks[command], venv)
    if command == "ladder":
        return run([program(venv, "python"), "-m", "gemmkit", "ladder", *options])
    if command in SCRIPTS_OF:
        return run([program(venv, "python"), str(Path(*SCRIPTS_OF[command])), *options])
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


def program(venv: Path, name: str) -> str:
    """The path of a program of an environment."""
    return str(venv / SCRIPTS / (f"{name}.exe" if os.name == "nt" else name))


def set_up(lock: str, venv: Path) -> None:
    """Make an environment hold the packages of a lock file, unless it does already."""
    state_file = venv / STATE
    python = program(venv, "python")
    state = state_file.read_text("utf-8") if state_file.is_file() else ""
    works = quiet([python, "-c", f"import sys; sys.exit(sys.version_info < {OLDEST})"])[0] == 0
    enough = {RUNTIME, DEVELOPMENT} if lock == RUNTIME else {lock}
    if works and state in map(wanted_state, enough):
        return
    # Scripts in it hold their own path, so one that was moved is made again, as is an unfinished
    # one; one that is merely old, or was made by hand, is installed into.
    spoilt = bool(state) and state.split("\n")[0] != str(ROOT)
    if spoilt or not works:
        say(f"making {venv.name} with Python {version()}")
        shutil.rmtree(str(venv), ignore_errors=True)
        venv.mkdir(parents=True, exist_ok=True)
        state_file.write_text(UNFINISHED, "utf-8")
        base = getattr(sys, "_base_executable", sys.executable)
        status, output = quiet([base, "-m", "venv", str(venv)])
        if status != 0:
            raise failure(
                f"could not make a virtual environment with {base}; on Debian and Ubuntu, "
                "`apt install python3-venv` adds what is missing.",
                output,
            )
    state_file.write_text(UNFINISHED, "utf-8")
    megabytes = 20 if lock == DOCUMENTATION else 200
    say(f"installing {lock} (downloads about {megabytes} MB the first time)")
    install(python, ["--require-hashes", "--only-binary", ":all:", "-r", lock])
    if lock != DOCUMENTATION:
        install(python, ["--no-index", "--no-deps", "--no-build-isolation", "--editable", "."])
    state_file.write_text(wanted_state(lock), "utf-8")


def wanted_state(lock: str) -> str:
    """What the state file says when an environment holds this lock file's packages."""
    content = (ROOT / lock).read_bytes() + (ROOT / "pyproject.toml").read_bytes()
    return f"{ROOT}\n{lock}\n{hashlib.sha256(content).hexdigest()}\n"


def install(python: str, arguments: list[str]) -> None:
    """Run an environment's pip, or end with what it said."""
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    status, output = quiet([*pip, "--quiet", "--no-user", *arguments])
    if status != 0:
        raise failure(
            "pip could not install gemmkit's packages. The first run needs a connection to a "
            "Python package index, about 1 GB of free disk, and wheels for this platform "
            f"(Python {version()}, {sys.platform}).",
            output,
        )


def check(options: list[str]) -> int:
    """Run every check, also after one has failed; print a summary; 0 if all passed.

    mypy runs beside the others, and what it has found follows the output of the tests.
    """
    cuda = [str(path) for path in sorted((ROOT / "src").rglob("*.cu*"))]
    processes = str(min(os.cpu_count() or 1, MAX_TEST_PROCESSES))
    checks = {
        "ruff check": ["ruff", "check", "."],
        "ruff format": ["ruff", "format", "--check", "."],
        "clang-format": ["clang-format", "--dry-run", "-Werror", *cuda],
        "import-linter": ["lint-imports"],
        "pytest": ["pytest", "-rs", "-n", processes, *options],
    }
    summary = []
    failed = False
    environment = dict(os.environ)
    if environment.pop("PYTHONDONTWRITEBYTECODE", ""):
        # The tests start hundreds of interpreters, each of which would compile all that it imports.
        environment["PYTHONPYCACHEPREFIX"] = str(ROOT / "build" / "bytecode")
    collected = collected_beside(environment)
    with beside([program(VENV, "mypy")], environment) as mypy:
        for name, (tool, *arguments) in checks.items():
            if name == "pytest" and collected is not None:
                collected.wait()
            say(name)
            start = time.monotonic()
            status = run([program(VENV, tool), *arguments], environment)
            failed |= status != 0
            result = "failed" if status else "passed"
            summary.append(f"{name:14} {result} {time.monotonic() - start:7.1f} s")
        say("mypy, which ran beside these")
        status, output = mypy()
        print(output, end="", flush=True)
        failed |= status != 0
        summary.append(f"{'mypy':14} {'failed' if status else 'passed'}")
    print("", *summary, sep="\n", flush=True)
    return int(failed)


@contextlib.contextmanager
def beside(
    command: list[str], environment: dict[str, str]
) -> Iterator[Callable[[], tuple[int, str]]]:
    """Run a command at low priority while the block runs.

    Gives a function that waits for its end and returns its exit status and what it printed. Where
    the block ends early, so does the command.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=str(ROOT), env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        if hasattr(os, "setpriority"):
            os.setpriority(os.PRIO_PROCESS, process.pid, LOW_PRIORITY)

        def ended() -> tuple[int, str]:
            status = process.wait()
            output.seek(0)
            return status, output.read().decode(errors="replace")

        try:
            yield ended
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()


def collected_beside(environment: dict[str, str]) -> subprocess.Popen[bytes] | None:
    """Begin to collect the tests if no bytecode of them is kept, which leaves it behind.

    Otherwise each of pytest's processes makes all of it before its first test; the checks before
    pytest leave a core idle.
    """
    prefix = environment.get("PYTHONPYCACHEPREFIX")
    kept = Path(prefix) if prefix else ROOT / "tests" / "__pycache__"
    if kept.exists() or (os.cpu_count() or 1) < 2:
        return None
    command = [program(VENV, "pytest"), "--collect-only"]
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(command, cwd=str(ROOT), env=environment, stdout=nowhere, stderr=nowhere)


def run(command: list[str], environment: dict[str, str] | None = None) -> int:
    """Run a command in the repository, its output on the screen; returns its exit status.

    `environment` are its variables, by default those of this process.

    Ctrl-C reaches the command too, which is left to end by itself.
    """
    with subprocess.Popen(command, cwd=str(ROOT), env=environment) as process:
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
