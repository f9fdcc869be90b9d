"""Products of many matrices that are on a GPU already: read and written where they are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemmkit.devices.context import Context, context_of
from gemmkit.devices.launcher import PreparedLaunch, prepared_launches
from gemmkit.devices.operands import NOWHERE, Operands, bind_arguments
from gemmkit.devices.packing import argument_offsets, preparing_launches
from gemmkit.devices.streams import check_stream, finish, stream_handle
from gemmkit.devices.tensor_maps import DRIVER_MAPS
from gemmkit.dispatch.alike import choose_alike
from gemmkit.dispatch.choose import choose
from gemmkit.errors import UnsupportedProblem, UsageError
from gemmkit.groups import Groups, Sizes
from gemmkit.kernels.group_table import MATRICES, NO_PITCHES, GroupTable, Pitches, tiles_of
from gemmkit.kernels.production.grouped import MAX_TILES
from gemmkit.ops.arrays import GpuLibrary
from gemmkit.ops.compiled import compiled
from gemmkit.ops.group_scales import pitches_of_scales
from gemmkit.ops.groups import GroupsRequest, low_bits
from gemmkit.ops.making import refuse_capture
from gemmkit.ops.operands import Operand, alignment
from gemmkit.ops.overlaps import Extents
from gemmkit.ops.placement import Terms
from gemmkit.ops.tables import PLACES, Tables, tables_of
from gemmkit.problem import GemmProblem

if TYPE_CHECKING:
    from gemmkit.ops.prepared_forms import Forms

log = logging.getLogger("gemmkit")

# The roles of operands whose addresses stand in a table.
_ROLES = {**MATRICES, "C": "out"}

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class GroupsMaker:
    """What makes a form of prepared B: as `Making`, of the B of all products that stand in a table.

    `launches` are for one thread.
    """

    form: str
    nbytes: int
    context: Context
    tables: Tables
    launches: tuple[PreparedLaunch, ...]
    table: NDArray[np.void] | None = None

    def of(self, table: NDArray[np.void]) -> GroupsMaker:
        """The same for the operands in a table."""
        return replace(self, table=table)

    def fill(self, operand: int, form: int, stream: int) -> None:  # noqa: ARG002
        """As `Making.fill`; the operands' addresses stand in the table."""
        self.refuse_capture(stream)
        assert self.table is not None
        self.tables.launch(self.launches, self.table, stream, form)
        finish(stream, self.context)

    def refuse_capture(self, stream: int) -> None:
        """As `Making.refuse_capture`."""
        refuse_capture("bs", stream)


