"""`LanesAhead`: flags that some lanes of a warp have observed, and the others have not.

The lanes of a warp count as one, but where one lane waits for a flag, the others may go on before:
for them it orders nothing until a `__syncwarp()`, or whatever else brings the lanes in step.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from gemmkit.emulator.sanitizer.releases import ANY_LANE, Learned


@dataclass(slots=True)
class _Observed:
    """Releases at an address that these lanes have observed, beyond so many that all knew of."""

    location: int
    before: int
    lanes: int


class LanesAhead:
    """The warps of one block; each has taken so many `steps` in which its lanes came in step."""

    def __init__(self) -> None:
        self._since: dict[int, int] = {}
        self._observed: defaultdict[int, list[_Observed]] = defaultdict(list)

    def some(self, warp: int, steps: int) -> bool:
        """Whether lanes of a warp have observed something since it was last in step."""
        return self._since.get(warp) == steps and bool(self._observed[warp])

    def observe(
        self, warp: int, steps: int, location: int, lanes: int | None, before: int | None
    ) -> None:
        """Lanes of a warp, or all, look at a flag; of its releases the warp knew of `before` so
        far, if it observes more."""
        if not self.some(warp, steps):
            self._observed[warp].clear()
            self._since[warp] = steps
        known = self._observed[warp]
        if lanes is None:
            known[:] = [each for each in known if each.location != location]
            return
        here = [each for each in known if each.location == location]
        for each in here:
            each.lanes |= lanes
        if before is not None and not here:
            known.append(_Observed(location, before, lanes))

    def limits(self, warp: int, steps: int, lane: int) -> Learned:
        """By address, how many releases a lane of a warp may know of, where others have observed
        more."""
        if lane == ANY_LANE or not self.some(warp, steps):
            return {}
        return {
            each.location: each.before
            for each in self._observed[warp]
            if not each.lanes >> lane & 1
        }
