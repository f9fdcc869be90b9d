"""How command-line tests call the command line."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from click.testing import CliRunner, Result

from gemmkit.check_record import CheckRecord
from gemmkit.cli import gemmkit
from gemmkit.record import ProblemRecord


@pytest.fixture
def call() -> Callable[..., Result]:
    """Run `gemmkit` in this process with the given words."""
    return lambda *words: CliRunner().invoke(gemmkit, [str(word) for word in words])


@pytest.fixture
def make_check(make_record):
    """A clean record of a check of 33x20x5, with the given fields changed."""
    base = make_record()
    record = CheckRecord(
        kernel="naive",
        case="",
        problem=ProblemRecord(
            m=33, n=20, k=5, alpha=1.0, beta=0.0, epilogue="none", lda=5, ldb=20, ldc=20
        ),
        config=base.config,
        device=base.device,
        seed=0,
        verdict="ok",
        detail="every element",
        correct=True,
        max_error=0.0,
        error_bound=1e-6,
        error_ratio=0.125,
    )
    return lambda **changes: msgspec.structs.replace(record, **changes)
