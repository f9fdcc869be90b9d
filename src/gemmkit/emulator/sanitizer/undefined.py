"""`UndefinedUses`: reports where undefined bits are used, and where they come from: a load of
memory that was never written, or a register that was never set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from gemmkit.emulator.codegen.operands import Action, register_of
from gemmkit.emulator.codegen.shadow_layout import USED_ADDRESS, USED_GUARD, USED_SOURCE
from gemmkit.emulator.codegen.tracking import reads_memory
from gemmkit.emulator.launch import Dim3
from gemmkit.emulator.ptx.module import Register
from gemmkit.emulator.sanitizer.collection import Collection, Key
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.findings import AccessSite, Finding

_USES = {
    "branch": "decides a branch",
    "exit": "decides which threads exit",
    "trap": "decides which threads stop the kernel",
    "store": "is stored to global memory",
    "atomic": "is an operand of an atomic operation",
    "reduction": "is an operand of an atomic operation",
    "compare_and_swap": "is an operand of an atomic operation",
    "copy_async": "is the size of a cp.async",
    "call": "is an argument of a call",
    "barrier": "is an operand of a barrier",
    "barrier_arrive": "is an operand of a barrier",
}


@dataclass(frozen=True, slots=True)
class Use:
    """Lanes of a warp that use undefined bits of one operand of an instruction.

    `operand` is `USED_GUARD`, `USED_ADDRESS` or the one after it, or `USED_SOURCE` plus the index
    of a source; `block` and `warp` are numbers, `lanes` is a mask.
    """

    number: int
    operand: int
    block: int
    warp: int
    lanes: int


class UndefinedUses:
    """The state of one worker, or of the oracle."""

    def __init__(self, names: Names, collection: Collection) -> None:
        self._names, self._collection = names, collection
        # By instruction, its last undefined read, and the block; in order of time.
        self._reads: dict[int, tuple[int, Finding]] = {}
        # By space, the first store of undefined bits to shared or local memory, and the block.
        self._kept: dict[str, tuple[int, int]] = {}
        self._sources: dict[Register, frozenset[int]] = {}
        self._reported: dict[tuple[int, int, int], Key] = {}

    @cached_property
    def _writers(self) -> Mapping[Register, Sequence[Action]]:
        """The instructions that write each register."""
        found: dict[Register, list[Action]] = {}
        for action in self._names.actions:
            for register in action.dests:
                if register is not None:
                    found.setdefault(register, []).append(action)
        return found

    def read(self, number: int, block: int, finding: Finding) -> None:
        """A load reads bytes that were never written, or a shuffle reads from a lane that does not
        participate; `finding` says which."""
        if number not in self._reads or self._reads[number][0] != block:
            self._reads.pop(number, None)
            self._reads[number] = block, self._explained(number, block, finding)

    def keep(self, number: int, block: int) -> None:
        """Undefined bits are stored to shared or local memory."""
        space = _space(self._names.actions[number])
        if self._kept.get(space, (-1, 0))[0] != block:
            self._kept[space] = block, number

    def _explained(self, number: int, block: int, finding: Finding) -> Finding:
        """The finding of a read that was never written, or was written with a value that was never
        set; if that value was itself read, the finding of the first read."""
        at, store = self._kept.get(_space(self._names.actions[number]), (-1, 0))
        if at != block:
            return finding
        for source in self._names.actions[store].sources:
            origin = self._source_read(register_of(source), block)
            if origin is not None:
                return origin
        where = self._names.site(store, None)
        message = f"{finding.message}, or with a value that was never set, at {where}"
        return msgspec.structs.replace(finding, message=message)

    def use(self, use: Use) -> None:
        """Undefined bits are used."""
        key = use.number, use.operand, use.block
        if key in self._reported:
            self._collection.more(self._reported[key], 1)
            return
        names, action = self._names, self._names.actions[use.number]
        lane = (use.lanes & -use.lanes).bit_length() - 1
        here = names.site(use.number, names.lane(use.warp, lane))
        block = names.block(use.block)
        what = _what(action, use.operand)
        read = self._source_read(_operand(action, use.operand), use.block)
        finding = _finding(here, block, what, read)
        self._reported[key] = self._collection.add(finding, use.block)

    def printed(self, number: int, block: int, thread: int) -> None:
        """Undefined bits are printed, from a buffer in local memory."""
        key = number, USED_SOURCE, block
        if key in self._reported:
            self._collection.more(self._reported[key], 1)
            return
        here = self._names.site(number, self._names.thread(thread))
        kept = (
            register_of(each.sources[0])
            for each in self._names.actions
            if each.operation == "store" and _space(each) in ("local", "")
        )
        reads = (self._source_read(each, block) for each in kept)
        read = next((each for each in reads if each is not None), None)
        finding = _finding(here, self._names.block(block), "is printed", read)
        self._reported[key] = self._collection.add(finding, block)

    def _source_read(self, register: Register | None, block: int) -> Finding | None:
        """The load or shuffle that an undefined value comes from: the first one that the block
        executed."""
        if register is None:
            return None
        behind = self._source_loads(register)
        met = ((number, *read) for number, read in self._reads.items())
        return next((found for number, at, found in met if at == block and number in behind), None)

    def _source_loads(self, register: Register) -> frozenset[int]:
        """Loads and shuffles that a register's value may come from."""
        if register not in self._sources:
            found: set[int] = set()
            seen, work = {register}, [register]
            while work:
                for action in self._writers.get(work.pop(0), ()):
                    if reads_memory(action) or action.operation == "shuffle":
                        found.add(action.number)
                    if reads_memory(action):
                        continue
                    new = [each for each in action.registers_read() if each not in seen]
                    seen.update(new)
                    work += new
            self._sources[register] = frozenset(found)
        return self._sources[register]


