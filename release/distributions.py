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
from hosting import documentation_site, repository_address

_HOOK = "import sys; from setuptools import build_meta; print(build_meta.{hook}(sys.argv[1]))"
_URLS = """\
[project.urls]
Homepage = "{repository}"
Documentation = "{documentation}"
Source = "{repository}"
Issues = "{repository}/issues"
Changelog = "{repository}/blob/v{version}/CHANGELOG.md"

"""

# The README as a package index shows it, beside that of the repository.
DESCRIPTION = "DESCRIPTION.md"
# Commands of MANIFEST.in.
_ADDING = ("include", "graft")


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

    That is `src`, what MANIFEST.in names, and the description for package indexes in a file of its
    own. pyproject.toml gets that file as the readme, and the project's links; CITATION.cff gets
    the repository and the documentation.

    Raises:
        BrokenLink: the README links to a file that does not exist.
    """
    folder.mkdir(parents=True)
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    version = tomllib.loads(project)["project"]["version"]
    for name in ("README.md", "LICENSE", "MANIFEST.in", "src", *_named_in_the_manifest()):
        _copy(ROOT / name, folder / name)
    readme = long_description((ROOT / "README.md").read_text("utf-8"), version, repository)
    (folder / DESCRIPTION).write_text(readme, "utf-8")
    project = project.replace('readme = "README.md"', f'readme = "{DESCRIPTION}"')
    if repository:
        documentation = documentation_site(repository)
        urls = _URLS.format(
            repository=repository,
            version=version,
            documentation=documentation or f"{repository}/blob/v{version}/docs/README.md",
        )
        project = re.sub(r"^(?=\[project\.)", urls, project, count=1, flags=re.M)
        with (folder / "CITATION.cff").open("a", encoding="utf-8") as citation:
            citation.write(f"repository-code: {repository}\n")
            citation.write(f"url: {documentation or repository}\n")
    (folder / "pyproject.toml").write_text(project, "utf-8")


def _named_in_the_manifest() -> list[str]:
    """The files and folders that MANIFEST.in adds to those of the package."""
    lines = (ROOT / "MANIFEST.in").read_text("utf-8").splitlines()
    words = (line.split() for line in lines)
    return [name for kind, *names in filter(None, words) if kind in _ADDING for name in names]


def _copy(path: Path, target: Path) -> None:
    if path.is_dir():
        shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    else:
        shutil.copy(path, target)


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
