"""Registers of wgmma that are touched while it may still use them, found in the code alone.

A `wgmma.mma_async` writes its accumulators, and reads A from registers, until a `wgmma.wait_group`
that covers its group (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"). Until then a
`mov` may rename an accumulator, and a wgmma of the same shape may add to it. Registers that other
instructions have written need a `wgmma.fence` before a wgmma uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from gemmkit.emulator.codegen.operands import Action, register_of
from gemmkit.emulator.codegen.warpgroup_operands import warpgroup_product
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.warpgroup_forms import OPERATION
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.module import Immediate, Register, SourceLine

T = TypeVar("T")
# How a wgmma in flight uses a register.
_Role = Literal["accumulator", "operand"]


@dataclass(frozen=True, slots=True, order=True)
class _Use:
    """A wgmma in flight that uses a register; `age` is the number of commits since, 0 if its own
    group is not committed."""

    number: int
    age: int
    role: _Role


@dataclass(frozen=True, slots=True)
class Touch:
    """An instruction that uses registers too early.

    `other` is the wgmma in flight or, if a fence is missing, the instruction that wrote a register
    (None: there is no fence at all). `does` says what it does with `register`. `moved_past` is a
    fence that the compiler has moved this write past, as the fence does not name the register.
    """

    kind: str
    number: int
    other: int | None
    register: str
    does: str
    committed: bool = True
    moved_past: int | None = None


@dataclass(slots=True)
class _State:
    """The wgmma that use each register, and who wrote it since the last fence (or nobody)."""

    uses: dict[Register, frozenset[_Use]] = field(default_factory=dict)
    written: dict[Register, frozenset[int]] = field(default_factory=dict)
    fenced: bool = False
    # The last fences before this point.
    fences: frozenset[int] = frozenset()

    def copy(self) -> _State:
        return _State(dict(self.uses), dict(self.written), self.fenced, self.fences)

    def join(self, other: _State) -> bool:
        """Add what holds on another path; returns whether that is news."""
        changed = (self.fenced and not other.fenced) or not other.fences <= self.fences
        self.fenced = self.fenced and other.fenced
        self.fences |= other.fences
        changed = _united(self.uses, other.uses) or changed
        return _united(self.written, other.written) or changed


def _united(mine: dict[Register, frozenset[T]], theirs: Mapping[Register, frozenset[T]]) -> bool:
    changed = False
    for register, found in theirs.items():
        before = mine.get(register, frozenset())
        if not found <= before:
            mine[register] = before | found
            changed = True
    return changed


def touches(flow: ControlFlow, actions: Sequence[Action]) -> tuple[Touch, ...]:
    """All instructions of a kernel that touch registers of a wgmma in flight, or wgmma that lack a
    fence, on some path through the code."""
    if not any(action.operation == OPERATION for action in actions):
        return ()
    return _Analysis(flow, actions).touches()


class _Analysis:
    def __init__(self, flow: ControlFlow, actions: Sequence[Action]) -> None:
        self._blocks, self._actions = flow.blocks, actions
        self._followed = _followed(actions)
        going = [_groups(each) for each in actions if each.operation == "wgmma_wait"]
        # Older groups are waited for together.
        self._oldest = max(going, default=0) + 1
        self._found: dict[tuple[str, int, int | None], Touch] = {}

    def touches(self) -> tuple[Touch, ...]:
        entry: dict[int, _State] = {0: _State()}
        work = [0]
        while work:
            number = work.pop()
            state = self._through(number, entry[number].copy())
            for successor in self._blocks[number].successors:
                if successor >= len(self._blocks):
                    continue
                if successor not in entry:
                    entry[successor] = state.copy()
                elif not entry[successor].join(state):
                    continue
                work.append(successor)
        self._found.clear()
        for number, state in sorted(entry.items()):
            self._through(number, state)
        return tuple(self._found.values())

    def _through(self, block: int, state: _State) -> _State:
        for number in range(self._blocks[block].start, self._blocks[block].end):
            self._step(self._actions[number], state)
        return state

    def _step(self, action: Action, state: _State) -> None:
        operation = action.operation
        if operation == "wgmma_fence":
            state.written.clear()
            state.fenced, state.fences = True, frozenset([action.number])
        elif operation == "wgmma_commit":
            self._age(state)
        elif operation == "wgmma_wait":
            going = _groups(action)
            self._keep(state, lambda use: use.age <= going)
        elif operation == OPERATION:
            self._multiply(action, state)
        elif operation == "move" and len(action.dests) == len(action.sources) == 1:
            self._move(action, state)
        else:
            self._other(action, state)

    def _age(self, state: _State) -> None:
        for register, uses in state.uses.items():
            state.uses[register] = frozenset(
                _Use(use.number, min(use.age + 1, self._oldest), use.role) for use in uses
            )

    @staticmethod
    def _keep(state: _State, wanted: Callable[[_Use], bool]) -> None:
        left = {register: frozenset(filter(wanted, uses)) for register, uses in state.uses.items()}
        state.uses = {register: uses for register, uses in left.items() if uses}

    def _multiply(self, action: Action, state: _State) -> None:
        accumulators = [each for each in action.dests if each is not None]
        factors = _factors(action)
        for register in accumulators:
            for use in sorted(state.uses.get(register, ())):
                if use.role == "operand":
                    self._report("operand in flight", action, use, register, "accumulates in")
                elif _shape(self._actions[use.number].form) != _shape(action.form):
                    self._report("accumulator of another shape", action, use, register,
                                 "accumulates in")  # fmt: skip
        for register in factors:
            self._check_read(action, register, state)
        self._check_fence(action, [*accumulators, *factors], state)
        for register in accumulators:
            state.uses[register] = frozenset([_Use(action.number, 0, "accumulator")])
            state.written.pop(register, None)
        for register in factors:
            own = frozenset([_Use(action.number, 0, "operand")])
            state.uses[register] = state.uses.get(register, frozenset()) | own

    def _check_fence(self, action: Action, registers: Iterable[Register], state: _State) -> None:
        if not state.fenced:
            self._add(Touch("missing wgmma.fence", action.number, None, "", "begins"))
            return
        for register in registers:
            for writer in sorted(state.written.get(register, ())):
                self._add(
                    Touch(
                        "missing wgmma.fence", action.number, writer, register.name, "uses",
                        moved_past=self._moved_past(self._actions[writer], action, state.fences),
                    )
                )  # fmt: skip
                return

    def _moved_past(self, writer: Action, wgmma: Action, fences: Iterable[int]) -> int | None:
        """The fence that stands before a write although the source has it after it, or None.

        A value that is copied to registers just where a wgmma takes them has the line of the wgmma;
        other writes have lines of their own.
        """
        wrote, used = writer.instruction.source, wgmma.instruction.source
        if wrote is None or used is None or writer.operation == OPERATION:
            return None
        for fence in sorted(fences):
            source = self._actions[fence].instruction.source
            if source is None:
                continue
            copied = writer.operation == "move" and _places(wrote) == _places(used)
            if copied or _goes_before(wrote, source):
                return fence
        return None

    def _move(self, action: Action, state: _State) -> None:
        (to,), source = action.dests, register_of(action.sources[0])
        if to is None or to not in self._followed:
            if source is not None:
                self._check_read(action, source, state)
            return
        uses = state.uses.get(source, ()) if source is not None else ()
        renamed = frozenset(use for use in uses if use.role == "accumulator")
        roles: Sequence[_Role] = ("operand",) if renamed else ("accumulator", "operand")
        self._check_write(action, to, state, roles)
        writers = state.written.get(source) if source is not None else frozenset([action.number])
        if action.guard is not None:
            renamed |= state.uses.get(to, frozenset())
            writers = (writers or frozenset()) | state.written.get(to, frozenset())
        _set(state.uses, to, renamed)
        _set(state.written, to, writers)

    def _other(self, action: Action, state: _State) -> None:
        for register in action.registers_read():
            self._check_read(action, register, state)
        for dest in action.dests:
            if dest is not None and dest in self._followed:
                self._check_write(action, dest, state)
                state.uses.pop(dest, None)
                state.written[dest] = frozenset([action.number])

    def _check_read(self, action: Action, register: Register, state: _State) -> None:
        for use in sorted(state.uses.get(register, ())):
            if use.role == "accumulator":
                self._report("accumulator in flight", action, use, register, "reads")

    def _check_write(
        self,
        action: Action,
        register: Register,
        state: _State,
        roles: Sequence[_Role] = ("accumulator", "operand"),
    ) -> None:
        for use in sorted(state.uses.get(register, ())):
            if use.role in roles:
                self._report(f"{use.role} in flight", action, use, register, "writes")

    def _report(self, kind: str, action: Action, use: _Use, register: Register, does: str) -> None:
        self._add(Touch(kind, action.number, use.number, register.name, does, use.age > 0))

    def _add(self, touch: Touch) -> None:
        self._found.setdefault((touch.kind, touch.number, touch.other), touch)


def _places(source: SourceLine) -> tuple[str, ...]:
    """The line of the kernel, and the lines of the functions that are inlined there."""
    return (*source.called_from[::-1], str(source))


def _goes_before(one: SourceLine, other: SourceLine) -> bool:
    """Whether a line stands before another one in the function in which their calls part."""
    for mine, others in zip(_places(one), _places(other), strict=False):
        if mine != others:
            (file, _, line), (other_file, _, other_line) = (
                mine.rpartition(":"),
                others.rpartition(":"),
            )
            return file == other_file and int(line) < int(other_line)
    return False


def _set(
    into: dict[Register, frozenset[T]], register: Register, found: frozenset[T] | None
) -> None:
    if found:
        into[register] = found
    else:
        into.pop(register, None)


def _followed(actions: Sequence[Action]) -> frozenset[Register]:
    """The registers of wgmma, and those whose values come from them or reach them by moves."""
    found: set[Register] = set()
    for action in actions:
        if action.operation == OPERATION:
            found.update(each for each in action.dests if each is not None)
            found.update(_factors(action))
    moves = [
        (action.dests[0], register_of(action.sources[0]))
        for action in actions
        if action.operation == "move" and len(action.dests) == len(action.sources) == 1
    ]
    before = -1
    while len(found) > before:
        before = len(found)
        for pair in moves:
            if not found.isdisjoint(pair):
                found.update(each for each in pair if each is not None)
    return frozenset(found)


def _factors(action: Action) -> list[Register]:
    """The registers of A, if it is in registers."""
    if not warpgroup_product(action).in_registers:
        return []
    first = len(action.dests)
    held = [register_of(each) for each in action.sources[first : first + 4]]
    return [each for each in held if each is not None]


def _groups(action: Action) -> int:
    """How many groups a `wgmma.wait_group` lets pend."""
    number = action.sources[0]
    assert isinstance(number, Immediate)
    return number.value


def _shape(form: Form) -> tuple[str, ...]:
    """What must be equal for wgmma in flight to share accumulators."""
    return form["N"], form["K"], form["R"]
