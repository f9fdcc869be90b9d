"""`which`: what dispatch chooses for a problem, how it is launched, and why others lose."""

from __future__ import annotations

from itertools import islice
from math import prod

import msgspec

from gemmkit.analysis.limiters import limiter_of_groups
from gemmkit.dispatch.candidates import GUIDE_TILES, SizeClass, size_class
from gemmkit.dispatch.choose import Choice, Dispatcher, Source
from gemmkit.dispatch.costed import CostedCandidate
from gemmkit.dispatch.prices import Ranked
from gemmkit.dispatch.runners_up import why_it_loses
from gemmkit.dispatch.tuned import StoreChoice
from gemmkit.epilogue import Epilogue
from gemmkit.gpu import DEFAULT_BOARD, GIB, GpuSpec, find_board
from gemmkit.kernels.asked import Asked
from gemmkit.kernels.layouts import read_layout
from gemmkit.kernels.plan import Dim3, LaunchPlan
from gemmkit.problem import GemmProblem, Shape
from gemmkit.trials.entry import VECTOR_BYTES

ALTERNATIVES = 3


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate that was not chosen: its estimate in microseconds, and why it loses.

    `by_size` marks the tile that the seven-level guide has for problems of this size.
    """

    kernel: str
    config: dict[str, int]
    estimate_us: float
    why: str
    by_size: bool = False


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What would be launched for a problem on a board, and why.

    `time_us` was `measured` where this very problem was, else it is estimated, and `tflops` is the
    speed at that time, 0 where nothing is multiplied; `estimate_us` is the closed-form time in any
    case. `waves` is the grid's blocks over those that the board holds at once, `blocks_per_sm` what
    an SM holds, `busy` the share of all SMs' time, 0 to 1, in which each has a block, and `parts`
    the blocks that share the k of a tile, 1 where none do. `residue`, `chunks`, `rasterized` and
    `dependent` are those of a `LaunchPlan`; `stages` are those of the launch, 0 of a kernel that
    has none, and `fewer_stages` says why these are fewer than the configuration's, if they are.
    `copied` are operands that a launch before leaves in the workspace, `copied_as` in which form,
    reading and writing `copied_bytes`. `prepared` are those operands, "a", "b" or "ab", of which
    copies were made before, in `prepared_bytes` of memory: only those of which the kernel reads
    copies. `size` is what the guide calls the problem. Its matrices take `stored_bytes`, and the
    board has `memory_bytes`, 0 where that is not known.
    Of groups, `limiter` says which unit they keep busy and what else costs time, and of ragged ones
    `groups` is their number, `rows_per_group` the fewest, the mean and the most rows of one, and
    `busy_blocks` the blocks of the grid that have tiles in this division of the rows, where others
    have none: the grid is that of all divisions. They are "", 0 and zeros of other problems.
    `alternatives` are the next candidates by their estimates, and the one that its size alone would
    suggest.
    """

    shape: str
    layout: str
    dtype: str
    out_dtype: str
    precision: str
    scales: str
    alpha: float
    beta: float
    epilogue: str
    aligned: bool
    gpu: str
    kernel: str
    config: dict[str, int]
    source: Source
    reason: str
    size: SizeClass
    time_us: float
    measured: bool
    tflops: float
    estimate_us: float
    grid: Dim3
    block: Dim3
    waves: float
    blocks_per_sm: int
    busy: float
    parts: int
    residue: tuple[int, int]
    chunks: int
    rasterized: bool
    dependent: bool
    stages: int
    fewer_stages: str
    copied: tuple[str, ...]
    copied_as: str
    copied_bytes: int
    prepared: str
    prepared_bytes: int
    stored_bytes: int
    memory_bytes: int
    limiter: str
    groups: int
    rows_per_group: tuple[int, float, int]
    busy_blocks: int
    alternatives: tuple[Alternative, ...]

    def to_json(self) -> str:
        """One line of JSON."""
        return msgspec.json.encode(self).decode()


