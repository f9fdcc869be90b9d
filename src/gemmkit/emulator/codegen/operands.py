"""What each instruction reads and writes, in a uniform form for analysis and code generation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.matrix_access import is_matrix, pieces
from gemmkit.emulator.isa.semantics import OPERATIONS, reads_carry, writes_carry
from gemmkit.emulator.isa.types import TYPES
from gemmkit.emulator.isa.warpgroup_forms import OPERATION
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.constructs import not_executed
from gemmkit.emulator.ptx.module import (
    CARRY,
    Address,
    Group,
    Guard,
    Immediate,
    Instruction,
    Kernel,
    Negated,
    Operand,
    Pair,
    Register,
    Source,
    Special,
    Symbol,
    Vector,
)
from gemmkit.errors import UnsupportedInstruction


@dataclass(frozen=True, slots=True)
class Action:
    """One instruction: what it reads and writes.

    `dests` and `sources` are in the form's order, with brace lists flattened; None is the sink `_`.
    The sources of `wgmma.mma_async` begin with its accumulators, which are its `dests` too.
    `address` is the memory operand, `other_address` the second one of cp.async, `third_address` the
    mbarrier of a bulk copy.
    """

    number: int
    instruction: Instruction
    form: Form
    dests: tuple[Register | None, ...]
    sources: tuple[Source, ...]
    address: Address | None = None
    other_address: Address | None = None
    third_address: Address | None = None

    @property
    def addresses(self) -> tuple[Address, ...]:
        """All memory operands."""
        found = (self.address, self.other_address, self.third_address)
        return tuple(each for each in found if each is not None)

    @property
    def guard(self) -> Guard | None:
        """The guard predicate, or None."""
        return self.instruction.guard

    @property
    def operation(self) -> str:
        """The operation of its form."""
        return self.form.operation

    @property
    def pure(self) -> bool:
        """Whether it only computes registers from registers, lane by lane."""
        return self.operation in OPERATIONS or self.operation in _ALSO_PURE

    def registers_read(self) -> list[Register]:
        """All registers that it reads, the guard's included."""
        found: list[Register] = []
        for source in self.sources:
            if isinstance(source, Register):
                found.append(source)
            elif isinstance(source, Negated):
                found.append(source.register)
        if self.address is not None:
            found += [each.base for each in self.addresses if isinstance(each.base, Register)]
        if self.guard is not None:
            found.append(self.guard.register)
        return found


# As a tuple, which `isinstance` takes in a fraction of a union's time.
_SOURCES = (Register, Immediate, Special, Symbol, Negated)
_ALSO_PURE = frozenset(["convert_address", "load_parameter", "call_parameter"])


def actions_of(flow: ControlFlow) -> tuple[Action, ...]:
    """The kernel's instructions as actions."""
    return tuple(
        _action(number, instruction, form, flow.kernel)
        for number, (instruction, form) in enumerate(zip(flow.kernel.body, flow.forms, strict=True))
    )


def addresses_parameters(actions: Iterable[Action], kernel: Kernel) -> bool:
    """Whether a kernel takes the address of one of its parameters."""
    return any(
        isinstance(source, Symbol) and source.name in kernel.parameters
        for action in actions
        for source in action.sources
    )


def unsupported(instruction: Instruction, what: str) -> UnsupportedInstruction:
    """An error that names an instruction and its position."""
    return UnsupportedInstruction(f"{what} ({instruction.where}: {instruction.text})")


def _action(number: int, instruction: Instruction, form: Form, kernel: Kernel) -> Action:
    dests: list[Register | None] = []
    sources: list[Source] = []
    addresses: list[Address] = []
    for operand, spec in zip(instruction.operands, form.operands, strict=False):
        if spec.role == "dest":
            dests += _destinations(operand)
        elif spec.role == "address" and isinstance(operand, Address):
            addresses.append(operand)
        elif spec.role in ("source", "immediate", "symbol", "label"):
            sources += _sources(operand)
    if form.operation in ("load", "store") and form["S"] == "param":
        return _parameter_access(number, instruction, form, kernel, dests, sources, addresses[0])
    if form.operation == "call":
        dests, sources = _call(instruction)
    if form.operation == OPERATION:
        sources = [each for each in dests if each is not None] + sources
    if reads_carry(form):
        sources.append(CARRY)
    if writes_carry(form):
        dests.append(CARRY)
    return Action(number, instruction, form, tuple(dests), tuple(sources), *addresses)


def _destinations(operand: Operand | None) -> list[Register | None]:
    if isinstance(operand, Vector):
        return [each if isinstance(each, Register) else None for each in operand.elements]
    if isinstance(operand, Pair):
        both = (operand.first, operand.second)
        return [each if isinstance(each, Register) else None for each in both]
    return [operand if isinstance(operand, Register) else None]


def _sources(operand: Operand | None) -> list[Source]:
    if isinstance(operand, Vector):
        return [source for each in operand.elements for source in _sources(each)]
    return [operand] if isinstance(operand, _SOURCES) else []


