"""Which strategy a product over ranks gets, and why: predicted for a board, without any GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import msgspec

from gemmkit.distributed.links import Link, link_of
from gemmkit.distributed.panel_predictions import PanelMesh, panel_predictions
from gemmkit.distributed.placements import Rule, Word, read_placement, rule
from gemmkit.distributed.predictions import Predicted, alone, predictions, product_time
from gemmkit.distributed.splits import shares
from gemmkit.distributed.strategy import Strategy
from gemmkit.distributed.timeline import Timeline
from gemmkit.errors import UnsupportedProblem, UsageError
from gemmkit.gpu import GpuSpec, find_board
from gemmkit.problem import GemmProblem, Shape, read_problem
from gemmkit.units import counted

# One placement, or one for each dimension of a mesh.
Placements = str | Sequence[str]


class DistributedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How ranks compute a product.

    `a`, `b` and `result` are placements, on a mesh those along each of its dimensions; `form` is
    what travels ("gather": shares of an operand, "panels": those of k, "scatter" and "reduce":
    sums, "local": nothing), `travels` the matrix, and `first` what is redistributed before.
    `alone_us` is the time of this rank's product without communication. `strategies` are all that
    were considered, the chosen one first, then by predicted time.
    """

    shape: str
    dtype: str
    gpu: str
    ranks: int
    mesh: tuple[int, ...]
    a: str
    b: str
    result: str
    form: str
    travels: str
    first: tuple[str, ...]
    alone_us: float
    link: str
    strategies: tuple[Predicted, ...]

    @property
    def chosen(self) -> Predicted:
        """The fastest, but for more parts that gain little."""
        return self.strategies[0]

    @property
    def ranks_text(self) -> str:
        """The ranks, of a mesh by its dimensions."""
        return "×".join(map(str, self.mesh))

    def to_json(self) -> str:
        """One line of JSON."""
        return msgspec.json.encode(self).decode()


def plan(
    shape: Shape,
    ranks: int | Sequence[int],
    placements: tuple[Placements, Placements],
    placement: Placements | None = None,
    *,
    gpu: str | GpuSpec = "H200",
    copies: bool | None = None,
) -> DistributedPlan:
    """How ranks would compute a product; no GPU and no PyTorch is needed.

    Args:
        shape: the whole problem: M×N×K, or a `GemmProblem` with types and epilogue.
        ranks: how many there are, one GPU each, on one host; or those along each dimension of a
            mesh, such as (2, 2).
        placements: of A and B: "S(0)", "S(1)", "R" or "P"; on a mesh one for each dimension.
        placement: that of the result; by default what follows from those of A and B.
        gpu: the board.
        copies: whether the ranks' GPUs write to each other's memory; by default as the board's
            table of links says.

    Raises:
        UsageError: a placement or a number is not valid.
        UnsupportedProblem: there is no such product, or on a mesh something else travels than
            panels of k.
    """
    asked = _read(shape, ranks, placements, placement, gpu)
    found, board, problem = asked.rules[0], asked.board, asked.problem
    link = link_of(board, asked.ranks)
    if copies is not None:
        link = msgspec.structs.replace(link, copies=copies)
    if asked.panels is None:
        whole, travels = alone(problem, asked.ranks, found), _travels(found)
        form: str = found.form
    else:
        whole, form = _own_part(asked), "local" if asked.panels.ranks == 1 else "panels"
        names = [name for name, over in zip("AB", asked.panels, strict=True) if over > 1]
        travels = "nothing" if form == "local" else f"panels of {' and '.join(names)}"
    first = [
        f"{name}: {before} → {after}"
        for name, before, after in (
            ("A", asked.a[0], found.a),
            ("B", asked.b[0], found.b),
        )
        if before != after and asked.panels is None
    ]
    return DistributedPlan(
        shape=problem.shape,
        dtype=problem.dtype,
        gpu=board.name,
        ranks=asked.ranks,
        mesh=asked.mesh,
        a=" ".join(asked.a),
        b=" ".join(asked.b),
        result=" ".join(each.result for each in asked.rules),
        form=form,
        travels=travels,
        first=tuple(first),
        alone_us=product_time(whole, board),
        link=link.source,
        strategies=tuple(each for each, _ in _predictions(asked, link)),
    )


class _Asked(NamedTuple):
    """What is planned: `a` and `b` are placements, `rules` are along each dimension of the mesh,
    `panels` over how many ranks k of A and of B is spread where panels of it travel."""

    problem: GemmProblem
    board: GpuSpec
    mesh: tuple[int, ...]
    a: tuple[Word, ...]
    b: tuple[Word, ...]
    rules: tuple[Rule, ...]
    panels: PanelMesh | None

    @property
    def ranks(self) -> int:
        return prod(self.mesh)


def _read(
    shape: Shape,
    ranks: int | Sequence[int],
    placements: tuple[Placements, Placements],
    placement: Placements | None,
    gpu: str | GpuSpec,
) -> _Asked:
    problem, board = read_problem(shape), find_board(gpu)
    if problem.batch != 1 or problem.groups is not None:
        raise UnsupportedProblem("over several ranks there are products of matrices, no batches")
    mesh = (ranks,) if isinstance(ranks, int) else tuple(ranks)
    for each in mesh:
        # Refuses what is not a valid number of ranks.
        shares(1, each)
    a, b = (_words(each, len(mesh)) for each in placements)
    result = (None,) * len(mesh) if placement is None else _words(placement, len(mesh))
    bytes_a = problem.m * problem.k * problem.item_bytes
    bytes_b = problem.k * problem.n * problem.item_bytes
    rules = tuple(
        rule(of_a, of_b, wanted, bytes_a=bytes_a, bytes_b=bytes_b)
        for of_a, of_b, wanted in zip(a, b, result, strict=True)
    )
    return _Asked(problem, board, mesh, a, b, rules, _panels(mesh, a, b, rules))


