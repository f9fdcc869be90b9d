"""Memory accesses of a launch, summed per source line and per array."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gemmkit.record import AccessCounts


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Sums over the accesses of one kind to one array, at one line or (`line` None) at all lines.

    Counts are those of `AccessCounts`; `data_bytes` is what all lanes requested.
    """

    file: str
    line: int | None
    array: str
    space: str
    kind: str
    requests: int
    instructions: int
    data_bytes: int
    sectors: int
    ideal_sectors: int
    tag_wavefronts: int
    wavefronts: int
    ideal_wavefronts: int
    conflicts: int

    @property
    def sectors_per_request(self) -> float | None:
        """32-byte sectors per request; None without requests."""
        return self.sectors / self.requests if self.requests else None

    @property
    def ideal_sectors_per_request(self) -> float | None:
        """The minimum for the distinct bytes of a request; None without requests."""
        return self.ideal_sectors / self.requests if self.requests else None

    @property
    def wavefronts_per_instruction(self) -> float | None:
        """Wavefronts per machine instruction; None without any."""
        return self.wavefronts / self.instructions if self.instructions else None


def memory_table(accesses: Iterable[AccessCounts]) -> tuple[MemoryRow, ...]:
    """A row per source line, array and kind of access, in source order.

    Accesses without active lanes are left out.
    """
    return _rows(accesses, lambda each: (each.file, each.line, each.array, each.space, each.kind))


def array_table(accesses: Iterable[AccessCounts]) -> tuple[MemoryRow, ...]:
    """A row per array and kind of access, without lines."""
    return _rows(accesses, lambda each: ("", None, each.array, each.space, each.kind))


_SUMS = (
    *("requests", "instructions", "sectors", "ideal_sectors", "tag_wavefronts"),
    *("wavefronts", "ideal_wavefronts", "conflicts"),
)


def _rows(
    accesses: Iterable[AccessCounts],
    key: Callable[[AccessCounts], tuple[str, int | None, str, str, str]],
) -> tuple[MemoryRow, ...]:
    groups: defaultdict[tuple[str, int | None, str, str, str], list[AccessCounts]]
    groups = defaultdict(list)
    for each in accesses:
        if each.requests:
            groups[key(each)].append(each)
    found = []
    for file, line, array, space, kind in sorted(
        groups, key=lambda each: (each[0], each[1] or 0, each[2:])
    ):
        members = groups[file, line, array, space, kind]
        sums = {name: sum(getattr(each, name) for each in members) for name in _SUMS}
        nbytes = sum(each.lanes * each.bytes_per_lane for each in members)
        found.append(MemoryRow(file, line, array, space, kind, data_bytes=nbytes, **sums))
    return tuple(found)
