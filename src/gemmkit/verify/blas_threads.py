"""One thread for each product of NumPy's BLAS, where many threads multiply at once.

OpenBLAS divides each product among all cores, and its threads wait for one another actively. Called
by as many threads, they keep each other from running: that took up to 30 times as long.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
from threadpoolctl import ThreadpoolController


class _Limits:
    """How many limits are in force, and what ends the one that sets the threads."""

    def __init__(self) -> None:
        self.lock, self.count = threading.Lock(), 0

    def begin(self) -> None:
        with self.lock:
            if not self.count:
                self.limit = controller().limit(limits=1, user_api="blas")
            self.count += 1

    def end(self) -> None:
        with self.lock:
            self.count -= 1
            if not self.count:
                self.limit.restore_original_limits()


_limits = _Limits()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Products of this process take one thread each.

    Several such limits may be in force at once; as many threads as before the first multiply after
    the last.
    """
    _limits.begin()
    try:
        yield
    finally:
        _limits.end()


@cache
def controller() -> ThreadpoolController:
    """Of the libraries that this process has loaded, NumPy's BLAS among them."""
    np.zeros((1, 1)) @ np.zeros((1, 1))  # It may be loaded at its first use.
    return ThreadpoolController()
