"""Search in Chinese: words are pairs of neighboring characters, in the index and in a query.

Sphinx's own rule takes words from a dictionary and does not split queries: it finds a compound such
as 共享内存 only if the dictionary has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_HAN}]+|[^\W{_HAN}]+")

SPLIT_QUERY = rf"""
function splitQuery(query) {{
  const words = [];
  for (const part of query.split(/[^\p{{Letter}}\p{{Number}}_]+/gu)) {{
    for (const word of part.match(/[{_HAN}]+|[^{_HAN}]+/g) || []) {{
      if (word.length < 2 || !/[{_HAN}]/.test(word)) words.push(word);
      else for (let at = 0; at + 1 < word.length; at++) words.push(word.slice(at, at + 2));
    }}
  }}
  return words;
}}
"""
"""Splits a query as `words` does a text, without the single characters of longer words."""


def words(text: str) -> Iterator[str]:
    """The words of a text for the index: in Chinese, single characters and pairs of them."""
    for word in _WORD.findall(text):
        if re.match(f"[{_HAN}]", word):
            yield from word
            yield from (word[at : at + 2] for at in range(len(word) - 1))
        else:
            yield word
