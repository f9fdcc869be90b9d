"""Static facts about a kernel: live registers, uniform registers, and writes that need a mask.

Registers are numbered; a set of them is a Python integer with one bit per register.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from gemmkit.emulator.codegen.flag_tests import FlagWait
from gemmkit.emulator.codegen.flag_waits import flag_waits
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.isa.matrix_access import is_matrix
from gemmkit.emulator.ptx.cfg import BasicBlock, ControlFlow
from gemmkit.emulator.ptx.module import Register, Special

_VARYING_SPECIALS = ("%tid.", "%laneid", "%lanemask_")
# Where lanes may be left to wait while others of their warp run.
WAITS = frozenset(["mbarrier_test", "mbarrier_try", "barrier_cluster_wait"])
# Operations whose results differ between lanes although the operands do not.
_VARYING_OPERATIONS = frozenset(
    [
        *("atomic", "compare_and_swap", "shuffle", "vote", "ballot", "match_any", "match_all"),
        *("reduce_warp", "elect", "active_mask", "call", "multiply_matrices", "mbarrier_arrive"),
        *("multiply_fragments", "transpose_matrix", "wgmma_multiply"),
    ]
)


@dataclass(frozen=True, slots=True)
class Region:
    """The blocks that run while lanes that diverged at a branch are apart.

    `taken` and `fall` are the sets of block numbers reached along either path before reconvergence.
    """

    branch: int
    taken: frozenset[int]
    fall: frozenset[int]


class Analysis:
    """Facts about a kernel's registers and branches.

    A register is `varying` if active lanes may hold different values in it. A guarded branch is
    `divergent` if its predicate is varying. A register is `scalar` if one value serves all lanes,
    at every point of the code. Writes in a block to registers of `shared_in(block)` must preserve
    the values of inactive lanes, because lanes that wait elsewhere still need them; other writes
    may overwrite them.
    """

    def __init__(
        self,
        flow: ControlFlow,
        actions: Sequence[Action],
        scalar_forms: Callable[[Action], bool],
        shadows: Mapping[Register, Register] | None = None,
    ) -> None:
        """`scalar_forms` says for which instructions code for one value can be generated.

        `shadows` are registers that are read and written together with others and say which of
        their bits are defined.
        """
        self.flow = flow
        self.shadows = shadows or {}
        self.actions = actions
        self._scalar_forms = scalar_forms
        # By the number of an instruction, all registers that it reads or writes, with shadows.
        self.read_by = [self._with_shadows(action.registers_read()) for action in actions]
        self.written_by = [
            self._with_shadows([each for each in action.dests if each is not None])
            for action in actions
        ]
        self.registers: dict[Register, int] = {}
        for read, written in zip(self.read_by, self.written_by, strict=True):
            for register in (*read, *written):
                self.registers.setdefault(register, len(self.registers))
        self.reads = [self._set(registers) for registers in self.read_by]
        self.writes = [self._set(registers) for registers in self.written_by]
        self.live_in = self._live_in()
        self.varying = 0
        self.regions: tuple[Region, ...] = ()
        self._find_varying()
        self._kept = self._find_kept()
        self.scalar = self._find_scalar()

    def _with_shadows(self, registers: list[Register]) -> list[Register]:
        if not self.shadows:
            return registers
        return registers + [self.shadows[each] for each in registers if each in self.shadows]

    @property
    def unset(self) -> list[Register]:
        """Registers that may be read before they are written."""
        first = self.live_in[0] if self.live_in else 0
        return [register for register, number in self.registers.items() if first >> number & 1]

    def _set(self, registers: Sequence[Register]) -> int:
        found = 0
        for register in registers:
            found |= 1 << self.registers[register]
        return found

    def bit(self, register: Register) -> int:
        """The set of one register."""
        return 1 << self.registers[register]

    def live_out(self, block: int) -> int:
        """Registers that a block's successors may read."""
        found = 0
        for successor in self.flow.blocks[block].successors:
            if successor < len(self.flow.blocks):
                found |= self.live_in[successor]
        return found

    def divergent(self, block: int) -> bool:
        """Whether lanes may diverge at the end of a block."""
        return block in self._divergent

    @cached_property
    def _divergent(self) -> frozenset[int]:
        return frozenset(region.branch for region in self.regions)

    def shared_in(self, block: int) -> int:
        """Registers that lanes which wait while a block runs may still read."""
        return self._kept[block]

    @cached_property
    def reconvergence_points(self) -> frozenset[int]:
        """Blocks where diverged lanes reconverge."""
        return frozenset(self.flow.reconvergence[region.branch] for region in self.regions)

    @cached_property
    def flag_waits(self) -> Mapping[int, FlagWait]:
        """The loads of flags by which threads wait."""
        return flag_waits(self.flow, self.actions)

    @cached_property
    def in_loops(self) -> frozenset[int]:
        """Blocks of loops: those from the target of a backward branch to the branch, in the order
        of the text."""
        found: set[int] = set()
        for number, block in enumerate(self.flow.blocks):
            for successor in block.successors:
                found |= set(range(successor, number + 1))
        return frozenset(found)

    def _live_in(self) -> list[int]:
        blocks = self.flow.blocks
        needed, killed = [], []
        for block in blocks:
            need = kill = 0
            for number in range(block.start, block.end):
                need |= self.reads[number] & ~kill
                if self.actions[number].guard is None:
                    kill |= self.writes[number]
                else:
                    need |= self.writes[number] & ~kill
            needed.append(need)
            killed.append(kill)
        live = list(needed)
        predecessors = _predecessors(blocks)
        work = list(range(len(blocks)))
        while work:
            number = work.pop()
            out = 0
            for successor in blocks[number].successors:
                if successor < len(blocks):
                    out |= live[successor]
            found = needed[number] | (out & ~killed[number])
            if found != live[number]:
                live[number] = found
                work += predecessors[number]
        return live

    def _find_varying(self) -> None:
        """Alternate between data flow and divergence until nothing changes."""
        while True:
            before = self.varying
            self._spread()
            known = {region.branch for region in self.regions}
            added = [
                self._region(number)
                for number, block in enumerate(self.flow.blocks)
                if number not in known and self._diverges(block)
            ]
            self.regions += tuple(added)
            for region in self.regions:
                self.varying |= self._written_while_diverged(region)
            if self.varying == before and not added:
                return

    def _spread(self) -> None:
        changed = True
        while changed:
            changed = False
            for number, action in enumerate(self.actions):
                if self.writes[number] & ~self.varying and (
                    self.reads[number] & self.varying or _varies_by_itself(action)
                ):
                    self.varying |= self.writes[number]
                    changed = True

    def _diverges(self, block: BasicBlock) -> bool:
        last = block.end - 1
        return (
            self.actions[last].operation == "branch"
            and len(block.successors) == 2
            and bool(self.reads[last] & self.varying)
        )

    def _region(self, branch: int) -> Region:
        reconvergence = self.flow.reconvergence[branch]
        taken, fall = self.flow.blocks[branch].successors
        return Region(
            branch, self._reached(taken, reconvergence), self._reached(fall, reconvergence)
        )

    def _reached(self, start: int, stop: int) -> frozenset[int]:
        found: set[int] = set()
        work = [start]
        while work:
            block = work.pop()
            if block not in found and block != stop and block < len(self.flow.blocks):
                found.add(block)
                work += self.flow.blocks[block].successors
        return frozenset(found)

    def _written_while_diverged(self, region: Region) -> int:
        """Registers that diverged lanes write and that are read after reconvergence."""
        reconvergence = self.flow.reconvergence[region.branch]
        if reconvergence == len(self.flow.blocks):
            return 0
        written = 0
        for number in region.taken | region.fall:
            block = self.flow.blocks[number]
            for index in range(block.start, block.end):
                written |= self.writes[index]
        return written & self.live_in[reconvergence]

    def _find_kept(self) -> list[int]:
        """The registers of `shared_in`, per block.

        Lanes that take a branch run first. The others wait at its fall-through, then all wait at
        the reconvergence point. If the branch can be reached again before that, lanes of an earlier
        iteration still wait at the fall-through while later ones run.
        """
        kept = [0] * len(self.flow.blocks)
        for region in self.regions:
            reconvergence = self.flow.reconvergence[region.branch]
            at_reconvergence = (
                self.live_in[reconvergence] if reconvergence < len(self.flow.blocks) else 0
            )
            fall = self.flow.blocks[region.branch].successors[1]
            at_fall = self.live_in[fall] if fall < len(self.flow.blocks) else 0
            again = region.branch in region.taken | region.fall
            for block in region.taken:
                kept[block] |= at_reconvergence | at_fall
            for block in region.fall:
                kept[block] |= at_reconvergence | (at_fall if again else 0)
            for here, there in ((region.taken, region.fall), (region.fall, region.taken)):
                stopped = self._read_where_stopped(there)
                for block in here:
                    kept[block] |= stopped
        return kept

    def _read_where_stopped(self, blocks: frozenset[int]) -> int:
        """Registers that lanes may still read which stop within these blocks to wait for an
        mbarrier, or for other lanes that do."""
        actions, all_blocks = self.actions, self.flow.blocks
        waits = {each for each in blocks if actions[all_blocks[each].end - 1].operation in WAITS}
        if not waits:
            return 0
        stops = waits | {each + 1 for each in waits}
        for region in self.regions:
            if region.branch in blocks:
                stops |= {*all_blocks[region.branch].successors}
                stops.add(self.flow.reconvergence[region.branch])
        found = 0
        for each in stops:
            found |= self.live_in[each] if each < len(all_blocks) else 0
        return found

    def _find_scalar(self) -> int:
        every = (1 << len(self.registers)) - 1
        scalar = every & ~self.varying
        for number, block in enumerate(self.flow.blocks):
            for index in range(block.start, block.end):
                scalar &= ~(self.writes[index] & self._kept[number])
        changed = True
        while changed:
            changed = False
            for index, action in enumerate(self.actions):
                written = self.writes[index] & scalar
                if written and (self.reads[index] & ~scalar or not self._scalar_forms(action)):
                    scalar &= ~written
                    changed = True
        return scalar


def _predecessors(blocks: Sequence[BasicBlock]) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in blocks]
    for number, block in enumerate(blocks):
        for successor in block.successors:
            if successor < len(blocks):
                found[successor].append(number)
    return found


def _varies_by_itself(action: Action) -> bool:
    if action.operation in _VARYING_OPERATIONS:
        return True
    if action.operation == "load" and (is_matrix(action.form) or action.form["S"] in ("local", "")):
        return True
    return any(
        isinstance(source, Special) and source.name.startswith(_VARYING_SPECIALS)
        for source in action.sources
    )
