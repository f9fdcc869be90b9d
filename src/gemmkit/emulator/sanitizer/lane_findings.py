"""The findings about lanes of a warp that are not in step, in words."""

from __future__ import annotations

from gemmkit.emulator.codegen.ordering import ATOMICS
from gemmkit.emulator.sanitizer.cluster_findings import ClusterFindings
from gemmkit.emulator.sanitizer.collection import APART
from gemmkit.emulator.sanitizer.flag_windows import Ahead
from gemmkit.emulator.sanitizer.granules import instruction_of
from gemmkit.emulator.sanitizer.lane_windows import Apart
from gemmkit.emulator.sanitizer.orders import TOGETHER


class LaneFindings(ClusterFindings):
    """Adds findings to a collection."""

    def lanes_apart(
        self, block: int, access: tuple[int, str, bool], address: int, apart: Apart
    ) -> None:
        """A party accesses (`access`: who, what it is called, whether it writes) what lanes have
        accessed that were not in step with the one that handed it over."""
        (who, what, writes), parties = access, self.parties
        array, offset, place = parties.place(address)
        copied = self._names.actions[instruction_of(apart.other)].operation == "copy_async"
        after = " after its wait" if copied else ""
        if apart.by is None:
            last, between = who, f"with no __syncwarp(){after} between"
        else:
            last = apart.by
            by = self._names.actions[instruction_of(last)].operation
            does = "the write to a flag" if by in ("store", *ATOMICS) else "the arrival"
            does = "the proxy fence" if apart.fence else does
            after = " between its wait and that" if copied else " before it"
            between = (
                f"and only {does} by {parties.name(last)} comes between, with no __syncwarp()"
                f"{after}"
            )
        other = f"{'the cp.async by ' if copied else ''}{parties.name(apart.other)}"
        text = (
            f"{what}{parties.name(who, block)} {'writes' if writes else 'reads'} {place}, which "
            f"{other} {'writes' if apart.wrote else 'reads'}, {between}"
        )
        site = parties.site(last)
        self._add(
            block, "racecheck", APART, text, parties.site(who),
            parties.site(apart.other), array, offset, forgiven_by=TOGETHER,
            cause="/".join(("no-syncwarp", str(site), *site.called_from)),
        )  # fmt: skip

    def lanes_ahead(self, block: int, address: int, ahead: Ahead) -> None:
        """A lane accesses what another warp has accessed, and only other lanes of its own have
        waited for that."""
        parties = self.parties
        array, offset, place = parties.place(address)
        text = (
            f"{parties.name(ahead.who, block)} {'writes' if ahead.writes else 'reads'} {place}, "
            f"which {parties.name(ahead.other)} {'writes' if ahead.wrote else 'reads'}, and only "
            "another lane of this warp has waited for that, with no __syncwarp() after it"
        )
        here, other = parties.site(ahead.who), parties.site(ahead.other)
        self._add(
            block, "racecheck", APART, text, here, other, array, offset, forgiven_by=TOGETHER,
            cause="/".join(("no-syncwarp", str(here), *here.called_from)),
        )  # fmt: skip
