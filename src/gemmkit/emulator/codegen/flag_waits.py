"""`flag_waits`: loops in which a thread waits for a flag or a counter, found in a kernel's code.

Such a loop loads a value, tests it, and looks again, with no other effect, unless the value is what
the thread waits for. The test may compute with the value (`(flag & 1) == 0`), branch more than
once, and meet other threads (`__syncthreads_or`, `__any_sync`): then the thread's own part counts.
A value that is used after the loop, as in a look-back, tells more than that the loop has ended:
such loops are none of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from gemmkit.emulator.codegen.operands import Action, source_widths
from gemmkit.emulator.codegen.ordering import Ordering
from gemmkit.emulator.isa.form import OperandSpec
from gemmkit.emulator.isa.semantics import OPERATIONS, evaluate
from gemmkit.emulator.isa.semantics.raw import UNSIGNED, Raw
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.module import Immediate, Negated, Register

_READS = ("load", "atomic", "compare_and_swap")
# What a loop may execute besides, without changing what others see: it reads and meets others.
_HARMLESS = frozenset(
    ["load", "branch", "barrier", "vote", "ballot", "shuffle", "no_operation", "active_mask",
     "elect", "copy_async_wait"]
)  # fmt: skip
# So many branches of a loop are followed, and so many values of a flag remembered.
_MOST_BRANCHES, _REMEMBERED = 4, 1024


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The value that a look has found, or (`of_operand`) what it is compared with."""

    of_operand: bool = False


@dataclass(frozen=True, slots=True)
class _Computed:
    """A result of an instruction that computes from registers; or its complement."""

    action: Action
    sources: tuple[_Expression, ...]
    result: int


@dataclass(frozen=True, slots=True)
class _Not:
    """The complement of a predicate."""

    of: _Expression


_Expression = _Loaded | _Computed | _Not | int


@dataclass(frozen=True, slots=True)
class _Branch:
    """What a thread does by a predicate: by which exit it goes on (numbers above 0), that it looks
    again (0), or that another branch decides."""

    predicate: _Expression
    taken: int | _Branch
    otherwise: int | _Branch


@dataclass(frozen=True, slots=True)
class FlagWait:
    """What a loop waits for: a test of the loaded value, which may depend on one register, the
    `operand`, that the loop does not change. It has so many `bits`."""

    test: _Branch
    operand: Register | int
    bits: int
    loaded_bits: int
    signed: bool
    _known: dict[tuple[int, int], int] = field(default_factory=dict, compare=False)

    def exit(self, value: int, operand: int) -> int:
        """By which exit of the loop a value lets the thread go on; 0 if by none."""
        found = self._known.get((value, operand))
        if found is None:
            if len(self._known) == _REMEMBERED:
                self._known.clear()
            found = self._known[value, operand] = self._taken(value, operand)
        return found

    def _taken(self, value: int, operand: int) -> int:
        value &= (1 << self.loaded_bits) - 1
        if self.signed:
            value -= value >> self.loaded_bits - 1 << self.loaded_bits
        branch: int | _Branch = self.test
        while isinstance(branch, _Branch):
            holds = bool(_evaluated(branch.predicate, 1, (value, operand)))
            branch = branch.taken if holds else branch.otherwise
        return branch


def _evaluated(of: _Expression, width: int, given: tuple[int, int]) -> Raw:
    """An expression in so many bits, given the loaded value and the operand."""
    if isinstance(of, _Computed):
        widths = source_widths(of.action)
        sources = [
            _evaluated(each, bits, given) for each, bits in zip(of.sources, widths, strict=True)
        ]
        result = evaluate(of.action.form, sources)[of.result]
        return result if result.dtype == np.bool_ else _resized(int(result), width)
    if isinstance(of, _Not):
        return ~_evaluated(of.of, width, given)
    return _resized(given[of.of_operand] if isinstance(of, _Loaded) else of, width)


def _resized(value: int, width: int) -> Raw:
    if width == 1:
        return np.asarray(bool(value))
    return np.asarray(value & (1 << width) - 1, UNSIGNED[width])


def flag_waits(flow: ControlFlow, actions: Sequence[Action]) -> dict[int, FlagWait]:
    """The loads of flags by which threads wait, by the number of the instruction."""
    found: dict[int, FlagWait] = {}
    reads = [
        action
        for action in actions
        if action.operation in _READS
        and action.guard is None
        and len(action.dests) == 1
        and Ordering.of(action).strong
    ]
    if not reads:
        return found
    loops_at = _Loops(flow)
    # A loop that is rotated looks once before it begins: such loads come second.
    for again in ((), reads):
        loops = [each for each in again if each.number in found]
        for read in reads:
            if read.number not in found:
                wait = _Search(flow, actions, loops_at, read, (read, *loops)).wait()
                if wait is not None:
                    found[read.number] = wait
    return found


