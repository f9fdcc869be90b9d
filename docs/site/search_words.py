"""Words for the site's search, in the index and in a query: Chinese, and terms such as `split-K`.

Sphinx's own rule for Chinese takes words from a dictionary and does not split queries: it finds a
compound such as 共享内存 only if the dictionary has it. Its rule for English parts `split-K` and
`cp.async`, and takes pages with either part.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_HAN}]+|[^\W{_HAN}]+")
# `split-K`, `stream-K`; `cp.async`, `gemmkit.matmul`. As JavaScript reads it, too.
_TERM = r"[a-z]+-[a-z](?![a-z0-9_])|[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)+"
# `split_k`, `gemm_stream_k`: names of the same terms in code.
_NAME = re.compile(r"(?:^|_)([a-z]+_[a-z])$", re.I | re.A)
_TERMS = re.compile(_TERM, re.I | re.A)

SPLIT_QUERY = rf"""
function splitQuery(query) {{
  const words = [];
  const rest = query.replace(/{_TERM}/gi, (term) => {{
    words.push(term.toLowerCase());
    return " ";
  }});
  for (const part of rest.split(/[^\p{{Letter}}\p{{Number}}_]+/gu)) {{
    for (const word of part.match(/[{_HAN}]+|[^{_HAN}]+/g) || []) {{
      if (word.length < 2 || !/[{_HAN}]/.test(word)) words.push(word);
      else for (let at = 0; at + 1 < word.length; at++) words.push(word.slice(at, at + 2));
    }}
  }}
  return words;
}}
"""
"""Splits a query as `words` does a text, without the parts of longer words."""


def words(text: str) -> Iterator[str]:
    """The words of a text for the index.

    In Chinese, these are single characters and pairs of them. A term such as `cp.async.bulk` counts
    beside its parts, and so does its beginning, `cp.async`; `split_k` counts as `split-k`, too.
    """
    for word in _WORD.findall(text):
        if re.match(f"[{_HAN}]", word):
            yield from word
            yield from (word[at : at + 2] for at in range(len(word) - 1))
        else:
            yield word
            if name := _NAME.search(word):
                yield name[1].lower().replace("_", "-")
    for term in _TERMS.findall(text):
        parts = term.lower().split(".")
        yield from (".".join(parts[:end]) for end in range(min(2, len(parts)), len(parts) + 1))
