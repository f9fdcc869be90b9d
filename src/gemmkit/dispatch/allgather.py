"""`choose_allgather`: the configuration of a product whose A is gathered from several GPUs while it
runs, in one launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemmkit.dispatch.choose import Choice, choose, dispatcher
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.plan import TileConfig
from gemmkit.kernels.production.allgather_wgmma import SINGLE, allgather_kernel
from gemmkit.problem import GemmProblem


def choose_allgather(problem: GemmProblem, ranks: int, rows: int, gpu: GpuSpec) -> Choice:
    """What multiplies the rows of several ranks in one launch, to the bits of the product on one
    GPU; its time is that with all rows there.

    Args:
        problem: the product of all rows of A by this GPU's B.
        ranks: how many ranks have a share of the rows.
        rows: of each share, but for the last one, which may be shorter.
        gpu: the board.

    Raises:
        UnsupportedProblem: nothing does; the text says why.
    """
    kernel = allgather_kernel(ranks, rows)
    whole = choose(problem, gpu)
    if whole.kernel is not SINGLE:
        raise UnsupportedProblem(
            f"{problem.shape} is multiplied by '{whole.kernel.name}', and only '{SINGLE.name}' has "
            "a counterpart whose tiles wait for the rows that they read"
        )
    reason = kernel.supports(problem, whole.config, gpu)
    if reason is None:
        return replace(whole, kernel=kernel)
    if whole.config["cluster_k"] == 1 and kernel.accepts(problem, gpu) is None:
        reason = f"no tile of '{SINGLE.name}' divides shares of {rows} rows"
        for other, of in _others(problem, whole, rows, gpu):
            if kernel.supports(problem, other.config, gpu) is None:
                why = f"its tiles divide shares of {rows} rows, as those of {whole.config} do not"
                time = other.microseconds * _estimate(problem, other.config, gpu) / of
                return Choice(kernel, other.config, why, "heuristic", time)
    raise UnsupportedProblem(reason)


def _others(
    problem: GemmProblem, whole: Choice, rows: int, gpu: GpuSpec
) -> Iterator[tuple[Choice, float]]:
    """What a share by itself gets, then others, those with the shortest estimates first; and the
    estimate for what its time is of."""
    of_share = problem.resized(rows, problem.n, problem.k)
    share = choose(of_share, gpu)
    if share.kernel is SINGLE:
        yield share, _estimate(of_share, share.config, gpu)
    here = _estimate(problem, whole.config, gpu)
    for each in dispatcher(gpu).ranked(problem):
        if each.costed.kernel is SINGLE:
            yield replace(whole, config=each.costed.config), here


def _estimate(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> float:
    return dispatcher(gpu).costed(SINGLE.name, config).estimate(problem).microseconds
