"""Starts a process for each rank on this host, as torchrun does, and ends all when one fails."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

# Seconds in which the others may say what they have seen of a rank that failed.
_LAST_WORDS = 1.0
_PAUSE = 0.1


def run_ranks(
    command: Sequence[str],
    ranks: int,
    seconds: float,
    *,
    environment: Mapping[str, str] | None = None,
    logs: Sequence[Path] | None = None,
) -> tuple[list[int], bool]:
    """Run a command once for each rank, and wait until all have ended.

    One that fails ends the others, and so does the end of the time; none is left behind.

    Args:
        command: started with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
        ranks: how many processes.
        seconds: for all of them together.
        environment: further variables.
        logs: a file for what each writes; by default it goes where this process writes.

    Returns:
        The exit status of each, negative for those that were ended by a signal, and whether the
        time was up.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    started: list[subprocess.Popen[bytes]] = []
    late = False
    with ExitStack() as stack:
        try:
            for rank in range(ranks):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                file = stack.enter_context(logs[rank].open("wb")) if logs else None
                started.append(
                    subprocess.Popen(
                        command,
                        env={**os.environ, **(environment or {}), **places, **own},
                        stdout=file,
                        stderr=file,
                        # With what it starts itself, it can be ended as a group.
                        start_new_session=True,
                    )
                )
            end = time.monotonic() + seconds
            while None in (ended := [each.poll() for each in started]):
                if any(ended):
                    time.sleep(_LAST_WORDS)
                    break
                if time.monotonic() > end:
                    late = True
                    break
                time.sleep(_PAUSE)
        finally:
            for each in started:
                if each.poll() is None:
                    _end(each)
    return [each.returncode for each in started], late


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it has started."""
    if hasattr(os, "killpg"):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()
    else:
        process.kill()
    process.wait()
