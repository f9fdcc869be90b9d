"""Findings that recur: each is counted, and put into words only where it may be the example."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gemmkit.emulator.sanitizer.collection import Collection
from gemmkit.emulator.sanitizer.granules import Granules, party
from gemmkit.emulator.sanitizer.trace import NotingCollection, Pair
from gemmkit.emulator.sanitizer.worded_findings import WordedFindings
from gemmkit.findings import AccessSite

NAMES = SimpleNamespace(block=lambda number: (number, 0, 0))


def site(line):
    return AccessSite(file="k.cu", line=line, instruction="ld", thread=(0, 0, 0))


class Worded:
    """Adds findings, and remembers which were put into words."""

    def __init__(self, collection):
        self.found, self.told = WordedFindings(NAMES, collection), []

    def add(self, block, line, text, follows=""):
        def words():
            self.told.append(text)
            return text

        self.found._add(
            block, "racecheck", "read before wait", words, site(line), site(9), "As",
            follows=lambda: follows,
        )  # fmt: skip


def test_the_example_is_the_first_of_the_first_block():
    collection = Collection()
    worded = Worded(collection)
    for block, text in ((3, "a"), (3, "b"), (5, "c"), (1, "d"), (1, "e"), (3, "f")):
        worded.add(block, 7, text, follows=text)
    worded.add(2, 8, "g")
    assert worded.told == ["a", "d", "g"]
    collection.roots.add("d")
    found = {each.here.line: each for each in collection.findings()}
    assert {line: each.count for line, each in found.items()} == {7: 6, 8: 1}
    assert found[7].message == "read before wait: d"
    assert found[7].block == (1, 0, 0)
    assert found[7].cause == "d"


def test_what_recurs_is_not_noted_again_and_leaves_nothing_pending():
    notes, trace = {}, SimpleNamespace(pending=Pair())

    def note(key, finding):
        notes.setdefault(key, (finding.message, trace.pending))
        trace.pending = Pair()

    trace.note = note
    worded = Worded(NotingCollection(trace))
    first, second = Pair(reason="first"), Pair(reason="second")
    for pair in (first, second):
        trace.pending = pair
        worded.add(0, 7, pair.reason)
        assert trace.pending == Pair()
    worded.add(0, 8, "other")
    assert list(notes.values()) == [
        ("read before wait: first", first),
        ("read before wait: other", Pair()),
    ]


@pytest.mark.parametrize("strong", [(), (4,), (4, 5)])
def test_accesses_that_do_not_race_are_passed_over(strong):
    """The first of several that are not ordered, by instructions 3 to 5 of another actor."""
    granules = Granules(8, np.array(strong, np.int64), 4)
    where, known = np.arange(4), np.zeros(4, np.int32)
    writers = np.array([party(number, 40) for number in (4, 5, 3, 4)])
    granules.write(1, 7, where, writers, known)
    reader = np.full(4, party(4, 2))
    met = granules.read(2, 1, where, reader, known)
    # The reader's own instruction is 4.
    expected = {(): 0, (4,): 1, (4, 5): 2}[strong]
    assert (met.index, met.other) == (expected, int(writers[expected]))
    assert granules.read(2, 2, where[:0], reader[:0], known) is None
    known[1] = 7
    assert granules.read(2, 3, where, reader, known) is None
    known[1] = 0
    only = np.array([0, 3])
    met = granules.read(2, 4, only, reader[:2], known)
    assert (met is None) == bool(strong)
