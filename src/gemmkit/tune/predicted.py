"""The search without a GPU: candidates ranked by the times that the model predicts for a board."""

from __future__ import annotations

import gc
import multiprocessing
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from gemmkit.analysis.prediction import Prediction
from gemmkit.cores import usable_cores
from gemmkit.errors import GemmkitError, UsageError
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.catalog import find_kernel, tunable_kernels
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import TileConfig
from gemmkit.problem import GemmProblem
from gemmkit.tune.search import make_strategy
from gemmkit.tune.space import WITHIN, Allowed, Candidate, search_space

# What a process hands back: a prediction, where there is one, and warnings.
_Outcome = tuple[Prediction | None, list[Warning]]

# Called after each prediction: how many there are, and the leader's label and microseconds.
Told = Callable[[int, str, float], None]


@dataclass(frozen=True, slots=True)
class Predicted:
    """A candidate and what the model says of it. Nothing of this was measured."""

    candidate: Candidate
    prediction: Prediction


def rank_by_prediction(
    problem: GemmProblem,
    spec: GpuSpec,
    *,
    budget: float,
    strategy: str = "model",
    seed: int = 0,
    kernels: Sequence[str | Kernel] | None = None,
    within: float = WITHIN,
    cache_dir: Path | None = None,
    told: Told | None = None,
) -> list[Predicted]:
    """Candidates by predicted time, the fastest first: as many as the budget allows.

    The model runs a block of each candidate on the emulator, which takes about a second; that goes
    on in as many processes as there are cores. What the model cannot predict is left out.

    Args:
        problem: what is to be computed.
        spec: the board.
        budget: seconds.
        strategy: in which order candidates are predicted, as in `tune`.
        seed: of what the strategy leaves to chance.
        kernels: names or kernels; by default the production kernels for the type, and
            `warp_tiled` for boards without cp.async.
        within: leave out what is estimated to take that many times as long as the best.
        cache_dir: root of the caches; by default the user's.
        told: is called after each prediction.

    Raises:
        UsageError: an argument is not valid, or no kernel takes it.
    """
    begun = time.monotonic()
    asked = tunable_kernels([problem], spec) if kernels is None else kernels
    chosen = [find_kernel(each) if isinstance(each, str) else each for each in asked]
    allowed = [Allowed(kernel, spec) for kernel in chosen]
    space = search_space(problem, spec, allowed, within=within)
    candidates = space.candidates
    if not candidates or not problem.flops:
        reasons = space.nothing_left if problem.flops else "it has nothing to multiply"
        raise UsageError(f"no configuration is left to predict for {problem.shape} ({reasons})")
    search = make_strategy(strategy, candidates, seed)
    found: list[Predicted] = []
    pending: dict[Future[_Outcome], int] = {}
    workers = usable_cores()
    # A fork would carry the threads' locks along.
    context = multiprocessing.get_context("spawn")
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(workers, mp_context=context)
    try:
        while True:
            while len(pending) < workers + 1:
                number = search.ask()
                if number is None:
                    break
                each = candidates[number]
                job = pool.submit(_predict, each.kernel.name, each.config, problem, spec, cache_dir)
                pending[job] = number
            if not pending:
                break
            left = begun + budget - time.monotonic()
            # One at least, however short the budget.
            done, _ = wait(pending, max(left, 0.0) if found else None, FIRST_COMPLETED)
            if not done:
                break
            for job in done:
                number, (prediction, warned) = pending.pop(job), job.result()
                for message in warned:
                    warnings.warn(message, stacklevel=2)
                search.tell(number, prediction.microseconds if prediction else None)
                if prediction is not None:
                    found.append(Predicted(candidates[number], prediction))
            found.sort(key=lambda each: each.prediction.microseconds)
            if told is not None and found:
                told(len(found), found[0].candidate.label, found[0].prediction.microseconds)
    finally:
        # No worker may outlive the search, which the command line ends at once after Ctrl-C, nor
        # work on what came too late; the pool's semaphores are released with the pool.
        for worker in multiprocessing.active_children() if pending else ():
            if worker not in others:
                worker.terminate()
        pool.shutdown(cancel_futures=True)
        del pool, pending
        gc.collect()
    return found


def _predict(
    name: str, config: TileConfig, problem: GemmProblem, spec: GpuSpec, cache_dir: Path | None
) -> _Outcome:
    """In another process: the prediction, or None where the model has none, and what it warns of.

    The first process shows the warnings: each once, and as its user wants them shown.
    """
    from gemmkit.analysis.model import predict

    with warnings.catch_warnings(record=True) as seen:
        try:
            found = predict(find_kernel(name), problem, spec, config=config, cache_dir=cache_dir)
        except GemmkitError:
            found = None
    return found, [each.message for each in seen if isinstance(each.message, Warning)]
