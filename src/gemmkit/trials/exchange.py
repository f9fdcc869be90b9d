"""Tables: entries as JSON, to carry them to another machine or to ship them with the package."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from gemmkit.decoding import from_json
from gemmkit.errors import TuningError
from gemmkit.trials.entry import Entry
from gemmkit.trials.store import Store
from gemmkit.whole_files import write_whole

FORMAT: Literal["gemmkit tuning table"] = "gemmkit tuning table"
# Version 1 had row-major fp32 problems only, version 2 only those of precision ieee, version 3 only
# those without scales of chunks, and their entries mean them.
VERSION = 4


class _Head(msgspec.Struct, frozen=True):
    """What is read first, of a file of any version."""

    format: Literal["gemmkit tuning table"]
    version: int


class _Table(_Head, frozen=True):
    """A table's file: its kind, its version, its entries."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Imported:
    """What came of an import.

    `added` entries were new or replaced older ones, `kept` met one of the store's own that stays,
    and `stale` of the added ones were measured of other code or with another compiler.
    """

    added: int
    kept: int
    stale: int


def write_table(path: Path, entries: Iterable[Entry]) -> int:
    """Write entries, one a line, sorted, so that two tables can be compared; their number.

    Raises:
        TuningError: the file cannot be written.
    """
    ordered = sorted(entries, key=_place)
    head = f'{{"format": "{FORMAT}", "version": {VERSION}, "entries": [\n'
    lines = ",\n".join(msgspec.json.encode(entry).decode() for entry in ordered)
    write_text(path, f"{head}{lines}\n]}}\n")
    return len(ordered)


def read_table(path: Path) -> tuple[Entry, ...]:
    """The entries of a table.

    Raises:
        TuningError: no such file, not a table, or one that a later gemmkit wrote.
    """
    return decode_table(read_whole(path), str(path))


def decode_table(data: bytes, name: str) -> tuple[Entry, ...]:
    """`read_table` for a table's bytes; `name` is what messages call it.

    Raises:
        TuningError: not a table, or one that a later gemmkit wrote.
    """
    try:
        head = from_json(data, _Head)
        if head.version > VERSION:
            raise TuningError(
                f"{name} is a tuning table of version {head.version}; this gemmkit reads {VERSION}"
            )
        return from_json(data, _Table).entries
    except msgspec.DecodeError as error:
        raise TuningError(f"{name} is not a tuning table: {error}") from None


def import_entries(store: Store, entries: Iterable[Entry]) -> Imported:
    """Put entries into a store, marked as imported.

    What was measured here stays: an imported entry replaces an imported one only, and even a
    faster one is not chosen before one that was measured here (`store.fastest`). Tuning tries
    imported winners first.

    Raises:
        TuningError: the store cannot be written.
    """
    marked = [msgspec.structs.replace(entry, origin="imported") for entry in entries]
    before = {entry.identity for entry in store.entries() if entry.origin == "measured"}
    stale = sum(store.staleness(entry) is not None for entry in marked)
    kept = sum(entry.identity in before for entry in marked)
    store.put(*marked)
    return Imported(added=len(marked) - kept, kept=kept, stale=stale)


def write_text(path: Path, text: str) -> None:
    """Write a file so that it is there as a whole or not at all.

    Raises:
        TuningError: it cannot be written.
    """
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise TuningError(f"cannot write {path}: {error.strerror}") from None


def read_whole(path: Path) -> bytes:
    """The bytes of a file.

    Raises:
        TuningError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise TuningError(f"cannot read {path}: {error.strerror}") from None


def _place(entry: Entry) -> tuple[object, ...]:
    return entry.gpu, entry.problem, entry.epilogue, entry.time_us or 0.0, entry.label
