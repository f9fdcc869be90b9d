"""What the comment at the head of a CUDA C++ or PTX file says in short."""

from __future__ import annotations

import re
from collections.abc import Sequence

# A line that names an owner or a license, and words of a license's own text.
_OWNER = re.compile(r"copyright|\(c\) *[12]\d{3}|\xa9|SPDX-|all rights reserved", re.IGNORECASE)
_LICENSE = re.compile(
    r"\blicen[sc]e|permission is hereby|redistributions? (?:and|of|in)|neither the name of"
    r"|software is provided|as.is.? basis|required by applicable law|without (?:any )?warranty",
    re.IGNORECASE,
)
# Where a sentence ends, and from which length on a line goes on in the next one, most likely.
_SENTENCE = re.compile(r"[.!?](?=\s+[A-Z]|$)")
_FULL_LINE, _LONGEST_SENTENCE = 60, 300


def head_comment(text: str) -> str:
    """The sentences in the first line of the comments that a text begins with; empty if none.

    A sentence that is longer is given whole, and a line without one as it is. Lines that name an
    owner, and paragraphs of a license, are skipped.
    """
    match = re.match(r"(?:\s*(?:/\*.*?\*/|//[^\n]*))+", text, re.DOTALL)
    paragraph: list[str] = []
    for line in (*(match[0] if match else "").replace("*/", "\n\n").splitlines(), ""):
        words = line.strip().lstrip("/*!").strip()
        if re.search(r"[A-Za-z]{2}", words):
            paragraph.append("" if _OWNER.search(words) else words)
        elif not words:
            if any(paragraph) and not _LICENSE.search(" ".join(paragraph)):
                return _first_sentences([*filter(None, paragraph)])
            paragraph = []
    return ""


def _first_sentences(lines: Sequence[str]) -> str:
    first = lines[0]
    ends = [each.end() for each in _SENTENCE.finditer(first)]
    if ends or len(first) < _FULL_LINE:
        return first[: ends[-1]] if ends else first
    end = _SENTENCE.search(" ".join(lines))
    return " ".join(lines)[: end.end()] if end and end.end() <= _LONGEST_SENTENCE else first
