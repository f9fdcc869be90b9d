"""Emulator tests run what they can on both executors."""

from __future__ import annotations

import pytest
from launching import EXECUTORS, Executor


@pytest.fixture(params=list(EXECUTORS))
def executor(request: pytest.FixtureRequest) -> Executor:
    """Each executor in turn."""
    return EXECUTORS[request.param]
