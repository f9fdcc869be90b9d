"""How command-line tests call the command line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from gemmkit.cli import gemmkit


@pytest.fixture
def call() -> Callable[..., Result]:
    """Run `gemmkit` in this process with the given words."""
    return lambda *words: CliRunner().invoke(gemmkit, [str(word) for word in words])
