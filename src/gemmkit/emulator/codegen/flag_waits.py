"""`flag_waits`: loops in which a thread waits for a flag or a counter, found in a kernel's code.

Such a loop loads a value, tests it, and looks again, with no other effect, unless the value is what
the thread waits for. The test may compute with the value (`(flag & 1) == 0`), branch more than
once, and meet other threads (`__syncthreads_or`, `__any_sync`): then the thread's own part counts.
A value that is used after the loop, as in a look-back, tells more than that the loop has ended:
such loops are none of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gemmkit.emulator.codegen.flag_tests import (
    Branch,
    Computed,
    Expression,
    FlagWait,
    Loaded,
    Not,
    depends,
)
from gemmkit.emulator.codegen.loops import Loops
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.codegen.ordering import Ordering
from gemmkit.emulator.isa.form import OperandSpec
from gemmkit.emulator.isa.semantics import OPERATIONS
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.module import Immediate, Negated, Register

_READS = ("load", "atomic", "compare_and_swap")
# What a loop may execute besides, without changing what others see: it reads and meets others.
_HARMLESS = frozenset(
    ["load", "branch", "barrier", "vote", "ballot", "shuffle", "no_operation", "active_mask",
     "elect", "copy_async_wait"]
)  # fmt: skip
# So many branches of a loop are followed.
_MOST_BRANCHES = 4


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
    loops_at = Loops(flow)
    # A loop that is rotated looks once before it begins: such loads come second.
    for again in ((), reads):
        loops = [each for each in again if each.number in found]
        for read in reads:
            if read.number not in found:
                wait = _Search(flow, actions, loops_at, read, (read, *loops)).wait()
                if wait is not None:
                    found[read.number] = wait
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
        loops: Loops,
        read: Action,
        looks: Iterable[Action],
    ) -> None:
        self._flow, self._actions, self._read = flow, actions, read
        self._looks = frozenset(each.number for each in looks)
        # Outside of the loops that look, a thread goes on, though it may come back in a larger one.
        blocks = map(flow.block_of, self._looks)
        self._inside = frozenset(each for block in blocks for each in loops.innermost(block))
        self._operand: Register | None = None
        self._branches = 0
        self._escapes = False
        # The blocks between two looks, and the reads by which a thread looks again.
        self._passed: set[int] = set()
        self._met: set[int] = set()

    def wait(self) -> FlagWait | None:
        """The wait, if it is one."""
        block = self._flow.block_of(self._read.number)
        (dest,) = self._read.dests
        env: dict[str, Expression | None] = {} if dest is None else {dest.name: Loaded()}
        try:
            test = self._follow(block, self._read.number + 1, env)
        except _NoWaitError:
            return None
        if not isinstance(test, Branch) or self._escapes or self._changes_operand():
            return None
        kind = self._read.form.type
        bits = 64 if self._operand is not None and _is_wide(self._operand) else 32
        return FlagWait(test, self._operand or 0, bits, kind.bits, kind.is_signed)

    def _follow(self, block: int, first: int, env: dict[str, Expression | None]) -> int | Branch:
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
        if predicate is None or not depends(predicate):
            raise _NoWaitError
        self._branches += 1
        if self._branches > _MOST_BRANCHES:
            raise _NoWaitError
        if last.guard.negated:
            predicate = Not(predicate)
        tested = last.guard.register.name
        taken, otherwise = (self._outcome(each, env, tested) for each in here.successors)
        if all(isinstance(each, int) and each for each in (taken, otherwise)):
            raise _NoWaitError
        return Branch(predicate, taken, otherwise)

    def _outcome(self, block: int, env: dict[str, Expression | None], tested: str) -> int | Branch:
        """Whether a thread goes on if it enters a block, `tested` being known, or what decides."""
        reached = self._harmless(block)
        if reached is None:
            values = {name for name, each in env.items() if each is not None and depends(each)}
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

    def _execute(self, action: Action, env: dict[str, Expression | None]) -> None:
        """Follow an instruction's results."""
        if action.operation == "branch":
            return
        if not action.pure and action.operation not in _HARMLESS:
            raise _NoWaitError
        results: list[Expression | None] = [None] * len(action.dests)
        if action.guard is None and action.dests:
            results = self._results(action, env)
        for dest, result in zip(action.dests, results, strict=True):
            if dest is not None:
                env[dest.name] = result

    def _results(
        self, action: Action, env: dict[str, Expression | None]
    ) -> list[Expression | None]:
        nothing: list[Expression | None] = [None] * len(action.dests)
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
        return [Computed(action, known, index) for index in range(len(nothing))]

    def _expression(self, source: object, env: dict[str, Expression | None]) -> Expression | None:
        if isinstance(source, Immediate):
            return source.value
        if isinstance(source, Negated):
            of = self._expression(source.register, env)
            return None if of is None else Not(of)
        if not isinstance(source, Register):
            return None
        if source.name in env:
            return env[source.name]
        if source.type[1:] not in ("32", "64") or (self._operand or source) != source:
            return None
        self._operand = source
        return Loaded(of_operand=True)

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


def _is_integer(spec: OperandSpec) -> bool:
    kind = spec.type.kind if spec.type is not None else ""
    return spec.role == "immediate" or kind in ("pred", "bits", "unsigned", "signed")


def _is_wide(register: Register) -> bool:
    return register.type.endswith("64")
