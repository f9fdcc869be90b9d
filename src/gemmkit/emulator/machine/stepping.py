"""`Stepper`: follows the steps of a schedule in one block or cluster, for engine and oracle.

These report each synchronizing or asynchronous instruction of a warp before and after it executes,
and run only the chosen warp until a step is complete. With nothing chosen all warps stand still.
The warps of a cluster are numbered one block after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from gemmkit.emulator.ptx.module import Instruction
from gemmkit.emulator.ptx.places import place_of
from gemmkit.emulator.schedule import Landing, Place, Run, Schedule
from gemmkit.errors import DeviceError

# The status of a warp: it can go on; it waits at a barrier or for a phase; it has ended.
GOES, WAITS, ENDED = range(3)
# A step that lets a warp poll an mbarrier so often in vain does not end.
_POLLS = 10_000


class Recorder(Protocol):
    """Is told of the instructions at which a warp could stop."""

    def begin(self, warp: int, number: int, lanes: int) -> None:
        """A warp is about to execute one in some lanes."""

    def answered(self, warp: int, number: int, lanes: int, *, done: bool) -> None:
        """Lanes have asked for the phase of an mbarrier."""


class Stepper:
    """The steps of one cluster; `chosen` is the warp that may run, or `HOLD` or `FREE`.

    Args:
        schedule: the steps.
        warps: how many warps a block has.
        blocks: how many blocks the cluster has.
        body: the kernel's instructions.
        status: the status of a warp.
        land: lets a copy take effect that was held back.
        release: called once all steps are done.
    """

    HOLD, FREE = -1, -2

    def __init__(
        self,
        schedule: Schedule,
        warps: int,
        blocks: int,
        body: tuple[Instruction, ...],
        *,
        status: Callable[[int], int],
        land: Callable[[object], bool],
        release: Callable[[], None],
    ) -> None:
        self._steps, self._body, self._status = schedule.steps, body, status
        self._warps, self._blocks = warps, blocks
        self._places: dict[int, tuple[str, int]] = {}
        self._land, self._release = land, release
        count = warps * blocks
        self._reached: list[Counter[tuple[str, int]]] = [Counter() for _ in range(count)]
        # By warp: where it stopped; the instruction that the step goes through; waits in vain.
        self._stopped: list[tuple[int, int] | None] = [None] * count
        self._target: list[int | None] = [None] * count
        self._asking: list[set[tuple[int, int]]] = [set() for _ in range(count)]
        # How many copies each thread of a rank has issued, and those that are held back.
        self._issued: Counter[tuple[int, int]] = Counter()
        self._held: dict[Landing, object] = {}
        self._at, self._complete, self._polls = -1, True, 0
        self.chosen = self.HOLD
        for step in self._steps:
            self._check(step)

    def _check(self, step: Run | Landing) -> None:
        if step.rank >= self._blocks:
            raise self._impossible(step, f"the cluster has no block of rank {step.rank}")
        warp = step.warp if isinstance(step, Run) else step.thread // 32
        if warp >= self._warps:
            raise self._impossible(step, f"the block has {self._warps} warps")
        if isinstance(step, Run) and step.until is not None:
            file, line = step.until.file, step.until.line
            if all(place_of(each) != (file, line) for each in self._body):
                raise self._impossible(step, f"the kernel has no code at {file}:{line}")

    def _number(self, step: Run) -> int:
        """The warp of a step, as it is counted in the cluster."""
        return step.rank * self._warps + step.warp

    def _name(self, warp: int) -> str:
        rank, within = divmod(warp, self._warps)
        return f"warp {within}" + (f" of rank {rank}" if rank else "")

    def _impossible(self, step: Run | Landing, why: str) -> DeviceError:
        number = self._steps.index(step) + 1
        return DeviceError(f"step {number} of the schedule, '{step}', is not possible: {why}")

    @property
    def _step(self) -> Run | None:
        step = self._steps[self._at] if 0 <= self._at < len(self._steps) else None
        return step if isinstance(step, Run) else None

    def _place(self, step: Run | None, warp: int) -> Place | None:
        return step.until if step is not None and self._number(step) == warp else None

    def _is_at(self, place: Place, warp: int, number: int) -> bool:
        site = self._site(number)
        return site == (place.file, place.line) and self._reached[warp][site] == place.times

    def _site(self, number: int) -> tuple[str, int]:
        if number not in self._places:
            self._places[number] = place_of(self._body[number])
        return self._places[number]

    # What the executors report

    def before(self, warp: int, number: int, lanes: int) -> bool:
        """A warp is about to execute an instruction in some lanes; returns whether it stops."""
        here = number, lanes
        stopped, self._stopped[warp] = self._stopped[warp] == here, None
        if not stopped and here not in self._asking[warp]:
            self._reached[warp][self._site(number)] += 1
        place = self._place(self._step, warp)
        if self._complete or place is None or not self._is_at(place, warp, number):
            return False
        if place.through:
            self._target[warp] = number
            return False
        self._stopped[warp] = here
        self._end_step()
        return True

    def after(self, warp: int, number: int) -> bool:
        """A warp has executed an instruction; returns whether it stops."""
        if self._target[warp] != number or self._complete:
            return False
        self._target[warp] = None
        self._end_step()
        return True

    def answered(self, warp: int, number: int, lanes: int, *, done: bool) -> None:
        """Lanes asked for the phase of an mbarrier; until it is `done` they ask again, which does
        not count once more."""
        if done:
            self._asking[warp].discard((number, lanes))
            return
        self._asking[warp].add((number, lanes))
        self._polls += 1
        step = self._step
        if step is not None and self._polls > _POLLS:
            where = "{}:{}".format(*self._site(number))
            raise self._impossible(step, f"{self._name(warp)} polls in vain at {where}")

    def holds(self, rank: int, thread: int, copy: object) -> bool:
        """A thread of a block issues a bulk copy; returns whether a later step lets it take
        effect."""
        self._issued[rank, thread] += 1
        landing = Landing(self._issued[rank, thread], thread, rank)
        held = landing in self._steps[max(self._at, 0) :]
        if held:
            self._held[landing] = copy
        return held

    # Steps

    def _end_step(self) -> None:
        self._complete, self.chosen = True, self.HOLD

    def advance(self, place: Callable[[int], str]) -> bool:
        """No warp runs: go on with the next step; False if there was none left before.

        `place` says where a warp waits, in words.

        Raises:
            DeviceError: a step is not possible.
        """
        if self.chosen == self.FREE:
            return False
        step = self._step
        if step is not None and not self._complete and not self._ended(step, place):
            return True
        while self._at + 1 < len(self._steps):
            self._at += 1
            self._complete, self._polls = False, 0
            following = self._steps[self._at]
            if isinstance(following, Landing):
                self._let_land(following)
                continue
            if self._already_there(following):
                continue
            self.chosen = self._number(following)
            if self._status(self.chosen) != GOES:
                self._ended(following, place)
                continue
            return True
        self._at, self._complete, self.chosen = len(self._steps), True, self.FREE
        self._release()
        return True

    def _already_there(self, step: Run) -> bool:
        warp, until = self._number(step), step.until
        stopped = self._stopped[warp]
        if stopped is None or until is None or until.through:
            return False
        return self._is_at(until, warp, stopped[0])

    def _ended(self, step: Run, place: Callable[[int], str]) -> bool:
        """Whether a step is over although its warp was not stopped."""
        warp = self._number(step)
        status = self._status(warp)
        if status == GOES:
            return False
        if status == ENDED and step.until is not None:
            raise self._impossible(step, f"{self._name(warp)} has ended")
        if status == WAITS and self._target[warp] is None:
            raise self._impossible(step, f"{self._name(warp)} waits at {place(warp)}")
        self._target[warp] = None
        self._end_step()
        return True

    def _let_land(self, step: Landing) -> None:
        copy = self._held.pop(step, None)
        if copy is None:
            raise self._impossible(step, f"thread {step.thread} has not issued that copy")
        if not self._land(copy):
            raise self._impossible(step, "a wait has let that copy take effect")

    def finish(self) -> None:
        """The block has ended.

        Raises:
            DeviceError: steps are left.
        """
        if self.chosen != self.FREE and self._at < len(self._steps) - (self._complete):
            step = self._steps[min(self._at + self._complete, len(self._steps) - 1)]
            raise self._impossible(step, "the block has ended")
