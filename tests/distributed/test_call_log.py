"""The log by which ranks notice that they make different products."""

from __future__ import annotations

import pytest

from gemmkit.distributed.call_log import CallLog, log_bytes, shared_log
from gemmkit.distributed.threads import Hub
from gemmkit.errors import DistributedError


def logs(ranks, timeout=5.0):
    memory = memoryview(bytearray(log_bytes(ranks)))
    return [CallLog(memory, rank, ranks, timeout) for rank in range(ranks)]


def test_the_same_calls_in_any_distance():
    first, second = logs(2)
    for call in range(5000):
        first.note(1 + call % 7)
        if call % 3:
            continue
        # Behind, as far as the log remembers and farther.
        second.note(1 + (call // 3) % 7)


def test_other_calls_are_told_to_both():
    first, second, third = logs(3)
    for each in (first, second, third):
        each.note(5)
    first.note(7)
    third.note(7)
    with pytest.raises(DistributedError, match=r"call 2 .* ranks 1 and 0 repeat different"):
        second.note(8)
    for each in (first, third):
        with pytest.raises(DistributedError, match=r"call 2 .* and 1 repeat different"):
            each.note(7)


def test_ranks_that_are_far_apart_are_told_too():
    every = logs(6)
    for each in every[:2]:
        each.note(7)
    with pytest.raises(DistributedError, match="ranks 2 and 1 repeat different"):
        every[2].note(8)
    with pytest.raises(DistributedError, match=r"another rank found .* in call 1"):
        every[4].note(7)


def test_one_that_asks_waits_for_the_others():
    first, second = logs(2, timeout=0.1)
    first.note(3)
    with pytest.raises(DistributedError, match="rank 1 makes a product for the first time"):
        second.ask()
    first, second = logs(2, timeout=0.1)
    with pytest.raises(DistributedError, match=r"rank 1 did not make call 1 .* within 0\.1 s"):
        first.ask()
    with pytest.raises(DistributedError, match="rank 0 makes a product for the first time"):
        second.note(3)


def test_ranks_that_ask_together():
    def work(communicator):
        log = shared_log(communicator, 10.0)
        for call in range(300):
            log.ask() if call % 50 == 0 else log.note(4)
        return log

    assert None not in Hub(3, timeout=20).run(work)
