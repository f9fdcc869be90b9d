"""mbarrier objects: the state in their 8 bytes of shared memory, and what each instruction does.

The state is that of the PTX ISA ("mbarrier"): the phase, its pending arrivals, the arrivals that
each later phase expects, and the tx-count, which is the number of bytes announced by `expect_tx`
minus those that have arrived. NVIDIA does not publish how the 8 bytes hold it. Here, from the
lowest bit: 20 bits of pending arrivals, 20 of expected arrivals, 21 of the tx-count in two's
complement, 1 of the phase's parity, and 2 that mark an initialized (2) or invalidated (1) object.
The state token of an arrival is the object before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.isa.form import Form

# The most arrivals, and the largest magnitude of a tx-count (PTX ISA, "Contents of the mbarrier
# object").
MOST = (1 << 20) - 1
OBJECT_BYTES = 8
# Where the object's fields begin.
EXPECTED, TRANSACTIONS, PHASE, MARK = 20, 40, 61, 62
TX_BITS = PHASE - TRANSACTIONS
INVALIDATED, INITIALIZED = 1, 2


class Misuse(Exception):
    """An operation that the PTX ISA does not define; the text is a clause that begins with a verb.

    `kind` is the kind of finding.
    """

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(what)
        self.kind, self.what = kind, what


@dataclass(frozen=True, slots=True)
class State:
    """A valid object: `phase` is the parity of the current phase, `transactions` the tx-count."""

    phase: int
    pending: int
    expected: int
    transactions: int = 0

    @classmethod
    def initial(cls, count: int) -> State:
        """The state after `mbarrier.init`.

        Raises:
            Misuse: the count is not valid.
        """
        if not 1 <= count <= MOST:
            raise Misuse(
                "invalid arrival count",
                f"initializes an mbarrier with a count of {count:,}; it must be 1 to {MOST:,}",
            )
        return cls(0, count, count)

    @classmethod
    def of(cls, word: int) -> State:
        """The state in an object's 8 bytes.

        Raises:
            Misuse: they do not hold a valid object.
        """
        mark = word >> MARK
        if mark != INITIALIZED:
            was = "was invalidated" if mark == INVALIDATED else "is not initialized"
            raise Misuse("invalid mbarrier", f"uses an mbarrier that {was}")
        transactions = word >> TRANSACTIONS & (1 << TX_BITS) - 1
        transactions -= (transactions >> TX_BITS - 1) << TX_BITS
        return cls(word >> PHASE & 1, word & MOST, word >> EXPECTED & MOST, transactions)

    @property
    def word(self) -> int:
        """The object's 8 bytes."""
        return (
            self.pending
            | self.expected << EXPECTED
            | (self.transactions % (1 << TX_BITS)) << TRANSACTIONS
            | self.phase << PHASE
            | INITIALIZED << MARK
        )

    @property
    def arrived(self) -> int:
        """The arrivals of the current phase, if none was dropped in it."""
        return self.expected - self.pending

    def __str__(self) -> str:
        bytes_ = ""
        if self.transactions:
            bytes_ = f" and a tx-count of {self.transactions:,} bytes"
        return (
            f"in a phase of parity {self.phase} with {self.pending:,} of {self.expected:,} "
            f"arrivals pending{bytes_}"
        )

    def arrive(self, count: int, *, drop: bool = False) -> State:
        """The state after arrivals; with `drop`, later phases expect fewer.

        Raises:
            Misuse: more arrivals than are pending, or none.
        """
        if not 1 <= count <= MOST:
            raise Misuse(
                "invalid arrival count",
                f"arrives with a count of {count:,}; it must be 1 to {MOST:,}",
            )
        if count > self.pending:
            raise Misuse(
                "too many arrivals", f"arrives with a count of {count:,} at an mbarrier {self}"
            )
        expected = self.expected - count * drop
        return replace(self, pending=self.pending - count, expected=expected).settled()

    def expect(self, nbytes: int) -> State:
        """The state after bytes are announced or, if negative, have arrived.

        Raises:
            Misuse: the tx-count leaves its range.
        """
        transactions = self.transactions + nbytes
        if abs(transactions) > MOST:
            does = f"announces {nbytes:,} bytes to" if nbytes > 0 else f"delivers {-nbytes:,} to"
            raise Misuse(
                "tx-count out of range",
                f"{does} an mbarrier {self}; the tx-count must stay within ±{MOST:,}",
            )
        # A copy does this twice, and `replace` takes far longer.
        return State(self.phase, self.pending, self.expected, transactions)

    def settled(self) -> State:
        """The state, or that of the next phase if nothing is pending."""
        if self.pending or self.transactions:
            return self
        return State(self.phase ^ 1, self.expected, self.expected)


