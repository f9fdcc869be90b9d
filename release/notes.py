"""Print the changelog's section of a tag: `python3 release/notes.py v1.2.3 --repository URL`.

It fails if the tag is not that of the package's version, so that a release starts with it.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib

from description import ROOT, absolute
from hosting import repository_address


def notes(tag: str, repository: str | None) -> str:
    """What the changelog says of the version that a tag stands for.

    Raises:
        SystemExit: the package has another version, or the changelog has no such section.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    version = project["version"]
    if tag != f"v{version}":
        raise SystemExit(f"the tag is {tag}, but the version in pyproject.toml is {version}")
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    heading = re.escape(f"## [{version}] - ")
    found = re.search(rf"^{heading}\d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    if not found:
        raise SystemExit(f"CHANGELOG.md has no section '## [{version}] - DATE'")
    return absolute(found[1].strip() + "\n", version, repository)


def main(arguments: list[str]) -> int:
    """Print the section."""
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0] + ".")
    parser.add_argument("tag", help="such as v1.2.3")
    parser.add_argument("--repository", type=repository_address, metavar="URL")
    options = parser.parse_args(arguments)
    print(notes(options.tag, options.repository), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
