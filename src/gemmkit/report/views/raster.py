"""The order in which blocks take tiles of C, and what each wave of blocks reads of A and B."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.analysis.explain import Facts
from gemmkit.analysis.occupancy import Occupancy
from gemmkit.analysis.raster import Raster, Wave, resident_blocks, words_of
from gemmkit.analysis.raster_probe import raster
from gemmkit.analysis.trace import Trace
from gemmkit.kernels.cut import Cut
from gemmkit.report.document import View
from gemmkit.report.layout import Cell, Column, Row, Table
from gemmkit.units import counted

_KIB, _MIB = 1 << 10, 1 << 20
# Waves that the table lists; the page has all.
_LISTED = 12


def raster_view(facts: Facts, traced: Trace, kernel: str) -> View | None:
    """Tiles by the order of the blocks of a kernel of that name, wave by wave; None where the order
    is not known."""
    occupied = facts.occupancy
    if occupied is None or not occupied.blocks_per_sm:
        return None
    found = raster(
        facts.kernel,
        traced,
        facts.plan,
        facts.binary,
        facts.problem,
        facts.gpu,
        config=facts.config,
    )
    if found is None or found.together > resident_blocks(occupied, facts.gpu):
        return None
    return _view(facts, replace(found, kernel=kernel), occupied)


def why_no_order(facts: Facts, kernel: str) -> str:
    """Why a kernel of that name has no `raster_view`, in a sentence or two."""
    problem, plan = facts.problem, facts.plan
    if plan.table is not None:
        why = "the launch computes products of different shapes, and a table gives their tiles out"
    elif problem.count > 1:
        why = f"the launch computes {problem.count:,} products, and it is found for one product"
    elif cut := _even_shares(facts):
        whole = cut.tiles - cut.cut_tiles
        return (
            f"{kernel} has no order of whole tiles. {cut.ctas:,} CTAs share the steps of k of "
            f"{cut.cut_tiles:,} of {counted(cut.tiles, 'tile')} evenly (stream-K), so that a work "
            f"unit may begin and end within a tile"
            + (
                f"; {counted(whole, 'tile')} {'is' if whole == 1 else 'are'} whole."
                if whole
                else "."
            )
        )
    else:
        why = (
            "it does not follow from blocks that run alone. Their tiles may come from a counter, "
            "be no rectangles of one size, or follow no rule in a large grid"
        )
    return f"The order of tiles of {kernel} is not shown: {why}."


def _even_shares(facts: Facts) -> Cut | None:
    """The cut of a kernel whose CTAs share tiles otherwise than in equal parts."""
    if facts.kernel.user_defined or not facts.kernel.shares_tiles:
        return None
    cut = facts.kernel.work(facts.problem, facts.config, facts.gpu).cut
    return cut if cut.cut_tiles else None


def _view(facts: Facts, found: Raster, occupied: Occupancy) -> View:
    resident = resident_blocks(occupied, facts.gpu)
    waves = list(found.waves(resident))
    rule = found.rule
    data = {
        "kernel": found.kernel,
        "intro": _intro(facts, found, occupied),
        "rows": found.tile_rows,
        "columns": found.tile_columns,
        "tile": [found.rows, found.columns],
        "parts": found.parts,
        "resident": found.together or resident,
        "in_turn": found.together > 0,
        "l2": facts.gpu.l2_bytes,
        # An order with a rule follows from it.
        "height": rule.height if rule else 0,
        "across": bool(rule and rule.across),
        "tiles": [] if rule else found.order.tolist(),
        "waves": [[each.a_bytes, each.b_bytes, each.by_rows, each.square] for each in waves],
        "note": _note(facts, found),
    }
    return View("raster", data, _table(facts, found, occupied, waves))


def _intro(facts: Facts, found: Raster, occupied: Occupancy) -> str:
    if found.together:
        most = -(-len(found.order) // found.together)
        return (
            f"{_said(found)}: {found.together:,} persistent blocks, up to {most} tiles for each in "
            "turn. A wave is a tile of each block here."
        )
    blocks, resident = found.parts * len(found.order), resident_blocks(occupied, facts.gpu)
    return (
        f"{_said(found)}. The grid has {counted(blocks, 'block')}; {resident:,} can be resident at "
        f"once on the {facts.gpu.name}, {occupied.blocks_per_sm} per SM."
    )


def _said(found: Raster) -> str:
    return f"Blocks take tiles of C {words_of(found.rule, found.tile_rows)}"


def _note(facts: Facts, found: Raster) -> str:
    blocks = found.together or found.parts * len(found.order)
    said = f"Derived from {found.ran:,} of {counted(blocks, 'block')}, run on the emulator."
    if found.parts > 1:
        said += f" The k of each tile is divided among {found.parts} layers of the grid."
    if any(facts.plan.residue):
        said += " Residue tiles, whose blocks come last, are not shown."
    return said


def _table(facts: Facts, found: Raster, occupied: Occupancy, waves: list[Wave]) -> Table:
    rows = tuple(
        Row(
            (
                Cell(str(number)),
                Cell(f"{each.count:,}"),
                *(
                    Cell(_kib(count))
                    for count in (each.a_bytes, each.b_bytes, each.a_bytes + each.b_bytes)
                ),
                Cell(_kib(each.by_rows)),
                Cell(_kib(each.square)),
            )
        )
        for number, each in enumerate(waves[:_LISTED], 1)
    )
    columns = (
        Column("wave"),
        Column("blocks"),
        Column("KiB of A"),
        Column("KiB of B"),
        Column("KiB of both"),
        Column("row by row"),
        Column("least"),
    )
    notes = [
        f"{_intro(facts, found, occupied)} The L2 holds {facts.gpu.l2_bytes / _MIB:g} MiB.",
        "Bytes are distinct ones that a wave reads; besides, those of both matrices in row-by-row "
        "order, and of the rectangle of tiles that reads least.",
        _note(facts, found),
    ]
    if len(waves) > _LISTED:
        notes.append(f"The first {_LISTED} of {len(waves)} waves.")
    return Table(f"Waves of {found.kernel}", columns, rows, tuple(notes))


def _kib(count: int) -> str:
    return f"{count / _KIB:,.0f}"