def received(word: int, nbytes: int, count: int) -> State | None:
    """The state of an object's 8 bytes after `count` deliveries of so many bytes each; None if one
    of them is not valid, or completes the phase before the last."""
    try:
        state = State.of(word)
        after = state.expect(-nbytes * count)
    except Misuse:
        return None
    early = not state.pending and state.transactions % nbytes == 0
    if early and 0 < state.transactions < nbytes * count:
        return None
    return after.settled()


def object_at(address: int, start: int, end: int) -> int:
    """The address of an object, in a block's shared memory from `start` to `end`.

    Raises:
        Misuse: it is misaligned or out of bounds.
    """
    if address % OBJECT_BYTES:
        raise Misuse(
            "misaligned mbarrier",
            f"uses an mbarrier that is not aligned to {OBJECT_BYTES} bytes",
        )
    if not start <= address <= end - OBJECT_BYTES:
        none = " (the launch requests none: --shared)" if end == start else ""
        raise Misuse(
            "invalid mbarrier",
            f"uses an mbarrier outside of its block's {end - start:,} bytes of shared memory{none}",
        )
    return address


def invalidated(word: int) -> int:
    """An object's 8 bytes after `mbarrier.inval`.

    Raises:
        Misuse: it was not valid.
    """
    State.of(word)
    return INVALIDATED << MARK


def token_phase(token: int) -> int:
    """The parity of the phase in which a state token was made.

    Raises:
        Misuse: it is not a state token.
    """
    if token >> MARK != INITIALIZED:
        raise Misuse("invalid state token", f"waits with {token:#x}, which no arrival returned")
    return token >> PHASE & 1


def pending_count(tokens: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The pending arrivals that state tokens hold."""
    return tokens & np.uint64(MOST)


def awaited_phase(form: Form, operand: int) -> int:
    """The parity of the phase for whose completion a `test_wait` or `try_wait` asks.

    Of an operand `.parity` only the lowest bit counts, as on an H100: compilers sign-extend it.

    Raises:
        Misuse: the operand is no state token.
    """
    return operand & 1 if form["P"] == "parity" else token_phase(operand)


def state_text(word: int) -> str:
    """What an object's 8 bytes hold, in words."""
    try:
        state = State.of(word)
    except Misuse as misuse:
        return misuse.what.rpartition("mbarrier that ")[2]
    return f"{state.arrived:,} of {state.expected:,} arrivals" + (
        f", a tx-count of {state.transactions:,} bytes" if state.transactions else ""
    )


def announced_text(word: int, announced: int, boxes: Iterable[int]) -> str:
    """The same with the bytes that were announced in this phase, and the sizes of the boxes of a
    tensor that have arrived."""
    held = state_text(word)
    try:
        # The tx-count is what was announced minus what has arrived.
        arrived = announced - State.of(word).transactions
    except Misuse:
        arrived = 0
    if announced or arrived:
        held = held.partition(", ")[0]
        held += f", {arrived:,} of {announced:,} announced bytes"
        if sizes := " and ".join(f"{size:,}" for size in sorted(boxes)):
            held += f", in boxes of {sizes} bytes"
    return held


def completes(form: Form, before: int, after: int) -> bool:
    """Whether an instruction that changed an object's 8 bytes completed its phase."""
    kept = form.operation not in ("mbarrier_init", "mbarrier_invalidate")
    return kept and State.of(before).phase != State.of(after).phase


def updated(form: Form, word: int, operand: int | None) -> int:
    """An object's 8 bytes after one thread's instruction.

    Args:
        form: any but a wait.
        word: the 8 bytes before.
        operand: the count or the bytes, if the instruction has such an operand.

    Raises:
        Misuse: the instruction is not valid in this state.
    """
    operation = form.operation
    if operation == "mbarrier_init":
        return State.initial(operand or 0).word
    if operation == "mbarrier_invalidate":
        return invalidated(word)
    state, kind = State.of(word), form["K"]
    if operation == "mbarrier_arrive_copies":
        # Without .noinc the arrival is one that was added just before.
        return state.arrive(1).word if kind == "noinc" else state.word
    if operation == "mbarrier_transact":
        nbytes = operand or 0
        return state.expect(nbytes if kind == "expect_tx" else -nbytes).settled().word
    count = 1 if operand is None or kind == "expect_tx" else operand
    if kind == "expect_tx":
        state = state.expect(operand or 0)
    if kind == "noComplete" and count == state.pending and not state.transactions:
        raise Misuse(
            "completed phase",
            f"arrives by .noComplete with the last {count:,} arrivals of an mbarrier {state}",
        )
    return state.arrive(count, drop=form["D"] == "arrive_drop").word
