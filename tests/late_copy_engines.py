"""GPUs that write to each other's memory, whose streams do as late, and in as odd an order, as
events and flags allow: what lacks one of them goes wrong. Nothing is done until `finish`."""

from __future__ import annotations

import ctypes
import random
from collections import defaultdict, deque
from types import SimpleNamespace

import torch

from gemmkit.distributed import mapped_memory, symmetric


class Event:
    """Waits are for what was recorded last when they were put on a stream."""

    def __init__(self):
        self.reached = SimpleNamespace(done=True)

    def record(self, stream):
        reached = self.reached = SimpleNamespace(done=False)
        stream.ranks.put(
            stream.cuda_stream, lambda: setattr(reached, "done", True), reached=reached
        )


class Stream:
    def __init__(self, ranks, cuda_stream):
        self.ranks, self.cuda_stream = ranks, cuda_stream

    def wait_event(self, event):
        reached = event.reached
        self.ranks.put(self.cuda_stream, lambda: None, lambda: reached.done)


class LateRanks:
    """All ranks, with a communicator each and inboxes of `half` bytes in a half; `rank` is the one
    whose turn it is."""

    def __init__(self, monkeypatch, ranks, half, seed):
        self.random, self.rank, self.captured = random.Random(seed), 0, None
        self.queues = defaultdict(deque)
        self.compute = [Stream(self, 2 * rank) for rank in range(ranks)]
        for name, value in (
            ("copy", lambda to, of, size, on: self.put(on, lambda: ctypes.memmove(to, of, size))),
            ("write_flag", lambda at, value, on: self.put(on, lambda: self.write(at, value))),
            ("wait_for_flag", lambda at, value, on: self.wait(on, at, value, lambda: None)),
        ):
            monkeypatch.setattr(symmetric, name, value)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: self.compute[self.rank])
        monkeypatch.setattr(
            torch.cuda, "is_current_stream_capturing", lambda: self.captured is not None
        )
        monkeypatch.setattr(mapped_memory.WatchedCalls, "_has_ended", lambda _: True)
        monkeypatch.setattr(
            symmetric.SymmetricTransfers, "gathered", lambda of, own: self.gathered(of, own)
        )
        memories = [
            torch.zeros(symmetric._DATA + 2 * half, dtype=torch.uint8) for _ in range(ranks)
        ]
        self.communicators = []
        for rank, memory in enumerate(memories):
            symmetric.clear_flags(memory)
            side = Stream(self, 2 * rank + 1)
            group = SimpleNamespace(
                group=None, rank=rank, size=ranks, stream=lambda _, side=side: side
            )
            made = symmetric.SymmetricCommunicator(group, torch.device("cpu"))
            made._inbox = SimpleNamespace(
                half=half,
                memory=memory,
                addresses=[each.data_ptr() for each in memories],
                calls=0,
                captured_calls=0,
                views={},
            )
            self.communicators.append(made)

    @staticmethod
    def write(address, value):
        ctypes.c_uint32.from_address(address).value = value

    def put(self, stream, action, ready=lambda: True, reached=None):
        into = self.queues if self.captured is None else self.captured
        into[stream].append((ready, action, reached))

    def wait(self, stream, flag, value, action):
        self.put(stream, action, lambda: ctypes.c_uint32.from_address(flag).value >= value)

    def multiply(self, action, flag=None):
        """Put a product of the rank's on its stream, which waits for a flag in it."""
        stream = self.compute[self.rank].cuda_stream
        if flag is None:
            self.put(stream, action)
        else:
            self.wait(stream, flag, 1, action)

    def gathered(self, transfers, own):
        """As that of `SymmetricTransfers`, which copies a rank's own lines on its stream."""
        span = transfers._schedule.own
        to = transfers._view[span.start : span.stop]
        self.multiply(lambda: to.copy_(own))
        for each in transfers._pending:
            each.take()
        return transfers._view

    def capture(self, call):
        """What replays a call of the rank's: its copies begin when the replay does."""
        self.captured, own = defaultdict(deque), self.compute[self.rank].cuda_stream
        call()
        graph, self.captured = self.captured, None
        events = [each[2] for steps in graph.values() for each in steps if each[2] is not None]

        def replay():
            replayed = SimpleNamespace(begun=False)

            def begin():
                replayed.begun = True
                for each in events:
                    each.done = False

            self.put(own, begin)
            for stream, steps in graph.items():
                into = own if stream == own else ("graph", stream)
                if into != own:
                    self.put(into, lambda: None, lambda: replayed.begun)
                for ready, action, _ in steps:
                    self.put(into, action, ready)

        return replay

    def finish(self):
        """Do all that is on streams, in an order that they allow; some are far slower."""
        pace = defaultdict(lambda: self.random.choice((1, 50)))
        while any(self.queues.values()):
            able = [name for name, each in self.queues.items() if each and each[0][0]()]
            assert able, "streams wait for each other"
            (name,) = self.random.choices(able, [pace[each] for each in able])
            self.queues[name].popleft()[1]()