def _space(action: Action) -> str:
    return action.form.modifiers.get("S", "").removesuffix("::cta")


def absent_lane(
    names: Names, number: int, block: int, warp: int, lanes: int, other: int
) -> Finding:
    """Lanes of a shuffle (a mask) that read from lanes that do not participate; `other` is the lane
    that the first of them reads."""
    lane = (lanes & -lanes).bit_length() - 1
    here, where = names.site(number, names.lane(warp, lane)), names.block(block)
    message = (
        f"absent lane: thread {here.thread} of block {where} takes the value of lane {other} of "
        f"its warp {warp} at {here}, which does not participate there or is not in the mask"
    )
    return Finding(check="synccheck", kind="absent lane", message=message, block=where, here=here)


def _operand(action: Action, operand: int) -> Register | None:
    if operand == USED_GUARD:
        return action.guard.register if action.guard is not None else None
    if operand < USED_SOURCE:
        address = (action.address, action.other_address)[operand - USED_ADDRESS]
        base = address.base if address is not None else None
        return base if isinstance(base, Register) else None
    return register_of(action.sources[operand - USED_SOURCE])


def _what(action: Action, operand: int) -> str:
    if operand == USED_GUARD:
        return _USES.get(action.operation, f"decides which threads execute {action.form.opcode}")
    if USED_ADDRESS <= operand < USED_SOURCE:
        return f"is an address of {action.form.opcode}"
    return _USES.get(action.operation, f"is an operand of {action.form.opcode}")


def _finding(here: AccessSite, block: Dim3, what: str, read: Finding | None) -> Finding:
    use = f"{what} by thread {here.thread} of block {block} at {here}"
    if read is None:
        message = f"uninitialized: a value that was never set {use}"
        return Finding(
            check="initcheck", kind="uninitialized", message=message, block=block, here=here
        )
    same = (read.here.file, read.here.line) == (here.file, here.line)
    message = f"{read.message}; the value {what if same else use}"
    return Finding(
        check=read.check,
        kind=read.kind,
        message=message,
        block=read.block,
        here=read.here,
        other=here,
        array=read.array,
        offset=read.offset,
    )
