"""Texts that were parsed last: a kernel is run, counted and judged one after the other."""

from __future__ import annotations

from functools import lru_cache

from gemmkit.emulator.ptx import parser
from gemmkit.emulator.ptx.module import Module


@lru_cache(maxsize=4)
def parsed(text: str, name: str, entry: str) -> Module:
    """What `parser.parse` returns for these."""
    return parser.parse(text, name, entry)
