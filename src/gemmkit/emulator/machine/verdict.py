"""What comes out when a launch that may have stalled is looked at."""

from __future__ import annotations

from enum import Enum, auto


class Verdict(Enum):
    """Whether a launch goes on; if not, whether lanes of its warps or blocks that the emulator does
    not run meanwhile might help it."""

    GOES_ON = auto()
    STALLED = auto()
    KEPT = auto()