class _Loops:
    """The loops of a kernel, each with one block by which it is entered."""

    def __init__(self, flow: ControlFlow) -> None:
        blocks = flow.blocks
        before: list[list[int]] = [[] for _ in blocks]
        for number, block in enumerate(blocks):
            for each in block.successors:
                if each < len(blocks):
                    before[each].append(number)
        self._bodies: dict[int, set[int]] = {}
        above = _dominators(before)
        for entry, sources in enumerate(before):
            for source in sources:
                if above[source] >> entry & 1:
                    body = self._bodies.setdefault(entry, {entry})
                    waiting = [source]
                    while waiting:
                        inside = waiting.pop()
                        if inside not in body:
                            body.add(inside)
                            waiting += before[inside]

    def innermost(self, block: int) -> set[int]:
        """The blocks of the smallest loop around one."""
        return min(
            (each for each in self._bodies.values() if block in each), key=len, default=set()
        )


def _dominators(before: Sequence[Sequence[int]]) -> list[int]:
    """By block, as bits, the blocks that all ways to it pass, and itself."""
    every = (1 << len(before)) - 1
    found = [1, *[every] * (len(before) - 1)]
    changed = True
    while changed:
        changed = False
        for block in range(1, len(before)):
            passed = every
            for each in before[block]:
                passed &= found[each]
            passed |= 1 << block
            if passed != found[block]:
                found[block], changed = passed, True
    return found


class _NoWaitError(Exception):
    """What follows a load is not a wait that can be understood."""