@dataclass(frozen=True, slots=True)
class GroupsLaunch:
    """Launches of many products, for one thread: `table` without the addresses is `sized`.

    `maker` makes what they read of prepared operands, if they do. If a single kernel reads all that
    depends on sizes from the table, `places` says where its arguments lie in its parameters.
    """

    tables: Tables
    launches: tuple[PreparedLaunch, ...]
    table: GroupTable
    sized: NDArray[np.void]
    maker: GroupsMaker | None = None
    places: Mapping[str, int] | None = None

    def for_any_rows(self, strides_b: Sequence[int]) -> GroupsLaunch | None:
        """What `with_rows` makes others of: the same if no product had been empty, each B having
        those strides, in elements. None for launches that depend on sizes by more than a table, and
        for products that have not one n and k in common, or transposed A."""
        problem = self.table.problem
        n, k = problem.groups.n, problem.groups.k  # type: ignore[union-attr]
        if (
            (self.places is None or problem.transa or not (problem.alpha and n[0] and k[0]))
            or (n != n[0]).any()
            or (k != k[0]).any()
        ):
            return None
        ldb = max(strides_b[problem.transb], int((k if problem.transb else n)[0]))
        # All as large as the largest, so that no new map is encoded.
        largest = int(problem.groups.m.argmax())  # type: ignore[union-attr]
        m, lda = (int(each[largest]) for each in (problem.groups.m, problem.groups.lda))  # type: ignore[union-attr]
        filled = Groups.of(np.full_like(n, m), n, k, lda, ldb, n)
        sizes = dict.fromkeys(("m", "n", "k", "lda", "ldb", "ldc"), 0)
        table = replace(self.table, problem=replace(problem, groups=filled, **sizes))  # type: ignore[arg-type]
        return replace(self, table=table, sized=table.sized(DRIVER_MAPS))

    def with_rows(self, m: Sizes, lda: Sizes) -> GroupsLaunch | None:
        """The launch for other numbers of rows, for which the same kernel and configuration are
        chosen; None where there is nothing to launch, or more than a launch can number.

        Raises:
            DeviceError: the driver refuses a tensor map.
        """
        sized = self.table.with_rows(self.sized, m, lda, DRIVER_MAPS)
        tiles = tiles_of(sized)
        if not 0 < tiles <= MAX_TILES or self.places is None:
            return None
        values = {self.places["tile_count"]: tiles.to_bytes(4, "little")}
        (launch,) = self.launches
        made = launch.resized((self.table.blocks(tiles), 1, 1), values)
        return replace(self, launches=(made,), sized=sized)

    def run(
        self,
        addresses: Mapping[str, NDArray[Any]],
        stream: int,
        held: Forms | None = None,
    ) -> None:
        """Put them on a stream; `addresses` are those of all arrays, by role, `held` the prepared
        operands.

        Raises:
            UsageError: something has to be made of these, and the stream is being captured.
            DeviceError: the driver refuses it, or there is not enough memory.
        """
        named = {name: addresses[role] for name, role in _ROLES.items() if role in addresses}
        table, prepared = self.table.at(named, self.sized, DRIVER_MAPS), 0
        if self.maker is not None and held is not None:
            prepared = held.address(self.maker.of(table), stream)
        self.tables.launch(self.launches, table, stream, prepared)


def groups_launch(
    problem: GemmProblem,
    context: Context,
    *,
    ldr: ArrayLike = 0,
    ldx: ArrayLike = 0,
    scales: Pitches = NO_PITCHES,
) -> GroupsLaunch | None:
    """The launches for groups, with the leading dimensions of residuals and auxiliary outputs, and
    how their scales lie, as `GroupTable.filled` takes them; None where there is nothing to launch.

    Raises:
        UnsupportedProblem, CompileError, CompilerMissing, DeviceError: as `grouped_matmul`.
    """
    choice = choose_alike(problem, context.spec)
    try:
        plan, binary = compiled(problem, choice.kernel, choice.config, context.spec)
    except UnsupportedProblem:
        choice = choose(problem, context.spec)
        plan, binary = compiled(problem, choice.kernel, choice.config, context.spec)
    if not (plan.blocks and isinstance(plan.table, GroupTable)):
        return None
    bound = bind_arguments(problem, Operands(NOWHERE, NOWHERE, NOWHERE))
    arguments = {**bound, **plan.table.arguments, "groups": 0}
    tables = tables_of(context)
    maker = None
    for copy, own in zip(plan.prepared, preparing_launches(plan, binary), strict=True):
        launches = prepared_launches(context, *own, arguments, PLACES)
        maker = GroupsMaker(copy.form, copy.nbytes, context, tables, launches)
    depends = bool(
        plan.before or plan.prepared or plan.tensor_maps or plan.workspace_bytes or plan.semaphores
    )
    return GroupsLaunch(
        tables,
        prepared_launches(context, plan, binary, arguments, PLACES),
        plan.table,
        plan.table.sized(DRIVER_MAPS, ldr=ldr, ldx=ldx, scales=scales),
        maker,
        None if depends else argument_offsets(binary, plan),
    )