def _words(given: Placements, dimensions: int) -> tuple[Word, ...]:
    """A placement for each dimension of a mesh.

    Raises:
        UsageError: there are more or fewer.
    """
    words = [given] if isinstance(given, str) else list(given)
    if len(words) != dimensions:
        raise UsageError(
            f"{counted(len(words), 'placement')} for a mesh of {counted(dimensions, 'dimension')}: "
            "give one for each"
        )
    return tuple(read_placement(each) for each in words)


def _panels(
    mesh: tuple[int, ...], a: Sequence[Word], b: Sequence[Word], rules: Sequence[Rule]
) -> PanelMesh | None:
    """Over how many ranks k of A and of B is spread; None for another product over one dimension.

    Raises:
        UnsupportedProblem: another product over a mesh, or a side is spread over two dimensions.
    """
    over = [1, 1]
    for words in (a, b, [each.result for each in rules]):
        spread = [each for each in words if each in ("S(0)", "S(1)")]
        if len(set(spread)) < len(spread):
            raise UnsupportedProblem(f"{spread[0]} over two dimensions of a mesh: take one")
    for size, have, each in zip(mesh, zip(a, b, strict=True), rules, strict=True):
        if have in (("S(1)", "S(1)"), ("S(0)", "S(0)")):
            over[have == ("S(0)", "S(0)")] = size
        elif len(mesh) == 1:
            return None
        elif size > 1 and (each.form != "local" or (each.a, each.b) != have):
            raise UnsupportedProblem(
                f"on a mesh, panels of k are planned: A {' '.join(a)} and B {' '.join(b)} have "
                "others travel; S(0) S(1) of both is SUMMA's placement"
            )
    return PanelMesh(*over)


def _own_part(asked: _Asked) -> GemmProblem:
    """The first rank's product, where panels travel."""
    m, n = asked.problem.m, asked.problem.n
    for size, each in zip(asked.mesh, asked.rules, strict=True):
        m = shares(m, size)[0].size if each.made == "S(0)" else m
        n = shares(n, size)[0].size if each.made == "S(1)" else n
    return asked.problem.resized(m, n, asked.problem.k)


def _predictions(asked: _Asked, link: Link) -> list[tuple[Predicted, Timeline | None]]:
    if asked.panels is None:
        return predictions(asked.problem, asked.ranks, asked.rules[0], asked.board, link)
    return panel_predictions(_own_part(asked), asked.panels, asked.board, link)


def _travels(found: Rule) -> str:
    if found.form == "gather":
        return "B" if found.transposes else "A"
    return {"local": "nothing"}.get(found.form, "sums of C")


@lru_cache(maxsize=1024)
def best_strategy(
    problem: GemmProblem, ranks: int, found: Rule, board: GpuSpec, copies: bool
) -> Strategy:
    """The strategy with the shortest predicted time, of those that a group of ranks has."""
    link = msgspec.structs.replace(link_of(board, ranks), copies=copies)
    predicted, _ = predictions(problem, ranks, found, board, link)[0]
    return Strategy() if predicted.strategy == "local" else Strategy.parse(predicted.strategy)


@lru_cache(maxsize=1024)
def best_panel_strategy(
    problem: GemmProblem, mesh: PanelMesh, board: GpuSpec, *, copies: bool, parts_only: bool
) -> Strategy:
    """The same where panels of k travel; `problem` is a rank's, with all of k. With `parts_only`,
    each panel is multiplied by itself."""
    link = msgspec.structs.replace(link_of(board, mesh.ranks), copies=copies)
    found = panel_predictions(problem, mesh, board, link, parts_only=parts_only)
    return Strategy.parse(found[0][0].strategy) if found else Strategy("group", "parts", 1)


def predicted_timeline(
    shape: Shape,
    ranks: int | Sequence[int],
    placements: tuple[Placements, Placements],
    placement: Placements | None = None,
    *,
    strategy: str | None = None,
    gpu: str | GpuSpec = "H200",
) -> Timeline:
    """When products and transfers of all ranks would run.

    Args:
        shape: as for `plan`.
        ranks: as for `plan`.
        placements: as for `plan`.
        placement: as for `plan`.
        strategy: by its text; by default the fastest that has a timeline.
        gpu: the board.

    Returns:
        The intervals of all ranks, in microseconds, and when the last rank is done. Ranks of a mesh
        count along its last dimension first.

    Raises:
        UsageError, UnsupportedProblem: as `plan`; the strategy has no timeline, since one exchange
            comes before or after one product.
    """
    asked = _read(shape, ranks, placements, placement, gpu)
    for predicted, timeline in _predictions(asked, link_of(asked.board, asked.ranks)):
        if timeline is not None and strategy in (None, predicted.strategy):
            return timeline
    raise UsageError(
        f"strategy {strategy or 'collective'}: there is no timeline of it for this product"
    )
