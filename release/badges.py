"""Print the READMEs' badges: `python3 release/badges.py --repository URL`; `--write` inserts them.

Nearly all of them need the repository's address, which the tree does not name before a release.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from hosting import documentation_site, github, repository_address

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- badges: written by release/badges.py -->", "<!-- end of badges -->"
_BLOCK = re.compile(rf"{BEGIN}.*?{END}\n\n", re.S)
_TITLE = re.compile(r"\A# .*\n\n")
_INDEX = "https://pypi.org/project/gemmkit/"
_PICTURES = "https://img.shields.io"
_READMES = ("README.md", "README.zh-CN.md")


def badges(repository: str) -> str:
    """Linked pictures, one a line: version, Python versions, license, and on GitHub tests and docs.

    Args:
        repository: the repository's address.
    """
    found = []
    if github(repository):
        tests = f"{repository}/actions/workflows/test.yml"
        site = documentation_site(repository)
        found += [
            _badge("tests", f"{tests}/badge.svg", tests),
            _badge("documentation", f"{_PICTURES}/badge/docs-site-blue", site or ""),
        ]
    found += [
        _badge("version", f"{_PICTURES}/pypi/v/gemmkit", _INDEX),
        _badge("Python versions", f"{_PICTURES}/pypi/pyversions/gemmkit", _INDEX),
        _badge("license", f"{_PICTURES}/pypi/l/gemmkit", f"{repository}/blob/HEAD/LICENSE"),
    ]
    return "\n".join(found) + "\n"


def with_badges(readme: str, repository: str) -> str:
    """A README with its badges below the title, in place of those that it has.

    Raises:
        ValueError: it does not start with a title.
    """
    text = _BLOCK.sub("", readme)
    title = _TITLE.match(text)
    if title is None:
        raise ValueError("a README starts with a title and an empty line")
    block = f"{BEGIN}\n\n{badges(repository)}\n{END}\n\n"
    return title[0] + block + text[title.end() :]


def _badge(name: str, picture: str, target: str) -> str:
    return f"[![{name}]({picture})]({target})"


def main(arguments: list[str]) -> int:
    """Print the badges, or write them into the READMEs."""
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0] + ".")
    parser.add_argument("--repository", type=repository_address, metavar="URL", required=True)
    parser.add_argument("--write", action="store_true", help="into both READMEs")
    options = parser.parse_args(arguments)
    if not options.write:
        print(badges(options.repository), end="")
        return 0
    for name in _READMES:
        path = ROOT / name
        path.write_text(with_badges(path.read_text("utf-8"), options.repository), "utf-8")
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
