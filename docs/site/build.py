"""Build the documentation site: `python3 run.py docs`, which installs what it needs first.

A broken link, a page that the contents lack and a name that the reference lacks are errors.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import main as sphinx_build
from stage import ROOT, BrokenLink, Stage

SITE = ROOT / "build" / "site"
SOURCES = ROOT / "build" / "site-sources"


def main(arguments: list[str]) -> int:
    """Build the site and return the exit status."""
    parser = argparse.ArgumentParser(prog="run.py docs", description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, default=SITE, help="folder (default: build/site)")
    output = parser.parse_args(arguments).output.resolve()
    shutil.rmtree(SOURCES, ignore_errors=True)
    SOURCES.mkdir(parents=True)
    try:
        Stage(SOURCES).fill()
    except BrokenLink as broken:
        print(broken, file=sys.stderr)
        return 1
    doctrees = SOURCES.with_name("site-doctrees")
    here = Path(__file__).parent
    options = ["--fail-on-warning", "--keep-going", "--quiet", "--fresh-env", "--jobs", "auto"]
    status = sphinx_build(
        ["-b", "html", "-c", str(here), "-d", str(doctrees), *options, str(SOURCES), str(output)]
    )
    if status == 0:
        print(f"{output / 'index.html'}")
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
