"""How the ranks go about a product: by which means, in how many parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gemmkit.distributed.schedule import Way
from gemmkit.errors import UsageError, unknown_name

# "collective": one operation of the process group before or after one product. "one-shot": one
# launch that writes to symmetric memory, likewise. "group": transfers between pairs by the process
# group, under products. "copies": pushes by copy engines into symmetric memory.
Means = Literal["collective", "one-shot", "group", "copies"]

_AROUND: tuple[Means, ...] = ("collective", "one-shot")
_UNDER: dict[str, Means] = {"group": "group", "copies": "copies"}


@dataclass(frozen=True, slots=True)
class Strategy:
    """How ranks go about a product.

    `means` are "collective", one operation of the process group, "one-shot", one launch that writes
    to the other GPUs' memory, "group", the group's transfers between pairs, or "copies", by copy
    engines. The `way` is "whole" if the product waits for all transfers, "parts" if it runs in
    `parts` of each rank's share, or "fused" if it is one launch that waits for each share itself,
    which only copies can do.
    """

    means: Means = "collective"
    way: Way = "whole"
    parts: int = 1

    def __str__(self) -> str:
        if self.around:
            return self.means
        return f"{self.means}-{self.parts if self.way == 'parts' else self.way}"

    @property
    def around(self) -> bool:
        """Whether one product has all transfers before it, or after it."""
        return self.means in _AROUND

    @classmethod
    def parse(cls, text: str) -> Strategy:
        """A strategy by its text: "collective", "one-shot", "group-2", "copies-fused", say.

        Raises:
            UsageError: there is no such strategy.
        """
        given = text.strip().lower()
        for each in _AROUND:
            if given == each:
                return cls(each)
        means, _, count = given.partition("-")
        known = _UNDER.get(means)
        if known is not None:
            if count == "whole":
                return cls(known, "whole")
            if count == "fused" and known == "copies":
                return cls(known, "fused")
            if count.isdecimal() and int(count):
                return cls(known, "parts", int(count))
        counts = ("whole", "1", "2", "4")
        examples = [f"{each}-{count}" for each in ("group", "copies") for count in counts]
        raise UsageError(unknown_name("strategy", text, [*_AROUND, *examples, "copies-fused"]))