def multiply(
    groups: GroupsRequest, ordinal: int, stream: Any, held: Forms | None = None
) -> tuple[list[Operand], GroupsLaunch | None]:
    """The results of arrays on the GPU of that ordinal, which is not waited for.

    Matrices in rows or in columns are read in place, one launch for all of the same layout. If a
    single launch is all that was done, it comes with the results.

    Raises:
        UsageError: no such stream, or an array that cannot be copied to where it is needed.
        UnsupportedProblem, CompileError, DeviceError: as `grouped_matmul`.
    """
    context = context_of(ordinal)
    libraries = cast("dict[str, list[GpuLibrary]]", groups.libraries)
    if stream is None:
        handle = libraries["a"][0].current_stream(ordinal)
    else:
        handle = stream_handle(stream)
        check_stream(handle, context)
    for role, members in groups.operands.items():
        for library, operand in zip(libraries[role], members, strict=True):
            library.wait_for(operand, handle)
    with ExitStack() as entered:
        for library in {id(each): each for all_ in libraries.values() for each in all_}.values():
            if library.CURRENT_STREAMS and library.current_stream(ordinal) != handle:
                entered.enter_context(library.on_stream(handle, ordinal))
        return _Multiplication(groups, libraries, context, handle, held).run()


class _Multiplication:
    """The operands of all products, as far as they have been put where kernels can use them.

    `copies` says whether any were copied, and `launches` what was launched.
    """

    def __init__(
        self,
        groups: GroupsRequest,
        libraries: dict[str, list[GpuLibrary]],
        context: Context,
        stream: int,
        held: Forms | None = None,
    ) -> None:
        self.groups, self.context, self.stream, self.held = groups, context, stream, held
        self.libraries = dict(libraries)
        self.operands = {role: list(members) for role, members in groups.operands.items()}
        self.extents = dict(groups.extents)
        # Products whose result has elements; nothing is copied for the others.
        self.filled: Mask = (groups.m > 0) & (groups.n > 0)
        self.copies = False
        self.launches: list[GroupsLaunch] = []

    def run(self) -> tuple[list[Operand], GroupsLaunch | None]:
        """Copy what must be, launch, and bring results to where they belong."""
        for role in ("a", "b", "bias", "residual"):
            if role in self.operands:
                its = self.extents[role]
                fit = its.in_rows | (its.in_columns if role in ("a", "b") else False)
                if role == "a" and self.held is not None and not its.in_columns.all():
                    # One launch reads all that is prepared.
                    fit = its.in_rows
                self._replace(role, ~fit & self.filled, self._copied)
        results = self.operands.get("out") or self.groups.new_results(self.stream)
        self.operands["out"], self.extents["out"] = results, Extents.of(results)
        self.libraries.setdefault("out", self.libraries["a"])
        aside = {
            role: list(self.operands[role])
            for role in ("out", "auxiliary")
            if role in self.operands
        }
        for role in aside:
            self._replace(role, ~self.extents[role].in_rows & self.filled, self._beside)
        if "c" in self.operands:
            self._bring_c()
        self._launch_all()
        for role, members in aside.items():
            for place, operand in enumerate(members):
                if self.operands[role][place] is not operand:
                    self.libraries[role][place].assign(operand, self.operands[role][place])
        single = len(self.launches) == 1 and not self.copies
        return aside["out"], self.launches[0] if single else None

    # --- copies -----------------------------------------------------------------------------

    def _replace(self, role: str, which: Mask, make: Callable[[str, int], Operand]) -> None:
        places = np.flatnonzero(which).tolist()
        if not places:
            return
        log.debug("%d of %d arrays %s cannot be used in place", len(places), which.size, role)
        self.copies = True
        members = self.operands[role] = list(self.operands[role])
        for place in places:
            members[place] = make(role, place)
        self.extents[role] = Extents.of(members)

    def _copied(self, role: str, place: int) -> Operand:
        operand = self.operands[role][place]
        return self.libraries[role][place].copied(operand, operand.view.shape, by_columns=False)

    def _beside(self, role: str, place: int) -> Operand:
        target = self.operands[role][place]
        return self.libraries[role][place].empty_like(target, by_columns=False)

    def _bring_c(self) -> None:
        """The kernel adds to what its results' memory holds; a residual there goes elsewhere."""
        there = self.extents["c"].same_as(self.extents["out"])
        if "residual" in self.operands:
            lost = self.extents["residual"].same_as(self.extents["out"]) & ~there & self.filled
            self._replace("residual", lost, self._copied)
        for place in np.flatnonzero(~there & self.filled).tolist():
            library = self.libraries["out"][place]
            if self.libraries["c"][place] is not library:
                raise UsageError(
                    f"c[{place}] is not of the library of out[{place}], or of a[{place}]: convert "
                    "it, or give it as out, too"
                )
            library.assign(self.operands["out"][place], self.operands["c"][place])
            self.copies = True

    # --- launches ---------------------------------------------------------------------------

    def _launch_all(self) -> None:
        turned = {role: _in_columns(self.extents[role]) for role in ("a", "b")}
        kinds = 2 * turned["a"] + turned["b"]
        for kind in np.unique(kinds):
            chosen = np.flatnonzero(kinds == kind)
            launch = self._launch(chosen, bool(kind & 2), bool(kind & 1))
            if launch is not None:
                found = {role: its.places[chosen, 0] for role, its in self.extents.items()}
                launch.run(found, self.stream, self.held)
                self.launches.append(launch)

    def _launch(self, chosen: NDArray[np.intp], transa: bool, transb: bool) -> GroupsLaunch | None:
        """That of the products of these numbers, all with A and B in rows or in columns alike; None
        where there is nothing to launch."""
        extents, terms = self.extents, self.groups.terms
        if chosen.size < self.groups.count:
            extents = {role: its.some(chosen) for role, its in extents.items()}
        return products_launch(extents, terms, self.context, transa=transa, transb=transb)


