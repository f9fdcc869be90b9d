"""Launches of ragged products that lie ready: by the groups' offsets, or by a table of products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gemmkit.devices.context import Context
from gemmkit.devices.launcher import PreparedLaunch
from gemmkit.devices.patches import ROLES
from gemmkit.devices.tensor_maps import MapsOfSizes
from gemmkit.dtypes import Dtype
from gemmkit.kernels.plan import LaunchPlan, TileConfig
from gemmkit.kernels.production.ragged_wgmma import blocks
from gemmkit.kernels.tensor_maps import SOME_ADDRESS
from gemmkit.ops.grouped_gpu import products_launch
from gemmkit.ops.overlaps import Extents
from gemmkit.ops.placement import Terms
from gemmkit.ops.ragged_request import Ends
from gemmkit.ops.tables import TABLE, tables_of
from gemmkit.problem import GemmProblem


class Launch(Protocol):
    """What computes ragged products of arrays that lie as those did for which it was made."""

    def run(
        self, addresses: Mapping[str, int], ends: Ends | None, offsets: int, stream: int
    ) -> None:
        """Put it on a stream: `addresses` by role, `ends` where the host knows them, and else the
        address of the offsets."""

    def resized(self, rows: int) -> Launch:
        """That for another number of rows of the same class."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A launch for one thread, and the result: its shape, and its type where that is not A's.

    `reads_offsets` says whether they are read on the GPU. `reach` holds first byte and end of each
    array from its address, and `in_place` says whether the residual lay like the result.
    """

    launch: Launch | None
    ordinal: int
    groups: int
    shape: tuple[int, int]
    dtype: Dtype | None
    reads_offsets: bool
    reach: Mapping[str, tuple[int, int]]
    in_place: bool

    def run(
        self, addresses: Mapping[str, int], ends: Ends | None, offsets: int, stream: int
    ) -> None:
        """As `Launch.run`; nothing where the result has no elements.

        Raises:
            UnsupportedProblem, CompileError, CompilerMissing, DeviceError: as `ragged_matmul`.
        """
        if self.launch is not None:
            self.launch.run(addresses, ends, offsets, stream)

    def resized(self, rows: int) -> Prepared:
        """The same for another number of rows of the same class, of calls that give nothing to
        write to."""
        return Prepared(
            None if self.launch is None else self.launch.resized(rows),
            self.ordinal,
            self.groups,
            (rows, self.shape[1]),
            self.dtype,
            self.reads_offsets,
            self.reach,
            self.in_place,
        )

    def may_overlap(self, addresses: Mapping[str, int], given: bool) -> bool:
        """Whether the stretch of memory of something written meets another array's; the result is
        new unless it is `given`."""
        written = [role for role in ("out", "auxiliary") if role in addresses]
        if not given:
            written.remove("out")
        for role in written:
            low, high = (addresses[role] + each for each in self.reach[role])
            for other, (first, end) in self.reach.items():
                if other == role or (other == "out" and not given):
                    continue
                same = addresses[other] == addresses[role]
                if same and self.in_place and (role, other) == ("out", "residual"):
                    continue
                if low < addresses[other] + end and addresses[other] + first < high:
                    return True
        return False


@dataclass(frozen=True, slots=True)
class OffsetsLaunch:
    """A launch that reads the offsets in the GPU's memory, to which `context` brings the host's.

    `sizes` makes it for other numbers of rows.
    """

    context: Context
    launch: PreparedLaunch
    sizes: RowSizes

    def resized(self, rows: int) -> OffsetsLaunch:
        """As `Launch.resized`.

        Raises:
            DeviceError: the driver refuses a tensor map.
        """
        return OffsetsLaunch(self.context, self.sizes.of(self.launch, rows), self.sizes)

    def run(
        self, addresses: Mapping[str, int], ends: Ends | None, offsets: int, stream: int
    ) -> None:
        """As `Launch.run`.

        Raises:
            DeviceError: the driver refuses it, or there is not enough memory.
        """
        if ends is None:
            given = {**addresses, TABLE: offsets}
            self.launch.run(tuple([given.get(role, 0) for role in ROLES]), stream)
            return
        table = ends.astype(np.int32)
        tables_of(self.context).launch((self.launch,), table, stream, addresses=addresses)


class RowSizes:
    """What depends on the number of rows in a plan's launches: the grid, M, and the tensor maps of
    A and C, whose sizes it is one of.

    `places` are those of arguments among the parameters.
    """

    def __init__(
        self, problem: GemmProblem, config: TileConfig, plan: LaunchPlan, places: Mapping[str, int]
    ) -> None:
        self._problem, self._config, self._plan, self._places = problem, config, plan, places
        self._maps: list[tuple[int, tuple[int, ...], MapsOfSizes]] | None = None

    def of(self, launch: PreparedLaunch, rows: int) -> PreparedLaunch:
        """A launch for so many rows, from that for others.

        Raises:
            DeviceError: the driver refuses a tensor map.
        """
        p, spec = self._problem, launch.spec
        values = {self._places["M"]: rows.to_bytes(4, "little")}
        maps = self._maps
        if maps is None:
            maps = self._maps = list(self._ready(rows))
        for place, (columns, _, *further), each in maps:
            values[place] = each.encoded((columns, rows, *further))
        grid = (blocks(rows, p.n, p.count, self._config, spec), 1, 1)
        return launch.resized(grid, values)

    def _ready(self, rows: int) -> Iterator[tuple[int, tuple[int, ...], MapsOfSizes]]:
        """Of A and C, where the map lies, its sizes, and what encodes it for others."""
        p = self._problem
        arguments = {"M": rows, "N": p.n, "K": p.k, "lda": p.lda, "ldc": p.ldc}
        for each in self._plan.tensor_maps:
            if each.rule.operand != "B":
                like = each.at(
                    SOME_ADDRESS, {**arguments, "batch": 1, "stride_a": 0, "stride_c": 0}
                )
                yield self._places[each.rule.name], like.sizes, MapsOfSizes(like)


@dataclass(frozen=True, slots=True)
class RangesLaunch:
    """Launches by a table of products, made of the host's offsets at each call.

    `places` has a row of `Extents.places` for each operand, of one matrix of B and of the whole of
    the others, and `group_bytes` what a group's B or bias lies from that of the one before.
    """

    context: Context
    terms: Terms
    places: Mapping[str, tuple[int, ...]]
    group_bytes: Mapping[str, int]
    transb: bool

    def run(
        self,
        addresses: Mapping[str, int],
        ends: Ends | None,
        offsets: int,  # noqa: ARG002 (of kernels that read them)
        stream: int,
    ) -> None:
        """As `Launch.run`.

        Raises:
            UnsupportedProblem, CompileError, CompilerMissing, DeviceError: as `ragged_matmul`.
        """
        assert ends is not None
        extents = {
            role: Extents((), self._places(role, addresses[role], ends)) for role in self.places
        }
        launch = products_launch(
            extents, self.terms, self.context, transa=False, transb=self.transb
        )
        if launch is not None:
            launch.run({role: each.places[:, 0] for role, each in extents.items()}, stream)

    def resized(self, rows: int) -> RangesLaunch:  # noqa: ARG002 (the offsets tell)
        """As `Launch.resized`."""
        return self

    def _places(self, role: str, address: int, ends: Ends) -> Any:
        places = np.empty((ends.size, 6), np.int64)
        places[:] = self.places[role]
        if role in self.group_bytes:
            places[:, 0] = address + np.arange(ends.size) * self.group_bytes[role]
            return places
        starts = np.concatenate([[0], ends[:-1]])
        if role == "bias":
            # A bias for each row: a vector is one row of as many elements.
            places[:, 0], places[:, 3] = address + starts * places[0, 1], ends - starts
            return places
        places[:, 0], places[:, 2] = address + starts * places[0, 4], ends - starts
        return places