def which(
    shape: Shape,
    gpu: str | GpuSpec | None = None,
    *,
    alpha: float | None = None,
    beta: float | None = None,
    epilogue: str | Epilogue | None = None,
    layout: str | None = None,
    dtype: str | None = None,
    out_dtype: str | None = None,
    precision: str | None = None,
    prepared: str | None = None,
    scales: str | None = None,
    store: StoreChoice = "user",
    alternatives: int = ALTERNATIVES,
) -> Decision:
    """What dispatch chooses for a problem; nothing is compiled, and no GPU is needed.

    Args:
        shape: a string `MxNxK`, a number for a cube, (M, N, K), or a problem.
        gpu: the board or its name, by default an RTX 3090.
        alpha: the factor of A·B, by default the problem's own, which for a shape is 1.
        beta: the factor of the previous C, by default the problem's own, which for a shape is 0.
        epilogue: fused into the write-back (see `Epilogue.parse`); by default the problem's own.
        layout: the layout of A and B: "NN", "NT", "TN" or "TT"; by default the problem's own.
        dtype: the type of A and B, by default the problem's own, which for a shape is float32.
        out_dtype: the type of C, by default the same.
        precision: how float32 may be multiplied: "ieee", "fp32" or "tf32" (see `GemmProblem`); by
            default the problem's own, which for a shape is "ieee".
        prepared: the operands that are prepared (see `gemmkit.prepare`): "a", "b" or "ab"; by
            default the problem's own, which for a shape are none.
        scales: of A and B of 8 bits: "tensor", "rows" or "blocks", or a word for each (see
            `Scales.parse`); by default the problem's own.
        store: "user" for the user's own store of tuned shapes, another store or its path, or None.
        alternatives: how many of the next candidates are listed.

    Raises:
        UsageError: an argument is not valid.
        UnsupportedProblem: no kernel accepts the problem.
    """
    problem = Asked(
        alpha=alpha,
        beta=beta,
        epilogue=epilogue,
        dtype=dtype,
        out_dtype=out_dtype,
        precision=precision,
        scales=scales,
        prepared=prepared,
    ).problem(shape)
    if layout is not None:
        problem = problem.laid_out(read_layout(layout))
    if gpu is None:
        gpu = DEFAULT_BOARD
    board = find_board(gpu)
    # Not the one that `choose` keeps: another process may have tuned since.
    dispatcher = Dispatcher(board, store)
    choice = dispatcher.choose(problem)
    chosen = dispatcher.costed(choice.kernel.name, choice.config)
    own = chosen.estimate(problem)
    best = Ranked(chosen, own)
    plan = choice.kernel.plan(problem, choice.config, board)
    fewer = plan.fewer_stages
    return Decision(
        shape=problem.shape,
        alpha=problem.alpha,
        beta=problem.beta,
        epilogue=str(problem.epilogue),
        layout=problem.layout,
        dtype=problem.dtype,
        out_dtype=problem.result_dtype,
        precision=problem.precision,
        scales=str(problem.scales),
        aligned=problem.is_aligned(VECTOR_BYTES),
        gpu=board.name,
        kernel=choice.kernel.name,
        config=choice.config.as_dict(),
        source=choice.source,
        reason=choice.reason,
        size=size_class(problem),
        time_us=choice.microseconds,
        measured=choice.measured,
        tflops=_tflops(problem, choice.microseconds),
        estimate_us=own.microseconds,
        grid=plan.grid,
        block=plan.block,
        waves=own.waves,
        blocks_per_sm=own.blocks_per_sm,
        busy=own.busy,
        parts=own.work.parts,
        residue=plan.residue,
        chunks=plan.chunks,
        rasterized=plan.rasterized,
        dependent=plan.dependent,
        stages=fewer.number if fewer is not None else choice.config.stages or 0,
        fewer_stages=fewer.reason if fewer is not None else "",
        copied=plan.copied,
        copied_as=_purpose(plan),
        copied_bytes=own.work.copied_bytes,
        prepared="".join(each.operand.lower() for each in plan.prepared),
        prepared_bytes=sum(each.nbytes for each in plan.prepared),
        stored_bytes=problem.stored_bytes,
        memory_bytes=board.memory_gib * GIB,
        limiter=_limiter(problem, choice, board),
        groups=problem.count if problem.ragged else 0,
        rows_per_group=_rows_per_group(problem),
        busy_blocks=own.work.ctas if problem.ragged and own.work.ctas < prod(plan.grid) else 0,
        alternatives=tuple(
            Alternative(
                kernel=each.costed.kernel.name,
                config=each.costed.config.as_dict(),
                estimate_us=each.estimate.microseconds,
                why=why_it_loses(each, best, problem, entered=choice.source != "heuristic"),
                by_size=_by_size(each, problem),
            )
            for each in _others(dispatcher, chosen, problem, alternatives)
        ),
    )


def _limiter(problem: GemmProblem, choice: Choice, board: GpuSpec) -> str:
    if problem.groups is None or not (problem.flops and problem.alpha):
        return ""
    return limiter_of_groups(problem, choice.kernel, choice.config, choice.microseconds, board)


def _rows_per_group(problem: GemmProblem) -> tuple[int, float, int]:
    groups = problem.groups
    if groups is None or not groups.ragged or not groups.count:
        return 0, 0.0, 0
    return int(groups.m.min()), groups.rows / groups.count, int(groups.m.max())


def _purpose(plan: LaunchPlan) -> str:
    """The form in which the kernel reads copies of operands, made by a launch before or earlier."""
    makers = (plan.before, *(each.maker for each in plan.prepared))
    return next((each.purpose for each in makers if each is not None), "")


def _tflops(problem: GemmProblem, microseconds: float) -> float:
    """The speed; 0 where nothing is multiplied. BLAS: α = 0 never reads A or B."""
    return problem.flops / microseconds / 1e6 if microseconds and problem.alpha else 0.0


def _others(
    asked: Dispatcher, chosen: CostedCandidate, problem: GemmProblem, count: int
) -> list[Ranked]:
    """The next candidates, and the one that the size alone suggests, unless it was chosen.

    There are none where nothing is to be computed: all are the same.
    """
    if not problem.results:
        return []
    others = [
        each
        for each in asked.ranked(problem)
        if (each.costed.kernel, each.costed.config) != (chosen.kernel, chosen.config)
    ]
    found = others[:count]
    if not any(
        _by_size(each, problem) for each in (Ranked(chosen, chosen.estimate(problem)), *found)
    ):
        found += islice((each for each in others if _by_size(each, problem)), 1)
    return found


def _by_size(ranked: Ranked, problem: GemmProblem) -> bool:
    config = ranked.costed.config
    shares_tiles = ranked.costed.kernel.shares_tiles
    return not shares_tiles and GUIDE_TILES[size_class(problem)] == (config.BM, config.BN)
