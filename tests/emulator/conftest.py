"""Emulator tests run on both executors where possible."""

from __future__ import annotations

import pytest
from launching import EXECUTORS, Executor


@pytest.fixture(params=EXECUTORS, ids=[each.name for each in EXECUTORS])
def executor(request: pytest.FixtureRequest) -> Executor:
    """Each executor in turn."""
    return request.param
