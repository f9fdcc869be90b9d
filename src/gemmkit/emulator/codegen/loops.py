"""`Loops`: the loops of a kernel's control flow."""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.emulator.ptx.cfg import ControlFlow


class Loops:
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

    def around(self, block: int) -> list[set[int]]:
        """The blocks of each loop around one."""
        return [each for each in self._bodies.values() if block in each]

    def innermost(self, block: int) -> set[int]:
        """The blocks of the smallest loop around one."""
        return min(self.around(block), key=len, default=set())


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
