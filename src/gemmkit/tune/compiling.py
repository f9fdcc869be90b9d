"""`Compilations`: kernels compiled in the background, handed over as they get ready."""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from gemmkit.cores import usable_cores
from gemmkit.errors import CompilerMissing, GemmkitError
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import LaunchPlan

SWITCH_SECONDS = 2e-4

CompileOne = Callable[[LaunchPlan, str], Binary]


class Compilations:
    """A pool of compiler threads (NVRTC runs in parallel in them), and what they have finished.

    Each job has a number of the caller's. Leaving the `with` block drops what has not begun.
    """

    def __init__(self, arch: str, compile_one: CompileOne) -> None:
        self._arch, self._compile = arch, compile_one
        self.workers = usable_cores()
        self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="gemmkit-compile")
        self._ready: queue.SimpleQueue[tuple[int, Future[Binary]]] = queue.SimpleQueue()
        self.pending = 0

    def submit(self, number: int, plan: LaunchPlan) -> None:
        """Begin a compilation as soon as a thread is free."""
        self.pending += 1
        future = self._pool.submit(self._compile, plan, self._arch)
        future.add_done_callback(lambda done: self._ready.put((number, done)))

    def next(self, seconds: float) -> tuple[int, Binary | GemmkitError] | None:
        """A job's number and its binary, or why there is none; None if no job ends in that time.

        Raises:
            CompilerMissing: there is no compiler.
        """
        try:
            number, future = self._ready.get(timeout=max(seconds, 0.0))
        except queue.Empty:
            return None
        self.pending -= 1
        try:
            return number, future.result()
        except CompilerMissing:
            raise
        except GemmkitError as error:
            return number, error

    def __enter__(self) -> Compilations:
        # The thread that times gives the interpreter up in every launch that it records, and waits
        # that long to get it back while others look into their PTX.
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(min(self._interval, SWITCH_SECONDS))
        return self

    def __exit__(self, *_: object) -> None:
        sys.setswitchinterval(self._interval)
        # A compilation cannot be stopped half-way; nothing waits for it.
        self._pool.shutdown(wait=False, cancel_futures=True)
