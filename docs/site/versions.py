"""The list of versions on a published site: `versions.py FOLDER`, with a folder for each version.

Writes `versions.js`, which the switch in the sidebar reads, and an `index.html` that leads to the
newest release, or to `dev` before there is one.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

_RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+)(\w*)$")


def write(folder: Path) -> None:
    """Write both files for the versions that a folder holds, releases first, newest first."""
    names = [each.parent.name for each in folder.glob("*/index.html")]
    releases = sorted((each for each in names if _RELEASE.match(each)), key=_order, reverse=True)
    names = releases + sorted(set(names) - set(releases))
    if not names:
        raise SystemExit(f"{folder} holds no version: expected FOLDER/VERSION/index.html")
    (folder / "versions.js").write_text(f"window.gemmkitVersions = {json.dumps(names)};\n", "utf-8")
    finished = [each for each in releases if not _RELEASE.match(each)[4]]  # type: ignore[index]
    first = [*finished, *names][0]
    (folder / "index.html").write_text(
        '<!doctype html><meta charset="utf-8">'
        f'<meta http-equiv="refresh" content="0; url={first}/">'
        f'<title>gemmkit</title><a href="{first}/">gemmkit {first}</a>\n',
        "utf-8",
    )


def _order(name: str) -> tuple[int, int, int, bool, str]:
    """Where a release stands; a release candidate comes before its release."""
    major, minor, patch, suffix = _RELEASE.match(name).groups()  # type: ignore[union-attr]
    return int(major), int(minor), int(patch), not suffix, suffix


if __name__ == "__main__":
    write(Path(sys.argv[1]))
