"""The thread that ends a process whose GPU waits for a dead rank."""

from __future__ import annotations

import threading

import pytest

from gemmkit.distributed.watchdog import Watchdog


def test_a_call_that_does_not_end_is_reported_once(capfd):
    ended = threading.Event()
    dog = Watchdog(0.1, lambda: "rank 0 waits for rank 1, which may have ended", ended.set)
    dog.started(lambda: False)
    assert ended.wait(10)
    said = capfd.readouterr().err
    assert said.count("rank 0 waits for rank 1") == 1
    assert "did not end within 0.1 s" in said


@pytest.mark.parametrize("fails", [False, True])
def test_calls_that_end_or_fail_are_not_reported(fails):
    ended, looked = threading.Event(), threading.Event()

    def done():
        looked.set()
        if fails:
            raise RuntimeError("an illegal access, which whoever waits is told")
        return True

    dog = Watchdog(0.1, lambda: "", ended.set)
    for _ in range(3):
        dog.started(done)
    assert looked.wait(10)
    assert not ended.wait(0.5)


def test_a_user_who_wants_no_ending_gets_the_message_alone(monkeypatch, capfd):
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    ended, asked = threading.Event(), threading.Event()

    def late():
        asked.set()
        return "rank 0 waits for rank 1"

    dog = Watchdog(0.1, late, ended.set)
    dog.started(lambda: False)
    assert asked.wait(10)
    assert not ended.wait(0.3)
    assert "rank 0 waits" in capfd.readouterr().err


def test_its_thread_ends_with_it():
    dog = Watchdog(0.1, lambda: "")
    dog.started(lambda: True)
    thread = dog._thread
    del dog
    thread.join(10)
    assert not thread.is_alive()
