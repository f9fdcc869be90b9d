"""Names of a kernel's variables in shared memory, by address."""

from __future__ import annotations

from gemmkit.emulator.ptx.module import Kernel
from gemmkit.emulator.ptx.names import source_name

# Dynamic shared memory has no name of its own.
DYNAMIC = "shared memory"


def shared_array(kernel: Kernel, address: int) -> tuple[str, int]:
    """The variable at an address in shared memory, and the byte in it."""
    for name, variable in kernel.shared.items():
        if variable.offset <= address < variable.offset + variable.size:
            return source_name(name), address - variable.offset
    start = kernel.shared_base + kernel.shared_bytes
    return DYNAMIC, address - (start if address >= start else kernel.shared_base)