def products_launch(
    extents: Mapping[str, Extents],
    terms: Terms,
    context: Context,
    *,
    transa: bool,
    transb: bool,
) -> GroupsLaunch | None:
    """The launch of products whose arrays lie so, all with A and B in rows, or in columns where
    `transa` and `transb` say so; None where there is nothing to launch.

    Raises:
        UnsupportedProblem, CompileError, CompilerMissing, DeviceError: as `grouped_matmul`.
    """
    m, k = extents["a"].places.T[2:4]
    n = extents["b"].places.T[3]
    filled = (m > 0) & (n > 0)

    def pitches(role: str, columns: bool = False) -> NDArray[np.int64] | int:
        if role not in extents:
            return 0
        found = extents[role].leading(columns=columns)
        # Empty products have tight rows, whatever their arrays have; but all that is prepared
        # is read.
        return found if role in terms.prepared else found * filled

    problem = GemmProblem.of_groups(
        Groups.of(m, n, k, pitches("a", transa), pitches("b", transb), pitches("out")),
        alpha=terms.alpha,
        beta=terms.beta,
        epilogue=terms.epilogue,
        transa=transa,
        transb=transb,
        dtype=terms.dtype,
        out_dtype=terms.out_dtype,
        precision=terms.precision,
        prepared=terms.prepared,
        scales=terms.scales,
        alignment=alignment(low_bits(extents[role].places[:, 0] for role in ("a", "b", "out"))),
    )
    return groups_launch(
        problem,
        context,
        ldr=pitches("residual"),
        ldx=pitches("auxiliary"),
        scales=pitches_of_scales(extents, terms.scales),
    )


def launch_maker(terms: Terms, ordinal: int) -> Callable[..., GroupsLaunch | None]:
    """`products_launch` for products of these terms on the GPU of that ordinal."""
    return partial(products_launch, terms=terms, context=context_of(ordinal))


def _in_columns(extents: Extents) -> NDArray[np.int64]:
    """1 for matrices that are taken by columns: none or all of them, if they can be; else each."""
    if extents.in_rows.all():
        return np.zeros(len(extents.places), np.int64)
    if extents.in_columns.all():
        return np.ones(len(extents.places), np.int64)
    return (~extents.in_rows).astype(np.int64)
