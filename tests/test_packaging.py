"""Project files that have to agree with each other, and run.py, which sets all up."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import gemmkit
from gemmkit.cli import VERBS

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LOCKS = ("requirements.lock", "requirements-dev.lock", "requirements-docs.lock")
PACKAGE = ROOT / "src" / "gemmkit"

# What a distribution is imported as, where that is not its name; None where it is not imported.
IMPORTED_AS = {
    "cuda-bindings": "cuda.bindings",
    "cuda-core": "cuda.core",
    "cuda-pathfinder": "cuda.pathfinder",
    "nvidia-cuda-nvrtc": None,  # its library is loaded through ctypes
    "pyelftools": "elftools",
}


def locked(name: str) -> dict[str, list[str]]:
    """Distribution to the hashes that a lock file has for it, all of its versions together."""
    found: dict[str, list[str]] = {}
    for entry in re.split(r"\n(?=\S)", (ROOT / name).read_text("utf-8")):
        if not entry.startswith("#"):
            project = canonicalize_name(re.match(r"[\w.-]+", entry)[0])
            found.setdefault(project, []).extend(re.findall(r"--hash=sha256:[0-9a-f]{64}", entry))
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_files_have_hashes_and_name_no_host(lock):
    text = (ROOT / lock).read_text("utf-8")
    assert "://" not in text
    assert not re.search(r"^--", text, re.MULTILINE)
    assert all(locked(lock).values())


@pytest.mark.parametrize("lock", LOCKS[:2])
def test_lock_files_cover_what_pyproject_asks_for(lock):
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *PYPROJECT["build-system"]["requires"]]
    # A GPU is used, and pictures are drawn, without further installations.
    wanted += [*extras["gpu"], *extras["plots"]]
    if lock == "requirements-dev.lock":
        groups = PYPROJECT["dependency-groups"]
        wanted += [*groups["test"], *groups["lint"], *extras["sass"]]
    names = {canonicalize_name(Requirement(each).name) for each in wanted}
    assert names <= locked(lock).keys()


def test_the_development_lock_contains_the_other():
    runtime, development = map(locked, LOCKS[:2])
    assert runtime.items() <= development.items()


def test_the_site_has_a_lock_file_of_its_own():
    groups = PYPROJECT["dependency-groups"]
    wanted = {canonicalize_name(Requirement(each).name) for each in groups["docs"]}
    assert wanted <= locked("requirements-docs.lock").keys()
    assert not wanted & locked("requirements-dev.lock").keys()


def test_every_dependency_is_used():
    imports = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                imports.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                imports.add(node.module)
                imports.update(f"{node.module}.{alias.name}" for alias in node.names)
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"]
    for each in (*project["dependencies"], *extras["gpu"], *extras["plots"]):
        name = Requirement(each).name
        module = IMPORTED_AS.get(name, name)
        assert module is None or any(
            seen == module or seen.startswith(module + ".") for seen in imports
        ), name


def test_the_version_is_the_same_everywhere():
    assert PYPROJECT["project"]["version"] == gemmkit.__version__
    cited = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {gemmkit.__version__}\n" in cited
    released = re.search(r"^date-released: (.*)$", cited, re.MULTILINE)[1]
    heading = f"\n## [{gemmkit.__version__}] - {released}\n"
    assert heading in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_the_description_is_the_same_everywhere():
    described = PYPROJECT["project"]["description"]
    files = ("README.md", "CITATION.cff", "src/gemmkit/__init__.py", "src/gemmkit/cli/__init__.py")
    for name in files:
        assert described in " ".join((ROOT / name).read_text("utf-8").split()), name


def test_package_data_takes_every_file_that_is_no_module():
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["gemmkit"]
    others = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    ]
    assert "kernels/ladder/naive.cu" in others
    assert [name for name in others if not any(fnmatch(name, each) for each in patterns)] == []


def test_continuous_integration_runs_the_command_of_the_readme():
    readme = (ROOT / "README.md").read_text("utf-8")
    assert "python3 run.py ladder" in readme
    assert "python3 run.py test" in readme
    assert "python3 run.py test" in (ROOT / ".ci" / "run").read_text("utf-8")
    workflows = ROOT / ".github" / "workflows"
    for command, file in (("test", "test"), ("docs --versions", "docs"), ("test", "release")):
        assert f"- run: python3 run.py {command}\n" in (workflows / f"{file}.yml").read_text()


def test_the_example_of_the_page_on_commands_runs(capsys):
    page = (ROOT / "docs" / "commands.md").read_text("utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(example.replace("512", "32"), {})
    lines = capsys.readouterr().out.splitlines()
    # One rung is for skinny products only.
    rungs = [each for each in gemmkit.LADDER if "float32" in each.dtypes]
    assert len(lines) == sum(each.condition is None for each in rungs)
    assert all(line.split()[1] == "True" for line in lines)


def test_the_page_on_commands_has_every_command():
    page = (ROOT / "docs" / "commands.md").read_text("utf-8")
    assert set(re.findall(r"^\| `gemmkit (\w+)", page, re.MULTILINE)) == set(VERBS)


def test_the_page_on_installation_has_every_extra():
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    named = re.findall(r"^\| (`.*?`) \|", page, re.MULTILINE)
    extras = PYPROJECT["project"]["optional-dependencies"]
    assert set(re.findall(r"`(\w+)`", " ".join(named))) == set(extras)


def test_disk_space_is_that_of_the_results():
    results = json.loads((ROOT / "benchmarks/results/install-size.json").read_text("utf-8"))
    sizes = {name: each["total_mb"] for name, each in results["installations"].items()}
    for page in (ROOT / "README.md", ROOT / "docs" / "install.md"):
        told = re.findall(r"^ {4}pip install '?\.(.*?)'? +#.*: (\d+) MB$", page.read_text(), re.M)
        assert len(told) == 3
        assert {f"gemmkit{extras}": int(mb) for extras, mb in told}.items() <= {
            name: round(mb) for name, mb in sizes.items()
        }.items()


def test_disk_space_of_packages_is_that_of_the_results():
    results = json.loads((ROOT / "benchmarks/results/install-size.json").read_text("utf-8"))
    found = results["installations"]["gemmkit"]["packages_mb"]
    packages = {name.partition(" ")[0]: mb for name, mb in found.items()}
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    told = dict(re.findall(r"^\| ([\w -]+) \| (\d+) \|", page, re.MULTILINE))
    others = int(told.pop("eleven others"))
    assert len(told) == 4
    assert {name: round(packages.pop(name)) for name in told} == {
        name: int(mb) for name, mb in told.items()
    }
    assert len(packages) == 11
    assert round(sum(packages.values())) == others


# --- run.py ----------------------------------------------------------------------------------


def test_run_py_can_be_read_by_an_old_python():
    ast.parse((ROOT / "run.py").read_text("utf-8"), feature_version=(3, 7))


@pytest.mark.parametrize(("words", "status"), [([], 2), (["climb"], 2), (["--help"], 0)])
def test_run_py_tells_its_usage(words, status):
    done = subprocess.run(
        [sys.executable, ROOT / "run.py", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert "usage: python3 run.py ladder" in (done.stderr if status else done.stdout)


@pytest.fixture
def run_py(tmp_path):
    """run.py as a module, at work in a folder of its own, with what it calls written down."""
    spec = importlib.util.spec_from_file_location("run_py", ROOT / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("pyproject.toml", *LOCKS):
        (tmp_path / name).write_text(name, "utf-8")
    venv = tmp_path / ".venv"
    module.ROOT, module.VENV = tmp_path, venv
    module.DOCS_VENV = tmp_path / "build" / "docs-venv"
    module.calls, module.failing = [], None

    def quiet(command):
        words = [str(word) for word in command]
        if "venv" in words:
            kind = "venv"
            python = Path(module.program(Path(words[-1]), "python"))
            python.parent.mkdir()
            python.touch()
        elif "pip" in words:
            kind = "pip"
        else:
            return (0, "") if Path(words[0]).exists() else (127, "")
        module.calls.append(kind)
        return (1, f"{kind} broke") if module.failing == kind else (0, "")

    module.quiet = quiet
    return module


def calls_of(run_py, lock: str) -> list[str]:
    run_py.calls.clear()
    run_py.set_up(lock, run_py.DOCS_VENV if lock == DOCUMENTATION else run_py.VENV)
    return list(run_py.calls)


ANEW = ["venv", "pip", "pip"]
AGAIN = ["pip", "pip"]
RUNTIME, DEVELOPMENT, DOCUMENTATION = LOCKS


def test_set_up_works_once(run_py):
    assert calls_of(run_py, RUNTIME) == ANEW
    assert calls_of(run_py, RUNTIME) == []


def test_development_packages_do_for_the_ladder_but_not_the_reverse(run_py):
    calls_of(run_py, RUNTIME)
    assert calls_of(run_py, DEVELOPMENT) == AGAIN
    assert calls_of(run_py, RUNTIME) == []


def test_the_site_is_built_in_an_environment_of_its_own(run_py):
    assert calls_of(run_py, DOCUMENTATION) == ["venv", "pip"]
    assert calls_of(run_py, DOCUMENTATION) == []
    assert not run_py.VENV.exists()
    assert calls_of(run_py, RUNTIME) == ANEW


def test_a_changed_lock_file_is_installed_again(run_py):
    calls_of(run_py, RUNTIME)
    (run_py.ROOT / RUNTIME).write_text("changed", "utf-8")
    assert calls_of(run_py, RUNTIME) == AGAIN


@pytest.mark.parametrize("step", ["venv", "pip"])
def test_an_unfinished_environment_is_made_anew(run_py, step, capsys):
    run_py.failing = step
    with pytest.raises(SystemExit):
        calls_of(run_py, RUNTIME)
    assert f"{step} broke" in capsys.readouterr().err
    run_py.failing = None
    assert calls_of(run_py, RUNTIME) == ANEW


def test_an_environment_made_by_hand_is_kept_and_installed_into(run_py):
    python = Path(run_py.program(run_py.VENV, "python"))
    python.parent.mkdir(parents=True)
    python.touch()
    mine = run_py.VENV / "mine"
    mine.touch()
    assert calls_of(run_py, RUNTIME) == AGAIN
    assert mine.exists()


def test_a_moved_environment_is_made_anew(run_py):
    calls_of(run_py, RUNTIME)
    file = run_py.VENV / run_py.STATE
    state = file.read_text("utf-8")
    file.write_text(state.replace(str(run_py.ROOT), "/elsewhere"), "utf-8")
    assert calls_of(run_py, RUNTIME) == ANEW


def test_an_environment_without_its_interpreter_is_made_anew(run_py):
    calls_of(run_py, RUNTIME)
    Path(run_py.program(run_py.VENV, "python")).unlink()
    assert calls_of(run_py, RUNTIME) == ANEW


def test_no_network_is_a_clear_message(run_py, capsys):
    run_py.failing = "pip"
    with pytest.raises(SystemExit) as end:
        run_py.set_up(RUNTIME, run_py.VENV)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "pip broke\n" in said
    assert "needs a connection to a Python package index" in said


def test_no_python_that_is_new_enough_is_a_clear_message(run_py, monkeypatch, capsys):
    monkeypatch.setattr(run_py.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit) as end:
        run_py.newer_python()
    assert end.value.code == 2
    assert "gemmkit needs Python 3.11 or newer" in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="the programs are shell scripts")
@pytest.mark.parametrize("failing", ["", "mypy", "ruff", "pytest"])
def test_every_check_runs_and_mypy_tells_last_what_it_found(run_py, failing, capfd):
    programs = Path(run_py.program(run_py.VENV, "python")).parent
    programs.mkdir(parents=True)
    for name in ("ruff", "clang-format", "mypy", "lint-imports", "pytest"):
        file = programs / name
        file.write_text(f"#!/bin/sh\necho {name} says $*\nexit {int(name == failing)}\n", "utf-8")
        file.chmod(0o755)
    (run_py.ROOT / "tests" / "__pycache__").mkdir(parents=True)
    assert run_py.check(["-k", "naive"]) == bool(failing)
    said = capfd.readouterr().out
    order = ["ruff", "ruff", "clang-format", "lint-imports", "pytest", "mypy"]
    assert re.findall("^(.+) says", said, re.MULTILINE) == order
    assert re.search(r"^pytest says -rs -n \d+ -k naive$", said, re.MULTILINE)
    results = dict(re.findall(r"^(\S.+?) +(passed|failed)", said, re.MULTILINE))
    assert len(results) == len(order)
    assert {name.split()[0] for name, result in results.items() if result == "failed"} == (
        {failing} - {""}
    )


@pytest.mark.skipif(os.name == "nt", reason="sleep is a program of Unix")
def test_what_runs_beside_the_checks_ends_with_them(run_py):
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), run_py.beside(["sleep", "60"], dict(os.environ)):
        raise KeyboardInterrupt
    assert time.monotonic() - start < 30
