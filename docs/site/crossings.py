"""Links between the sites of two languages, which Sphinx, building one site, does not check."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote


def broken_crossings(crossings: Iterable[tuple[str, str]], site: Path) -> Iterator[str]:
    """A sentence for each link to a page or a heading that the built site lacks.

    Args:
        crossings: pairs of the page that has the link and where it leads, relative to the site.
        site: the folder of the built site.
    """
    for page, link in sorted(crossings):
        name, _, anchor = link.partition("#")
        target = site / name
        if not target.is_file():
            yield f"{page}: {name} is not on the site"
        elif anchor and unquote(anchor) not in _ids(target):
            yield f"{page}: {name} has no heading #{anchor}"


def _ids(page: Path) -> set[str]:
    return {html.unescape(each) for each in re.findall(r'\bid="([^"]*)"', page.read_text("utf-8"))}
