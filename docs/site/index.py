"""Write the sentences of `docs/reference.md` anew, from the docstrings.

`python3 docs/site/index.py`; the names in each section are listed by hand.
"""

from __future__ import annotations

import re
from pathlib import Path

import api

PAGE = Path(__file__).resolve().parents[1] / "reference.md"
_ROW = re.compile(r"^\| `([\w.]+)` \|.*$", re.M)


def updated(text: str) -> str:
    """The page with the first sentence of each name's docstring.

    Raises:
        SystemExit: it lacks a public name, or lists another.
    """
    said = {item.name: item.doc.summary for item in api.public_items()}
    listed = _ROW.findall(text)
    wrong = said.keys() ^ set(listed)
    if wrong or len(listed) != len(said):
        raise SystemExit(f"docs/reference.md must list each public name once: see {sorted(wrong)}")
    return _ROW.sub(lambda found: f"| `{found[1]}` | {said[found[1]]} |", text)


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text("utf-8")), "utf-8")
