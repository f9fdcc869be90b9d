"""Predicts which shared-memory accesses ptxas merges into one wider instruction.

ptxas replaces adjacent loads, and adjacent stores, of one basic block by one of 64 or 128 bits. The
rule here reproduces the machine code of sm_75 to sm_120. Of the loads within one aligned 16-byte
window, three of the four words suffice for a 128-bit load (the rest is read and discarded), and
both words of an aligned half for a 64-bit one; stores are widened only if every byte is written.
Not covered: merging across a short branch that ptxas turns into predicates, loads of less than 32
bits, and addresses in registers that a PTX text writes more than once, which compilers do only for
loops.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from gemmkit.emulator.counters.alignment import SymbolicAddresses, registers_in
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.matrix_access import is_matrix
from gemmkit.emulator.ptx.cfg import BasicBlock, ControlFlow
from gemmkit.emulator.ptx.module import Address, Instruction, Register, Symbol

WORD = 4
WINDOW = 16

# Operations that prevent a merge if they are between loads, or stores.
_BARRIERS = frozenset(
    [
        *("atomic", "compare_and_swap", "reduction", "copy_async", "copy_async_wait", "call"),
        *("mbarrier_init", "mbarrier_invalidate", "mbarrier_arrive", "mbarrier_transact"),
        *("mbarrier_arrive_copies", "bulk_copy", "bulk_store", "bulk_tensor", "bulk_wait"),
    ]
)
_SHARED = frozenset(["shared", "shared::cta", ""])
_ORDERED = (".volatile", ".relaxed", ".acquire", ".release")


@dataclass(frozen=True, slots=True)
class Merged:
    """Accesses that are one machine instruction, by instruction number.

    `nbytes` is its width in bytes per lane. The first of `numbers` has the lowest address.
    """

    numbers: tuple[int, ...]
    nbytes: int


# For the kernel that is compiled or run, which is asked for several times.
@lru_cache(maxsize=8)
def symbolic_addresses(flow: ControlFlow) -> SymbolicAddresses:
    """The symbolic addresses of a kernel's accesses to shared memory."""
    return SymbolicAddresses(flow)


@lru_cache(maxsize=8)
def merged_accesses(flow: ControlFlow) -> tuple[Merged, ...]:
    """All groups of shared-memory loads, or stores, that become one instruction."""
    addresses = symbolic_addresses(flow)
    found: list[Merged] = []
    for block in flow.blocks:
        found += _merged_loads(flow, block, addresses)
        found += _merged_stores(flow, block, addresses)
    return tuple(sorted(found, key=lambda group: min(group.numbers)))


@dataclass(frozen=True, slots=True)
class Merging:
    """How a kernel's accesses count after merging, by instruction number.

    `width` is the width of the merged access, in bytes per lane. It is counted once, at the access
    with the lowest address; the others are `silent`.
    """

    width: Mapping[int, int]
    silent: frozenset[int]

    @classmethod
    def of(cls, flow: ControlFlow) -> Merging:
        """What ptxas will do with a kernel."""
        groups = merged_accesses(flow)
        width = {number: group.nbytes for group in groups for number in group.numbers}
        return cls(width, frozenset(number for group in groups for number in group.numbers[1:]))


@dataclass(frozen=True, slots=True)
class _Access:
    """A plain access to shared memory; the distance between accesses with one `base` is known.

    `start` is the offset from that base, which is a multiple of `widest`, the largest width of a
    merged access.
    """

    number: int
    base: object
    start: int
    nbytes: int
    widest: int


def _merged_loads(
    flow: ControlFlow, block: BasicBlock, addresses: SymbolicAddresses
) -> list[Merged]:
    found: list[Merged] = []
    run: list[_Access] = []
    for number, access in _accesses(flow, block, addresses, "load"):
        if access is not None:
            run.append(access)
        elif _stops_loads(flow.forms[number]):
            found += _load_groups(run)
            run = []
    return found + _load_groups(run)


