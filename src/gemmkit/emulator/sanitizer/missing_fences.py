"""Tells where a missing proxy fence belongs: findings that one fence would end have one cause."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from gemmkit.emulator.codegen.ordering import ATOMICS
from gemmkit.emulator.isa.warpgroup_forms import OPERATION
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.sanitizer.missing_barriers import Locate
from gemmkit.findings import AccessSite

# What hands a thread's stores over to others, or to the asynchronous proxy.
_HANDS_OVER = ("barrier", "mbarrier_arrive", "bulk_copy", "bulk_tensor", OPERATION)
_FLAGS = (".volatile", ".relaxed", ".release", ".acq_rel")


class MissingFences:
    """The analysis of one kernel; `locate` names the source position of an instruction."""

    def __init__(self, flow: ControlFlow, locate: Locate) -> None:
        self._flow, self._locate = flow, locate
        self.cause = cache(self._cause)

    def _cause(self, writer: int) -> str:
        """The place of a fence that a store lacks: `no-proxy-fence/before:FILE:LINE` with the next
        instruction that hands it over on all paths, or `…/after:FILE:LINE` with the store itself;
        each with the calls that lead there."""
        for each in self._following(writer):
            if self._hands_over(each):
                return f"no-proxy-fence/before:{_place(self._locate(each))}"
        return f"no-proxy-fence/after:{_place(self._locate(writer))}"

    def _following(self, number: int) -> Iterator[int]:
        """The instructions that every thread executes after one, in order."""
        blocks = self._flow.blocks
        block = self._flow.block_of(number)
        yield from range(number + 1, blocks[block].end)
        while (block := self._flow.reconvergence[block]) < len(blocks):
            yield from range(blocks[block].start, blocks[block].end)

    def _hands_over(self, number: int) -> bool:
        form = self._flow.forms[number]
        if form.operation in ATOMICS:
            return True
        flag = form.operation == "store" and any(word in form.opcode for word in _FLAGS)
        return flag or form.operation.startswith(_HANDS_OVER)


def _place(site: AccessSite) -> str:
    return "/called-at:".join((str(site), *site.called_from))
