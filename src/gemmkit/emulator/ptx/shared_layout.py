"""The addresses of a block's variables in shared memory, as ptxas and the system place them.

Derived from the machine code of ptxas for compute capability 7.5 to 12.0. From 9.0 on the first
1,024 addresses are reserved for the system. The variables that a kernel declares come first, in
that order, then those of the module, and last the kernel's variables that no instruction names;
unnamed variables of the module get no address. Each dynamic array begins after the static ones, at
its own alignment of at least 16 bytes. Alignment is relative to the first address of the block's
own part, so that from compute capability 9.0 on an alignment above 1,024 bytes does not hold.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gemmkit.emulator.ptx.module import (
    Address,
    Instruction,
    Operand,
    Pair,
    Symbol,
    Variable,
    Vector,
)

_RESERVED_BYTES = 1024
_FIRST_WITH_RESERVED = 90
_DYNAMIC_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class SharedLayout:
    """Variables of one kernel by address, the first address, and the size of the static part in
    bytes."""

    variables: Mapping[str, Variable]
    base: int
    nbytes: int

    @classmethod
    def of(
        cls,
        target: str,
        body: Sequence[Instruction],
        own: Mapping[str, Variable],
        module: Mapping[str, Variable],
        dynamic: Mapping[str, int],
    ) -> SharedLayout:
        """Place one kernel's variables.

        Args:
            target: the architecture that the PTX names, such as `sm_90a`.
            body: the kernel's instructions.
            own: the static variables that it declares, in order.
            module: those declared outside of kernels.
            dynamic: the alignment of the module's `extern __shared__` arrays.
        """
        used = frozenset(_symbols(body))
        base = shared_base(target)
        static = {**own, **module}
        order = [name for name in static if name in used]
        order += [name for name in own if name not in used]
        placed: dict[str, Variable] = {}
        size = used_bytes = 0
        for name in order:
            offset = _aligned(size, static[name].align)
            placed[name] = replace(static[name], offset=base + offset)
            size = offset + static[name].size
            used_bytes = size if name in used else used_bytes
        for name, align in dynamic.items():
            if name in used:
                offset = _aligned(used_bytes, max(align, _DYNAMIC_ALIGNMENT))
                placed[name] = Variable(base + offset, 0)
                size = max(size, offset)
        return cls(placed, base, size)


def shared_base(target: str) -> int:
    """The first address of a block's own shared memory on an architecture."""
    number = re.search(r"\d+", target)
    return _RESERVED_BYTES if number and int(number[0]) >= _FIRST_WITH_RESERVED else 0


def _aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _symbols(body: Collection[Instruction]) -> Iterator[str]:
    """Names whose address instructions take."""
    for instruction in body:
        for operand in instruction.operands:
            yield from _names(operand)


def _names(operand: Operand | None) -> Iterator[str]:
    if isinstance(operand, Symbol):
        yield operand.name
    elif isinstance(operand, Address):
        yield from _names(operand.base)
    elif isinstance(operand, Vector):
        for each in operand.elements:
            yield from _names(each)
    elif isinstance(operand, Pair):
        yield from _names(operand.first)
        yield from _names(operand.second)
