"""Build the documentation site: `python3 run.py docs`, which installs what it needs first.

A broken link, a page that the contents lack and a name that the reference lacks are errors. Where
there are pages in Chinese, their site is the folder `zh`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from crossings import broken_crossings
from languages import CHINESE, ENGLISH, Language
from sphinx.cmd.build import main as sphinx_build
from stage import ROOT, BrokenLink, Stage, pages, twins

SITE = ROOT / "build" / "site"
SOURCES = ROOT / "build" / "site-sources"


def main(arguments: list[str]) -> int:
    """Build the site and return the exit status."""
    parser = argparse.ArgumentParser(prog="run.py docs", description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, default=SITE, help="folder (default: build/site)")
    parser.add_argument(
        "--versions",
        action="store_true",
        help="read the list that docs/site/versions.py writes, for a published site",
    )
    options = parser.parse_args(arguments)
    output = options.output.resolve()
    shutil.rmtree(SOURCES, ignore_errors=True)
    languages = [language for language in (CHINESE, ENGLISH) if pages(language)]
    for language in languages:
        (SOURCES / language.code).mkdir(parents=True)
    english = Stage(SOURCES / ENGLISH.code)
    stages = [
        english if each == ENGLISH else Stage(SOURCES / each.code, each, english)
        for each in languages
    ]
    try:
        for stage in stages:
            stage.fill()
    except BrokenLink as broken:
        print(broken, file=sys.stderr)
        return 1
    # English first: the site of another language lies in a folder of its site.
    if status := max(_build(each, output, options.versions) for each in reversed(languages)):
        return status
    broken_links = [each for stage in stages for each in broken_crossings(stage.crossings, output)]
    if broken_links:
        print(*broken_links, sep="\n", file=sys.stderr)
        return 1
    print(f"{output / 'index.html'}")
    return 0


def _build(language: Language, output: Path, versions: bool) -> int:
    """Run Sphinx over the sources of one language; returns its exit status."""
    doctrees = SOURCES.with_name("site-doctrees") / language.code
    here = Path(__file__).parent
    # Sphinx compiles the catalogs that lie beside the sources.
    shutil.copytree(here / "locales", SOURCES / language.code / "locales")
    options = ["--fail-on-warning", "--keep-going", "--quiet", "--fresh-env", "--jobs", "auto"]
    options += ["-D", f"language={language.code}", "-A", f"twins={' '.join(twins())}"]
    options += ["-A", "versions=1"] if versions else []
    options += [str(SOURCES / language.code), str(output / language.folder)]
    return int(sphinx_build(["-b", "html", "-c", str(here), "-d", str(doctrees), *options]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
