"""Build the sdist and the wheel: `python3 run.py wheel --repository URL`."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

from description import ROOT, BrokenLink, long_description

_HOOK = "import sys; from setuptools import build_meta; print(build_meta.{hook}(sys.argv[1]))"
_URLS = """\
[project.urls]
Homepage = "{repository}"
Documentation = "{repository}/blob/v{version}/docs/README.md"
Source = "{repository}"
Issues = "{repository}/issues"
Changelog = "{repository}/blob/v{version}/CHANGELOG.md"

"""


def main(arguments: list[str]) -> int:
    """Build both and return the exit status."""
    parser = argparse.ArgumentParser(prog="run.py wheel", description=__doc__.split(":")[0] + ".")
    parser.add_argument(
        "--repository",
        type=repository_address,
        metavar="URL",
        help="the repository's address, such as https://github.com/OWNER/NAME: for the project's "
        "links, and the links and pictures of its description. Without it, there are no links, "
        "those of the description are plain text, and its pictures are left out",
    )
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder (default: dist)")
    options = parser.parse_args(arguments)
    output = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        try:
            lay_out(source, options.repository)
        except BrokenLink as broken:
            print(f"README.md: {broken}", file=sys.stderr)
            return 1
        sdist = _build(source, "build_sdist", output)
        # As installers build it that find no wheel, so that the sdist is known to be complete.
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        wheel = _build(Path(folder, sdist.name.removesuffix(".tar.gz")), "build_wheel", output)
    print(sdist, wheel, sep="\n")
    return 0


def lay_out(folder: Path, repository: str | None) -> None:
    """Copy what the distributions are built of, with the repository's address where it belongs.

    Raises:
        BrokenLink: the README links to a file that does not exist.
    """
    folder.mkdir(parents=True)
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    version = tomllib.loads(project)["project"]["version"]
    readme = long_description((ROOT / "README.md").read_text("utf-8"), version, repository)
    if repository:
        urls = _URLS.format(repository=repository, version=version)
        project = re.sub(r"^(?=\[project\.)", urls, project, count=1, flags=re.M)
    (folder / "pyproject.toml").write_text(project, "utf-8")
    (folder / "README.md").write_text(readme, "utf-8")
    shutil.copy(ROOT / "LICENSE", folder)
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "src", ignore=unwanted)


def repository_address(text: str) -> str:
    """An address without the slash and the `.git` at its end.

    Raises:
        argparse.ArgumentTypeError: it is not the address of a repository.
    """
    address = text.rstrip("/").removesuffix(".git")
    if not re.fullmatch(r"https?://[\w.:-]+(/[\w.~-]+){2,}", address):
        raise argparse.ArgumentTypeError(f"expected https://HOST/OWNER/NAME, not {text!r}")
    return address


def _build(source: Path, hook: str, output: Path) -> Path:
    """What a hook of setuptools builds of a source tree (PEP 517)."""
    done = subprocess.run(
        [sys.executable, "-c", _HOOK.format(hook=hook), str(output)],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        print(done.stdout, done.stderr, file=sys.stderr)
        raise SystemExit(1)
    return output / done.stdout.splitlines()[-1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
