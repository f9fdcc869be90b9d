"""`Turns`: blocks that may wait for each other, in turn on one host thread.

Blocks run one after another, until one lasts so long that it may wait for a later one: then that
one begins, as it would on a GPU that holds both, and they take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gemmkit.emulator.codegen.kernel import LoadedKernel
from gemmkit.emulator.launch import LaunchRequest

if TYPE_CHECKING:
    from gemmkit.emulator.machine.cluster import Cluster
    from gemmkit.emulator.machine.worker import Worker

# After so many steps a block may wait for another; a turn after that lasts a fraction of it.
PATIENCE = 5_000_000
_TURN = PATIENCE // 25


def most_at_once(kernel: LoadedKernel, request: LaunchRequest) -> int:
    """How many blocks, or clusters, of a kernel run in turn if they wait for each other."""
    return most_in_turn(kernel, request) if kernel.orders_blocks else 1


def most_in_turn(kernel: LoadedKernel, request: LaunchRequest) -> int:
    """How many run in turn if one lasts long: also those of a kernel that polls without fences."""
    if not (kernel.orders_blocks or kernel.compiled.polls):
        return 1
    return max(1, request.at_once // request.cluster_blocks)


class Steps:
    """How long a worker has been in one block."""

    def __init__(self) -> None:
        self._block = -1
        self._steps = 0

    def spent(self, block: int, fuel: int) -> int:
        """The steps so far in the current block, after some more fuel was spent in it."""
        self._steps = self._steps + fuel if block == self._block else 0
        self._block = block
        return self._steps


class Turns:
    """Workers, or clusters of them, that run blocks of one launch; at most `most` at a time, which
    `make` makes. `begins` says whether there is a block left to begin."""

    def __init__(
        self,
        make: Callable[[], Worker | Cluster],
        most: int,
        begins: Callable[[], bool],
    ) -> None:
        self._make, self._most, self._begins = make, most, begins
        self.units = [make()]
        self._spent: list[tuple[int, int]] = [(-1, 0)]
        self._left_in_turn = _TURN
        # How long no block has begun or ended.
        self.steps = Steps()

    @property
    def current(self) -> Worker | Cluster:
        """The one whose turn it is."""
        return self.units[0]

    def fail(self, error: BaseException) -> None:
        """Stop soon, because of an exception of Python code that ran for the kernel."""
        self.current.fail(error)

    def spent(self, fuel: int) -> int:
        """The steps since a block has begun or ended, after some more fuel was spent."""
        blocks = frozenset(each.running.peers[0].number for each in self.units)
        return self.steps.spent(hash(blocks), fuel)

    def ended(self) -> bool:
        """The current one has no more blocks; returns whether there are others."""
        del self.units[0], self._spent[0]
        self._left_in_turn = _TURN
        return bool(self.units)

    def advance(self, fuel: int) -> None:
        """The current one has spent some fuel; it may be another's turn."""
        block = self.current.running.peers[0].number
        known, so_far = self._spent[0]
        so_far = so_far + fuel if known == block else 0
        if self.current.running.polls:
            self.current.running.polls = False
            so_far, self._left_in_turn = max(so_far, PATIENCE), 0
        self._spent[0] = block, so_far
        self._left_in_turn -= fuel
        if self.current.running.next_turns:
            self._hand_over()
            return
        if so_far < PATIENCE or self._left_in_turn > 0:
            return
        self._left_in_turn = _TURN
        waiting = all(each >= PATIENCE for _, each in self._spent)
        self.units.append(self.units.pop(0))
        self._spent.append(self._spent.pop(0))
        if waiting and len(self.units) < self._most and self._begins():
            self.units.insert(0, self._make())
            self._spent.insert(0, (-1, 0))

    def _hand_over(self) -> None:
        """The current one has written what others ask for: it is their turn."""
        worker = self.current.running
        warps, worker.next_turns = worker.next_turns, []
        first = [each.take_turns(warps) for each in self.units]
        if not any(first[1:]):
            return
        self._left_in_turn = _TURN
        order = sorted(range(len(first)), key=lambda unit: not first[unit] or not unit)
        self.units[:] = [self.units[each] for each in order]
        self._spent[:] = [self._spent[each] for each in order]
