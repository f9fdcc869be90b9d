"""The counts of each memory instruction of a kernel, with the array that it accesses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gemmkit.emulator.counters.alignment import SymbolicAddresses
from gemmkit.emulator.counters.merging import Merged, merged_accesses, symbolic_addresses
from gemmkit.emulator.counters.tally import Tally
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.matrix_access import is_matrix, pieces
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.module import Address, Immediate, Instruction
from gemmkit.emulator.ptx.names import source_name
from gemmkit.emulator.ptx.shared_names import DYNAMIC
from gemmkit.record import AccessCounts

KINDS = {
    "load": "load",
    "store": "store",
    "copy_async": "copy",
    **dict.fromkeys(("atomic", "compare_and_swap", "reduction"), "atomic"),
}


class Accesses:
    """The memory instructions of a kernel; static facts about them are computed once."""

    def __init__(self, flow: ControlFlow) -> None:
        self._flow = flow
        self._addresses = symbolic_addresses(flow)
        self._merged = merged_accesses(flow)

    def counts(self, tally: Tally, global_array: Callable[[int], str]) -> tuple[AccessCounts, ...]:
        """The counts of every memory instruction, in the order of the code.

        Args:
            tally: the kernel's counts.
            global_array: the name of the array in global memory that an instruction accessed, by
                the instruction's number; empty if it is not known.
        """
        return tuple(_counts(self._flow, self._addresses, self._merged, tally, global_array))


def _counts(
    flow: ControlFlow,
    addresses: SymbolicAddresses,
    merged: Sequence[Merged],
    tally: Tally,
    global_array: Callable[[int], str],
) -> Iterator[AccessCounts]:
    requests = {number: int(count) for number, count in enumerate(tally.requests)}
    for group in merged:
        requests |= dict.fromkeys(group.numbers, requests[group.numbers[0]])
    for number, (instruction, form) in enumerate(zip(flow.kernel.body, flow.forms, strict=True)):
        space = _space(number, form, tally)
        if space is None:
            continue
        source = instruction.source
        wavefronts, conflicts = (int(each[number]) for each in (tally.wavefronts, tally.conflicts))
        yield AccessCounts(
            file=source.file if source is not None else "",
            line=source.line if source is not None else instruction.line,
            number=number,
            opcode=instruction.opcode,
            array=global_array(number)
            if space == "global"
            else _array(flow, addresses, instruction)
            if space == "shared"
            else "",
            space=space,
            kind=KINDS[form.operation],
            bytes_per_lane=_bytes(instruction, form),
            lanes=_lanes(number, instruction, form, tally),
            instructions=int(tally.requests[number]),
            requests=requests[number],
            sectors=int(tally.sectors[number]),
            ideal_sectors=int(tally.ideal_sectors[number]),
            tag_wavefronts=int(tally.tag_wavefronts[number]),
            wavefronts=wavefronts,
            ideal_wavefronts=wavefronts - conflicts,
            conflicts=conflicts,
        )


def _space(number: int, form: Form, tally: Tally) -> str | None:
    """The space that an instruction accesses; None if it is not global, shared or local memory."""
    if form.operation not in KINDS:
        return None
    if form.operation == "copy_async":
        return "global"
    space = form["S"].removesuffix("::cta")
    if not space:
        in_shared = tally.wavefronts[number] or tally.peer_requests[number]
        return "shared" if in_shared and not tally.sectors[number] else "global"
    return space if space in ("global", "shared", "local") else None


def _array(flow: ControlFlow, addresses: SymbolicAddresses, instruction: Instruction) -> str:
    """The shared variable that an address belongs to; dynamic shared memory has no own name."""
    address = next(each for each in instruction.operands if isinstance(each, Address))
    names = addresses.variables(address)
    if len(names) != 1:
        return DYNAMIC
    (name,) = names
    return source_name(name) if flow.kernel.shared[name].size else DYNAMIC


def _lanes(number: int, instruction: Instruction, form: Form, tally: Tally) -> int:
    """Lanes that took part in requests; for cp.async, those that read anything, for ldmatrix and
    stmatrix those that address a row."""
    if form.operation == "copy_async" or is_matrix(form):
        return int(tally.data_bytes[number]) // _bytes(instruction, form)
    return int(tally.lanes[number])


def _bytes(instruction: Instruction, form: Form) -> int:
    if form.operation == "copy_async":
        return next(each.value for each in instruction.operands if isinstance(each, Immediate))
    if is_matrix(form):
        return pieces(form)[0].nbytes
    elements = int(form.modifiers.get("V", "").removeprefix("v") or 1)
    return form.type.bytes * elements
