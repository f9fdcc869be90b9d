"""`Finding`: what a sanitizer has to say of a kernel, and where in its source."""

from __future__ import annotations

from typing import Literal

import msgspec

# The folder of CUDA's own headers in line tables.
CUDA_HEADERS = "<cuda>/"

Triple = tuple[int, int, int]
Check = Literal["memcheck", "initcheck", "racecheck", "synccheck"]


class AccessSite(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of an access or event: one thread (x, y, z in its block), at one instruction.

    `file` and `line` refer to the CUDA C++ source if the kernel has line information, otherwise to
    the PTX; code inlined from CUDA's own headers is attributed to the line that calls it. `thread`
    is null if the whole warp or block is meant. `called_from` is the inlined call stack
    (`file:line`), innermost first, as far as it is known.
    """

    file: str
    line: int
    instruction: str
    thread: Triple | None
    called_from: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def forgiven_text(forgiven_by: str) -> str:
    """The end of the message of a finding that is forgiven; empty for others."""
    return f" (forgiven by {forgiven_by})" if forgiven_by else ""


class Interleaving(msgspec.Struct, frozen=True, kw_only=True):
    """An order of execution in which a fault of an asynchronous kernel shows: a few steps, those
    that the later access depends on and then the two accesses the wrong way around.

    `steps` describe them, equal ones of several warps in one line. `schedule` is the same as text,
    for `gemmkit check --schedule`. If no order of steps shows the fault, both are empty and
    `reason` says why.
    """

    steps: tuple[str, ...] = ()
    schedule: str = ""
    reason: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A sanitizer finding, at one pair of source lines; `message` describes it in a sentence.

    `kind` is the kind of error, such as "out of bounds", "uninitialized", "read after write",
    "divergent barrier", "deadlock". `array` is the array accessed: the name of a kernel argument or
    of a shared variable; empty if no memory is involved. `offset` is in bytes from its start.
    `other` is the second access of a race. `count` is the number of occurrences at the same lines;
    `here`, `other`, `offset` and `block` are those of the first one. Races with the same `cause`
    are due to the same missing barrier: it is an identifier such as
    `no-barrier/after:tiled.cu:21/next-iteration`, made of what is missing and the location of the
    nearest barrier; for a missing proxy fence, of what follows the stores. `forgiven_by` says who
    makes up for it today, such as "ptxas, which inserts the fence": the PTX ISA does not allow it
    all the same; empty as a rule. `interleaving` is given for the order of asynchronous kernels.
    """

    check: Check
    kind: str
    message: str
    block: Triple
    here: AccessSite
    other: AccessSite | None = None
    array: str = ""
    offset: int | None = None
    count: int = 1
    cause: str = ""
    forgiven_by: str = ""
    interleaving: Interleaving | None = None
