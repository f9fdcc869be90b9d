"""How the ranks go about a product: by which means, in how many parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gemmkit.distributed.schedule import Way
from gemmkit.errors import UsageError, unknown_name

# "collective": one operation of the process group before or after one product. "group": transfers
# between pairs by the process group, under products. "copies": pushes by copy engines into
# symmetric memory.
Means = Literal["collective", "group", "copies"]

_MEANS: dict[str, Means] = {"collective": "collective", "group": "group", "copies": "copies"}


@dataclass(frozen=True, slots=True)
class Strategy:
    """How ranks go about a product.

    `means` are "collective", one operation of the process group, "group", its transfers between
    pairs, or "copies", by copy engines. The `way` is "whole" if the product waits for all
    transfers, or "parts" if it runs in `parts` of each rank's share.
    """

    means: Means = "collective"
    way: Way = "whole"
    parts: int = 1

    def __str__(self) -> str:
        if self.means == "collective":
            return "collective"
        return f"{self.means}-whole" if self.way == "whole" else f"{self.means}-{self.parts}"

    @classmethod
    def parse(cls, text: str) -> Strategy:
        """A strategy by its text: "collective", "group-2", "copies-4", "copies-whole", say.

        Raises:
            UsageError: there is no such strategy.
        """
        means, _, count = text.strip().lower().partition("-")
        known = _MEANS.get(means)
        if known == "collective" and not count:
            return cls()
        if known is not None and known != "collective":
            if count == "whole":
                return cls(known, "whole")
            if count.isdecimal() and int(count):
                return cls(known, "parts", int(count))
        counts = ("whole", "1", "2", "4")
        examples = [f"{each}-{count}" for each in ("group", "copies") for count in counts]
        raise UsageError(unknown_name("strategy", text, ["collective", *examples]))
