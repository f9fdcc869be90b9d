"""Errors of a kernel as one sentence with the source position."""

from __future__ import annotations

from gemmkit.emulator.codegen.layout import AT_BARRIER, LANES, RUNNING, WINDOW_BYTES
from gemmkit.emulator.codegen.operands import Action, access_bytes
from gemmkit.emulator.isa.table import stop_of
from gemmkit.emulator.machine.memory import DeviceMemory
from gemmkit.emulator.machine.worker import Worker
from gemmkit.errors import DeviceError

# Names of accesses in messages.
ACCESS_KINDS = {
    "load": "load",
    "store": "store",
    "copy_async": "cp.async",
    "atomic": "atomic operation",
    "compare_and_swap": "atomic operation",
    "reduction": "atomic operation",
}


def access_error(worker: Worker, memory: DeviceMemory) -> DeviceError:
    """The access that native code refused."""
    number = worker.site_number(worker.field("fault_site"))
    address = worker.field("fault_address") % (1 << 64)
    warp = worker.warp_number(worker.field("running"))
    return outside_error(worker, memory, number, warp * LANES + worker.field("fault_lane"), address)


def outside_error(
    worker: Worker, memory: DeviceMemory, number: int, thread: int, address: int
) -> DeviceError:
    """One thread's access that is out of bounds or misaligned."""
    action = worker.kernel.actions[number]
    size = access_bytes(action)
    kind = ACCESS_KINDS[action.operation]
    if address % size:
        what = f"misaligned {kind} of {size} bytes"
    else:
        what = f"{kind} of {size} bytes out of bounds"
    error = DeviceError(
        f"{_kernel(worker)}: {what}{_where(worker, memory, action, address)}, by "
        f"'{action.form.opcode}' at {action.instruction.where}, {thread_text(worker, thread)}"
    )
    source = action.instruction.source
    error.place = (source.file, source.line) if source is not None else None
    return error


def _where(worker: Worker, memory: DeviceMemory, action: Action, address: int) -> str:
    """The nearest array, or the address and the space that does not have it."""
    space = action.form.modifiers.get("S", "").removesuffix("::cta")
    if action.operation == "copy_async" and address < WINDOW_BYTES:
        space = "shared"
    if space == "shared":
        base = worker.shared_base
        if address < base:
            return f" at {address:#x}, {reserved_memory(base)}"
        begins = f" that begin at {base:#x}" if base else ""
        return f" at {address:#x} in {worker.shared_bytes} bytes of shared memory{begins}"
    if space == "local":
        return f" at {address:#x} in {worker.flow.kernel.local_bytes} bytes of local memory"
    nearest = memory.nearest(address)
    if nearest is None:
        return f" at {address:#x}, where no memory is allocated"
    name = f"'{nearest.name}'" if nearest.name else "the allocation"
    offset = address - nearest.address
    if 0 <= offset < nearest.nbytes:
        return f", byte {offset} of {name} ({nearest.nbytes} bytes)"
    if offset >= nearest.nbytes:
        beyond = f"{offset - nearest.nbytes} bytes past the end of"
    else:
        beyond = f"{-offset} bytes before"
    return f", {beyond} {name} ({nearest.nbytes} bytes)"


def _kernel(worker: Worker) -> str:
    return f"kernel '{worker.flow.kernel.source_name}'"


def reserved_memory(base: int) -> str:
    """The addresses below a block's own shared memory, in words."""
    return (
        f"in the {base:,} bytes that the system reserves: a block's own memory begins at {base:#x}"
    )


def thread_text(worker: Worker, thread: int) -> str:
    """A thread of the running block, in words."""
    x, y, _ = worker.grid.request.block
    return f"thread {(thread % x, thread // x % y, thread // (x * y))} of block {worker.block}"


def deadlock_error(worker: Worker) -> DeviceError:
    """All warps of a block wait for others."""
    waiting = []
    status, at = worker.warp_fields("status"), worker.warp_fields("instruction")
    for warp in range(worker.warps):
        if status[warp] == AT_BARRIER:
            where = worker.flow.kernel.body[at[warp]].where
            waiting.append(f"warp {warp} waits at {where}")
    return DeviceError(
        f"{_kernel(worker)}: deadlock in block {worker.block}: " + "; ".join(waiting)
    )


def trap_error(worker: Worker) -> DeviceError:
    """The kernel stopped itself."""
    warp = worker.warp_number(worker.field("running"))
    stop = worker.flow.kernel.body[worker.warp_fields("instruction")[warp]]
    return DeviceError(
        f"{_kernel(worker)}: {stop_of(stop)} at {stop.where}, warp {warp} of block {worker.block}"
    )


def endless_error(worker: Worker, limit: int) -> DeviceError:
    """A block ran for longer than the limit."""
    status, at = worker.warp_fields("status"), worker.warp_fields("instruction")
    body = worker.flow.kernel.body
    running = [
        f"warp {warp} at {body[at[warp]].where}"
        for warp in range(worker.warps)
        if status[warp] == RUNNING
    ]
    return DeviceError(
        f"{_kernel(worker)}: block {worker.block} did not end within {limit:,} "
        f"steps: {'; '.join(running[:4])}. If it is only slow, allow more steps (--max-steps)"
    )