class _Search:
    """Follows what a thread does with a value that it has read, up to where it looks again by one
    of some reads."""

    def __init__(
        self,
        flow: ControlFlow,
        actions: Sequence[Action],
        loops: _Loops,
        read: Action,
        looks: Iterable[Action],
    ) -> None:
        self._flow, self._actions, self._read = flow, actions, read
        self._looks = frozenset(each.number for each in looks)
        # Outside of the loops that look, a thread goes on, though it may come back in a larger one.
        blocks = map(self._block_of, self._looks)
        self._inside = frozenset(each for block in blocks for each in loops.innermost(block))
        self._operand: Register | None = None
        self._branches = 0
        self._escapes = False
        # The blocks between two looks, and the reads by which a thread looks again.
        self._passed: set[int] = set()
        self._met: set[int] = set()

    def wait(self) -> FlagWait | None:
        """The wait, if it is one."""
        block = self._block_of(self._read.number)
        (dest,) = self._read.dests
        env: dict[str, _Expression | None] = {} if dest is None else {dest.name: _Loaded()}
        try:
            test = self._follow(block, self._read.number + 1, env)
        except _NoWaitError:
            return None
        if not isinstance(test, _Branch) or self._escapes or self._changes_operand():
            return None
        kind = self._read.form.type
        bits = 64 if self._operand is not None and _is_wide(self._operand) else 32
        return FlagWait(test, self._operand or 0, bits, kind.bits, kind.is_signed)

    def _block_of(self, number: int) -> int:
        return next(
            i for i, each in enumerate(self._flow.blocks) if each.start <= number < each.end
        )

    def _follow(self, block: int, first: int, env: dict[str, _Expression | None]) -> int | _Branch:
        """What a thread does from an instruction on: 0 if it looks again, or what decides."""
        env, passed = dict(env), set()
        while True:
            if block >= len(self._flow.blocks) or block in passed:
                raise _NoWaitError
            passed.add(block)
            self._passed.add(block)
            here = self._flow.blocks[block]
            for number in range(max(first, here.start), here.end):
                if number in self._looks:
                    self._met.add(number)
                    return 0
                self._execute(self._actions[number], env)
            last, first = self._actions[here.end - 1], 0
            if len(here.successors) == 2 and last.operation == "branch" and last.guard is not None:
                break
            if len(here.successors) != 1:
                raise _NoWaitError
            block = here.successors[0]
        predicate = env.get(last.guard.register.name)
        if predicate is None or not _depends(predicate):
            raise _NoWaitError
        self._branches += 1
        if self._branches > _MOST_BRANCHES:
            raise _NoWaitError
        if last.guard.negated:
            predicate = _Not(predicate)
        tested = last.guard.register.name
        taken, otherwise = (self._outcome(each, env, tested) for each in here.successors)
        if all(isinstance(each, int) and each for each in (taken, otherwise)):
            raise _NoWaitError
        return _Branch(predicate, taken, otherwise)

    def _outcome(
        self, block: int, env: dict[str, _Expression | None], tested: str
    ) -> int | _Branch:
        """Whether a thread goes on if it enters a block, `tested` being known, or what decides."""
        reached = self._harmless(block)
        if reached is None:
            values = {name for name, each in env.items() if each is not None and _depends(each)}
            self._escapes = self._escapes or self._reads(block, values - {tested})
            return block + 1
        try:
            return self._follow(block, 0, env)
        except _NoWaitError:
            # Something else, such as which lane it is, may come between.
            self._passed |= reached
            return 0

    def _reads(self, start: int, registers: set[str]) -> bool:
        """Whether a thread that enters a block may read some registers before it writes them."""
        seen: set[tuple[int, frozenset[str]]] = set()
        waiting = [(start, frozenset(registers))]
        while waiting:
            block, left = waiting.pop()
            if not left or block >= len(self._flow.blocks) or (block, left) in seen:
                continue
            seen.add((block, left))
            here = self._flow.blocks[block]
            for action in self._actions[here.start : here.end]:
                if any(each.name in left for each in action.registers_read()):
                    return True
                if action.guard is None:
                    left -= {each.name for each in action.dests if each is not None}
            waiting += [(each, left) for each in here.successors]
        return False

    def _harmless(self, start: int) -> set[int] | None:
        """The blocks by which a thread comes from one to where it looks again, without any effect;
        None if it does not."""
        seen, waiting, met = {start}, [start], set()
        while waiting:
            block = waiting.pop()
            if block not in self._inside:
                continue
            here = self._flow.blocks[block]
            for number in range(here.start, here.end):
                if number in self._looks:
                    met.add(number)
                    break
                action = self._actions[number]
                if not action.pure and action.operation not in _HARMLESS:
                    break
            else:
                new = set(here.successors) - seen
                seen |= new
                waiting += new
        self._met |= met
        return seen if met else None

    def _execute(self, action: Action, env: dict[str, _Expression | None]) -> None:
        """Follow an instruction's results."""
        if action.operation == "branch":
            return
        if not action.pure and action.operation not in _HARMLESS:
            raise _NoWaitError
        results: list[_Expression | None] = [None] * len(action.dests)
        if action.guard is None and action.dests:
            results = self._results(action, env)
        for dest, result in zip(action.dests, results, strict=True):
            if dest is not None:
                env[dest.name] = result

    def _results(
        self, action: Action, env: dict[str, _Expression | None]
    ) -> list[_Expression | None]:
        nothing: list[_Expression | None] = [None] * len(action.dests)
        if action.operation in ("vote", "shuffle"):
            return [self._expression(action.sources[0], env), *nothing[1:]]
        if action.operation == "barrier" and action.form["R"] in ("and", "or"):
            return [self._expression(action.sources[-1], env)]
        if action.operation not in OPERATIONS:
            return nothing
        sources = tuple(self._expression(each, env) for each in action.sources)
        known = tuple(each for each in sources if each is not None)
        if len(known) < len(sources) or not all(map(_is_integer, action.form.operands)):
            return nothing
        return [_Computed(action, known, index) for index in range(len(nothing))]

    def _expression(self, source: object, env: dict[str, _Expression | None]) -> _Expression | None:
        if isinstance(source, Immediate):
            return source.value
        if isinstance(source, Negated):
            of = self._expression(source.register, env)
            return None if of is None else _Not(of)
        if not isinstance(source, Register):
            return None
        if source.name in env:
            return env[source.name]
        if source.type[1:] not in ("32", "64") or (self._operand or source) != source:
            return None
        self._operand = source
        return _Loaded(of_operand=True)

    def _changes_operand(self) -> bool:
        """Whether the loop writes the operand."""
        read, blocks = self._read.number, self._flow.blocks
        passed = (blocks[each] for each in self._passed if each < len(blocks))
        # What comes before a look that is not repeated is no part of the loop.
        numbers = (
            number
            for block in passed
            for number in range(block.start, block.end)
            if read in self._met or not block.start <= number <= read < block.end
        )
        return self._operand is not None and any(
            dest is not None and dest.name == self._operand.name
            for number in numbers
            for dest in self._actions[number].dests
        )


def _depends(of: _Expression) -> bool:
    """Whether an expression depends on the loaded value."""
    return any(isinstance(each, _Loaded) and not each.of_operand for each in _parts(of))


def _parts(of: _Expression) -> Iterator[_Expression]:
    yield of
    if isinstance(of, _Not):
        yield from _parts(of.of)
    elif isinstance(of, _Computed):
        for each in of.sources:
            yield from _parts(each)


def _is_integer(spec: OperandSpec) -> bool:
    kind = spec.type.kind if spec.type is not None else ""
    return spec.role == "immediate" or kind in ("pred", "bits", "unsigned", "signed")


def _is_wide(register: Register) -> bool:
    return register.type.endswith("64")