def _load_groups(run: Sequence[_Access]) -> list[Merged]:
    """Groups of loads with nothing between them that orders them."""
    windows: defaultdict[tuple[object, int], list[_Access]] = defaultdict(list)
    for access in run:
        windows[access.base, access.start // access.widest].append(access)
    found = []
    for members in windows.values():
        found += _in_window(members, least=3 * WORD)
    return found


def _merged_stores(
    flow: ControlFlow, block: BasicBlock, addresses: SymbolicAddresses
) -> list[Merged]:
    """Stores are merged while one follows the other in the same window."""
    found: list[Merged] = []
    run: list[_Access] = []
    for number, access in _accesses(flow, block, addresses, "store"):
        follows = access is not None and run and _window(access) == _window(run[-1])
        if not follows and (access is not None or _stops_stores(flow.forms[number])):
            found += _in_window(run, least=WINDOW)
            run = []
        if access is not None:
            run.append(access)
    return found + _in_window(run, least=WINDOW)


def _window(access: _Access) -> tuple[object, int]:
    return access.base, access.start // access.widest


def _in_window(members: Sequence[_Access], least: int) -> list[Merged]:
    """The groups of accesses in one aligned window; 128 bits from `least` bytes on."""
    if len(members) < 2:
        return []
    covered = {
        byte for each in members for byte in range(each.start, each.start + each.nbytes, WORD)
    }
    if members[0].widest == WINDOW and len(covered) * WORD >= least:
        return [_group(members, WINDOW)]
    halves: defaultdict[int, list[_Access]] = defaultdict(list)
    for each in members:
        halves[each.start // (2 * WORD)].append(each)
    found = []
    for half, inside in halves.items():
        start = half * 2 * WORD
        whole = {start, start + WORD} <= covered
        parts = [inside] if whole else _by_start(inside)
        nbytes = 2 * WORD if whole else WORD
        found += [_group(part, nbytes) for part in parts if len(part) > 1]
    return found


def _by_start(accesses: Sequence[_Access]) -> list[list[_Access]]:
    found: defaultdict[int, list[_Access]] = defaultdict(list)
    for each in accesses:
        found[each.start].append(each)
    return list(found.values())


def _group(members: Sequence[_Access], nbytes: int) -> Merged:
    ordered = sorted(members, key=lambda each: (each.start, each.number))
    return Merged(tuple(each.number for each in ordered), nbytes)


def _accesses(
    flow: ControlFlow, block: BasicBlock, addresses: SymbolicAddresses, operation: str
) -> list[tuple[int, _Access | None]]:
    """A block's instructions; those that may be merged are accesses."""
    written: defaultdict[Register | Symbol, int] = defaultdict(int)
    found: list[tuple[int, _Access | None]] = []
    for number in range(block.start, block.end):
        instruction, form = flow.kernel.body[number], flow.forms[number]
        access = None
        if form.operation == operation and _plain(instruction, form):
            access = _access(number, instruction, form, addresses, written)
        found.append((number, access))
        for operand, spec in zip(instruction.operands, form.operands, strict=False):
            if spec.role == "dest":
                for register in registers_in(operand):
                    written[register] += 1
    return found


def _plain(instruction: Instruction, form: Form) -> bool:
    return (
        not is_matrix(form)
        and form["S"].removesuffix("::cta") == "shared"
        and instruction.guard is None
        and form.type.bytes >= WORD
        and not any(each in form.opcode for each in _ORDERED)
    )


def _access(
    number: int,
    instruction: Instruction,
    form: Form,
    addresses: SymbolicAddresses,
    written: Mapping[Register | Symbol, int],
) -> _Access | None:
    address = next(each for each in instruction.operands if isinstance(each, Address))
    symbolic = addresses.of(address)
    if symbolic is None:
        return None
    widest = min(WINDOW, 1 << symbolic.zeros)
    nbytes = form.type.bytes * _elements(form)
    if widest < 2 * WORD or nbytes > widest:
        return None
    # A register that changes between two accesses is not the same term in both.
    versions = tuple(written[root] for root, _ in symbolic.terms)
    return _Access(number, (symbolic.terms, versions), symbolic.offset, nbytes, widest)


def _elements(form: Form) -> int:
    return int(form.modifiers.get("V", "").removeprefix("v") or 1)


def _stops_loads(form: Form) -> bool:
    return _orders(form) or (form.operation == "store" and _may_be_shared(form))


def _stops_stores(form: Form) -> bool:
    return _orders(form) or (form.operation in ("load", "store") and _may_be_shared(form))


def _orders(form: Form) -> bool:
    if form.operation in ("atomic", "compare_and_swap", "reduction"):
        return _may_be_shared(form)
    fence = form.operation == "no_operation" and form.opcode.startswith(("fence", "membar", "bar"))
    return fence or form.operation in _BARRIERS


def _may_be_shared(form: Form) -> bool:
    # The memory of other blocks is not accessed by the instructions for shared memory.
    return form.modifiers.get("S", "") in _SHARED and "::cluster" not in form.opcode
