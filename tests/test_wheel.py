"""The wheel in an environment that holds what it asks for, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import gemmkit

ROOT = Path(__file__).resolve().parent.parent
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
REPOSITORY = "https://example.com/owner/name"
OFFLINE = ["--no-index", "--no-cache-dir", "--quiet"]


def run(*command: object, folder: Path) -> subprocess.CompletedProcess[str]:
    # The checkout must not be found in place of what is installed.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built of the sdist as for a release."""
    folder = tmp_path_factory.mktemp("wheel")
    script = ROOT / "release" / "distributions.py"
    done = run(
        sys.executable, script, "--repository", REPOSITORY, "--output", folder, folder=folder
    )
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    assert {path.name for path in folder.iterdir()} == {
        built.name,
        f"gemmkit-{gemmkit.__version__}.tar.gz",
    }
    return built


@pytest.fixture(scope="module")
def metadata(wheel) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def needed(requirements: list[str]) -> set[str]:
    """The distributions that requirements lead to here, without extras."""
    found: set[str] = set()
    waiting = [Requirement(each) for each in requirements]
    while waiting:
        wanted = waiting.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        name = canonicalize_name(wanted.name)
        if name not in found:
            found.add(name)
            waiting += [Requirement(each) for each in distribution(name).requires or ()]
    return found


@pytest.fixture(scope="module")
def installed(wheel, metadata, tmp_path_factory) -> Path:
    """The `bin` folder of a new environment with the wheel and its dependencies.

    These are links to the packages of this environment, so that nothing is downloaded; pip then
    finds that the wheel's requirements are met, or fails.
    """
    if os.name == "nt":
        pytest.skip("links packages, which Windows allows administrators only")
    folder = tmp_path_factory.mktemp("clean")
    done = run(sys.executable, "-m", "venv", "--without-pip", folder, folder=folder)
    assert done.returncode == 0, done.stderr
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in needed(metadata.get_all("Requires-Dist")):
        found = distribution(name)
        for file in found.files:
            if ".." not in file.parts and found.locate_file(file).exists():
                link = packages / file
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(found.locate_file(file))
    python = folder / "bin" / "python"
    done = run(*PIP, "--python", python, "install", *OFFLINE, wheel, folder=folder)
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def test_metadata_describes_the_package(metadata):
    assert metadata["Name"] == "gemmkit"
    assert metadata["Version"] == gemmkit.__version__
    assert metadata["Author"] == "gemmkit developers"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert {"gpu", "plots"} <= set(metadata.get_all("Provides-Extra"))


def test_metadata_and_description_lead_to_the_repository(metadata):
    urls = dict(entry.split(", ") for entry in metadata.get_all("Project-URL"))
    assert urls.keys() == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    assert urls["Source"] == REPOSITORY
    tagged = f"{REPOSITORY}/blob/v{gemmkit.__version__}"
    assert urls["Changelog"] == f"{tagged}/CHANGELOG.md"
    assert f"]({tagged}/docs/install.md)" in metadata.get_payload()


def test_the_wheel_holds_every_file_of_the_package(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("gemmkit/")}
    source = ROOT / "src"
    files = (path for path in (source / "gemmkit").rglob("*") if path.is_file())
    wanted = {path.relative_to(source).as_posix() for path in files if path.suffix != ".pyc"}
    assert held == wanted


def test_the_sdist_holds_the_repository(wheel):
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("the list of its files is Git's")
    done = run("git", "ls-files", folder=ROOT)
    (sdist,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {each.partition("/")[2] for each in archive.getnames()}
    assert {*done.stdout.splitlines()} - held == {".gitignore"}
    assert sdist.stat().st_size < 7_000_000


def test_what_only_a_gpu_or_a_picture_needs_is_not_installed(installed):
    absent = "('cuda.core', 'cuda.bindings', 'matplotlib', 'PIL', 'fontTools')"
    script = (
        "from importlib.util import find_spec\n"
        f"print([name for name in {absent} if find_spec(name)], find_spec('gemmkit').origin)"
    )
    done = run(installed / "python", "-c", script, folder=installed)
    found, _, origin = done.stdout.strip().rpartition(" ")
    assert found == "[]", done.stderr
    assert Path(origin).is_relative_to(installed.parent)


def test_the_command_tells_its_version(installed):
    done = run(installed / "gemmkit", "--version", folder=installed)
    assert (done.returncode, done.stderr) == (0, "")
    assert gemmkit.__version__ in done.stdout


def test_the_ladder_runs_on_the_emulator(installed):
    words = ("ladder", "--size", "64", "--kernels", "naive")
    done = run(installed / "gemmkit", *words, folder=installed)
    assert done.returncode == 0, done.stderr
    assert "Running on the emulator" in done.stderr
    (row,) = (line for line in done.stdout.splitlines() if line.startswith(" 2  naive "))
    assert " 16,384 " in row


def test_a_kernel_of_ones_own_is_compiled_and_checked(installed):
    # Its options are those of the README.
    options = ("--entry", "sgemm<64,64,8,8,4>", "--grid", "(N+63)/64,(M+63)/64")
    words = ("check", ROOT / "examples" / "sgemm.cu", *options, "--block", "128", "--shape", "64")
    done = run(installed / "gemmkit", *words, folder=installed)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_picture_names_the_extra_that_it_needs(installed):
    words = ("explain", "naive", "--shape", "64", "--pictures", "pictures")
    done = run(installed / "gemmkit", *words, folder=installed)
    assert done.returncode == 2
    assert done.stderr == "gemmkit: pictures need Matplotlib: run `pip install 'gemmkit[plots]'`\n"


def test_info_names_the_extras_that_are_missing(installed):
    done = run(installed / "gemmkit", "info", folder=installed)
    assert done.returncode == 0, done.stderr
    for extra in ("gpu", "plots"):
        assert f"pip install 'gemmkit[{extra}]'" in done.stdout
