"""What makes repeated calls cheap: libraries that are glanced at, and prepared launches."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from gemmkit.ops.arrays import WarmLibrary
from gemmkit.trials import changes

Prepared = TypeVar("Prepared")

# Libraries that are glanced at, by the types of their arrays; a type's first call enters it.
LIBRARIES: dict[type, WarmLibrary] = {}


class Calls(dict[Hashable, Prepared], Generic[Prepared]):
    """What has been prepared, and the version of the tuner's store by which it was chosen.

    Launches are patched before each run, so that each thread needs calls of its own. Of more than
    `most`, all are forgotten.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.version, self.most = changes.count, most

    def forget(self) -> None:
        """Have everything chosen anew: somebody has tuned."""
        self.clear()
        self.version = changes.count

    def keep(self, key: Hashable, prepared: Prepared) -> None:
        """Remember one more."""
        if len(self) >= self.most:
            self.clear()
        self[key] = prepared
