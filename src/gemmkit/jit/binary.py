"""`Binary`: what the compiler made of one kernel for one architecture."""

from __future__ import annotations

import msgspec


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """ptxas's figures: registers per thread, bytes per thread (spills, local), per block (shared).

    `spill_bytes` is stores plus loads; `shared_bytes` is static shared memory.
    """

    registers: int
    spill_bytes: int
    shared_bytes: int
    local_bytes: int


class Binary(msgspec.Struct, frozen=True, kw_only=True):
    """PTX and cubin of one kernel; `entry` is its symbol in both.

    Of PTX from another front end where no assembler is at hand, and where only PTX was asked for,
    the cubin is empty and the resources are None: not known. `key` names this compilation: it
    changes with source, headers, options, architecture and compiler version. `log` holds the
    compiler's warnings and ptxas's figures. `before` is that of the launch before a plan's own,
    `prepared` are those that make its copies of prepared operands.
    """

    entry: str
    arch: str
    ptx: str
    cubin: bytes
    resources: Resources | None
    compiler: str
    key: str
    log: str = ""
    before: Binary | None = None
    prepared: tuple[Binary, ...] = ()
