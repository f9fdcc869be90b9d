"""Each register form of the table, on each executor, against its definition."""

from __future__ import annotations

import zlib
from collections import defaultdict

import numpy as np
import pytest
from launching import Executor, launch
from register_programs import (
    LANES,
    SLOTS,
    cut,
    dests_of,
    interesting_words,
    program,
    sources_of,
    without_payloads,
)

from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.semantics import OPERATIONS, evaluate, reads_carry, writes_carry
from gemmkit.emulator.isa.table import table

TRUTH = 0xE4
AT_ONCE = 100


def form_groups() -> list[object]:
    """The table's register forms, by operation, at most so many to a program."""
    found: defaultdict[str, list[Form]] = defaultdict(list)
    for form in table().values():
        if form.operation in OPERATIONS:
            found[form.operation].append(form)
    return [
        pytest.param(forms[start : start + AT_ONCE], id=f"{operation}-{start}")
        for operation, forms in found.items()
        for start in range(0, len(forms), AT_ONCE)
    ]


@pytest.mark.parametrize("forms", form_groups())
@pytest.mark.sample(2)
def test_every_register_form(executor: Executor, forms: list[Form]) -> None:
    rng = np.random.default_rng(zlib.crc32(forms[0].opcode.encode()))
    words = interesting_words(len(forms) * SLOTS * LANES, rng).reshape(len(forms), SLOTS, LANES)
    out = np.zeros((len(forms), 2, LANES), np.uint64)
    results = launch(executor, program(forms, truth=TRUTH), out, words).arrays[0]
    for form, operands, result in zip(forms, words, results, strict=True):
        kinds = sources_of(form)
        sources = [cut(word, of) for word, of in zip(operands, kinds, strict=False)]
        given: list[object] = [*sources]
        given += [TRUTH for spec in form.operands if spec.role == "immediate"]
        if reads_carry(form):
            given.append(operands[-1] % 2 == 1)
        wanted = evaluate(form, given)
        (of,) = dests_of(form)
        if of.is_signed and of.bits < 16:
            wanted = (wanted[0].view(np.int8).astype(np.int16).view(np.uint16),)
        first = without_payloads(wanted[0].astype(np.uint64), of.name)
        got = without_payloads(result[0], of.name)
        wrong = np.flatnonzero(first != got)
        assert not len(wrong), describe(form, sources, first, got, int(wrong[0]))
        if form.operands[0].pair or writes_carry(form):
            assert np.array_equal(wanted[1].astype(np.uint64), result[1]), form.opcode


def describe(form: Form, sources: list, wanted: np.ndarray, got: np.ndarray, lane: int) -> str:
    operands = ", ".join(f"{int(source[lane]):#x}" for source in sources)
    return f"{form.opcode} {operands} -> {int(got[lane]):#x}, not {int(wanted[lane]):#x}"