def register_of(source: Source) -> Register | None:
    """The register that an operand reads, or None."""
    if isinstance(source, Negated):
        return source.register
    return source if isinstance(source, Register) else None


def _call_slot(address: Address, bits: int) -> Register:
    """A slot in the parameters of a call, as a register."""
    base = address.base
    return Register(
        f"{base.name if isinstance(base, Symbol) else base}+{address.offset}", f"b{bits}"
    )


def _parameter_access(
    number: int,
    instruction: Instruction,
    form: Form,
    kernel: Kernel,
    dests: Sequence[Register | None],
    sources: Sequence[Source],
    address: Address,
) -> Action:
    """Kernel parameters are read; those of calls are accessed as registers."""
    name = address.base.name if isinstance(address.base, Symbol) else None
    width = form.type.bits
    step = width // 8
    if name in kernel.call_parameters:
        count = max(len(dests), len(sources))
        slots = [
            _call_slot(Address(address.base, address.offset + step * index), max(width, 16))
            for index in range(count)
        ]
        alias = Form(
            form.opcode, "call_parameter", form.operands, form.opcode_class, form.modifiers
        )
        if form.operation == "load":
            return Action(number, instruction, alias, tuple(dests), tuple(slots))
        return Action(number, instruction, alias, tuple(slots), tuple(sources))
    if form.operation == "store" or name is None or name not in kernel.parameters:
        raise unsupported(instruction, "kernel parameters can only be read, by their name")
    alias = Form(form.opcode, "load_parameter", form.operands, form.opcode_class, form.modifiers)
    start = kernel.parameters[name].offset + address.offset
    if start + step * len(dests) > kernel.parameter_bytes or start < 0:
        raise unsupported(instruction, "this reads past the end of the kernel's parameters")
    offsets = tuple(Immediate(start + step * index) for index in range(len(dests)))
    return Action(number, instruction, alias, tuple(dests), offsets)


def _call(instruction: Instruction) -> tuple[list[Register | None], list[Source]]:
    """The result and argument slots of a call."""
    groups = [each.names for each in instruction.operands if isinstance(each, Group)]
    callee = next(each for each in instruction.operands if isinstance(each, Symbol))
    if callee.name != "vprintf" or len(groups) != 2:
        named = not_executed(callee.name, instruction.where, instruction.text)
        if named is not None:
            raise UnsupportedInstruction(named)
        raise unsupported(instruction, f"the emulator cannot call '{callee.name}'")
    results = [Register(f"{name}+0", "b32") for name in groups[0]]
    arguments = [Register(f"{name}+0", "b64") for name in groups[1]]
    return list(results), list(arguments)


def source_widths(action: Action) -> list[int]:
    """The width in which each source of an action is read."""
    widths: list[int] = []
    specs = [spec for spec in action.form.operands if spec.role in ("source", "immediate")]
    if action.operation == OPERATION:
        specs = [action.form.operands[0], *specs]
    if action.operation in ("move", "call_parameter"):
        total = action.form.type.bits
        dests, count = len(action.dests), len(action.sources)
        return [total // count if dests == 1 else total] * count
    if action.operation == "load_parameter":
        return [32] * len(action.sources)
    if action.operation == "call":
        return [64] * len(action.sources)
    for spec in specs:
        bits = spec.type.bits if spec.type is not None else 32
        widths += [bits] * spec.count
    # The carry comes last.
    return [*widths, 1][: len(action.sources)]


def result_widths(action: Action) -> list[int]:
    """The width of each result."""
    if action.operation in ("move", "call_parameter", "load_parameter"):
        bits = action.form.type.bits
        divided = action.operation == "move" and len(action.sources) == 1
        return [bits // len(action.dests) if divided else bits] * len(action.dests)
    if action.operation == "call":
        return [32] * len(action.dests)
    spec = next((spec for spec in action.form.operands if spec.role == "dest"), None)
    if not action.dests:
        return []
    if spec is None or spec.type is None:
        raise unsupported(action.instruction, "this instruction has no result")
    widths = [spec.type.bits] * spec.count
    # The second of a pair is a predicate, as is the carry.
    return widths + [1] * (len(action.dests) - len(widths))


def extends_sign(action: Action) -> bool:
    """Whether a result is sign-extended into a wider register."""
    name = action.form.modifiers.get("D", action.form.modifiers.get("T", ""))
    return name in TYPES and TYPES[name].is_signed


def access_bytes(action: Action) -> int:
    """Bytes that a memory instruction reads or writes per lane, in each of its requests."""
    if action.operation == "copy_async":
        size = action.sources[0]
        assert isinstance(size, Immediate)
        return size.value
    if is_matrix(action.form):
        return pieces(action.form)[0].nbytes
    elements = 1
    if action.operation in ("load", "store"):
        elements = max(len(action.dests), len(action.sources))
    return action.form.type.bytes * elements
