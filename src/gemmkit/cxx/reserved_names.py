"""C++ text of gemmkit's own among a user's: no macro of the user's may change it."""

from __future__ import annotations

import re


def reserved(names: str, text: str) -> str:
    """The text with these of its names, separated by spaces, spelled as programs must not."""
    for name in names.split():
        text = re.sub(rf"(?<!\w){name}(?!\w)", f"__gemmkit_{name}", text)
    return text
