"""What ragged groups get: one choice for any division of the rows, and why."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from gemmkit.dispatch.alike import choose_ragged
from gemmkit.dispatch.choose import Dispatcher, choose
from gemmkit.dispatch.which import which
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import find_board
from gemmkit.groups import Groups
from gemmkit.kernels.catalog import tunable_kernels
from gemmkit.kernels.production.ragged_wgmma import KERNEL, ragged_problem
from gemmkit.problem import GemmProblem
from gemmkit.report.decision import decision_text
from gemmkit.trials.entry import Entry, ProblemClass, gpu_key
from gemmkit.trials.freshness import Freshness, source_digest
from gemmkit.trials.store import Store

H100 = find_board("h100")
TYPES = {"dtype": "bfloat16", "transb": True}


def routed(rows, n=1408, k=2048, **rest):
    groups = Groups.of(np.asarray(rows), n, k, ragged=True)
    return GemmProblem.of_groups(groups, **{**TYPES, **rest})


def divided(total, groups, seed):
    return np.random.default_rng(seed).multinomial(total, np.full(groups, 1 / groups))


def test_any_division_of_as_many_rows_gets_the_same():
    even = choose(routed([64] * 64), H100, store=None)
    assert even.kernel is KERNEL
    for rows in (divided(4096, 64, 0), [4096, *[0] * 63], divided(4000, 64, 1)):
        found = choose(routed(rows), H100, store=None)
        assert (found.kernel, found.config) == (even.kernel, even.config)
        assert found.source == "heuristic"
    # The time is that of this division: one group of all rows reads one B.
    alone = choose(routed([4096, *[0] * 63]), H100, store=None)
    assert alone.microseconds < even.microseconds
    assert choose(routed([512] * 64), H100, store=None).config != even.config


def test_the_library_asks_for_the_same():
    for total in (128, 4096, 32768):
        problem = routed(divided(total, 64, 0))
        found = choose(problem, H100)
        asked = ragged_problem(total, 1408, 2048, 64, **TYPES)
        chosen = choose_ragged(asked, H100)
        assert (chosen.kernel, chosen.config) == (found.kernel, found.config)
    assert choose_ragged(ragged_problem(0, 8, 8, 3, **TYPES), H100) is None
    assert choose_ragged(ragged_problem(64, 1408, 2047, 3, **TYPES), H100) is None


@pytest.mark.parametrize(
    ("board", "rest"),
    [
        ("rtx3090", {}),
        ("h100", {"dtype": "float32"}),
        ("h100", {"k": 2047}),
        ("h100", {"alpha": 0.0}),
    ],
)
def test_where_no_kernel_reads_the_ends_groups_have_a_table(board, rest):
    problem, gpu = routed(divided(400, 8, 0), **rest), find_board(board)
    found = choose(problem, gpu, store=None)
    assert found.kernel.takes_groups
    other = choose(replace(problem, groups=replace(problem.groups, ragged=False)), gpu, store=None)
    assert (found.kernel, found.config) == (other.kernel, other.config)
    assert found.kernel.supports(problem, found.config, gpu) is None


def test_nothing_to_compute():
    assert "nothing to compute" in choose(routed([0, 0]), H100, store=None).reason


def test_what_was_tuned_for_one_division_serves_all(tmp_path):
    config = KERNEL.configure({"BM": 64, "BN": 64, "BK": 64, "consumers": 1})
    problem = routed(divided(4096, 64, 0))
    assert choose(problem, H100, store=None).config != config
    store = Store(tmp_path / "tuning.sqlite")
    store.put(
        Entry(
            gpu=gpu_key(H100),
            problem=ProblemClass.of(problem),
            kernel=KERNEL.name,
            config=config.as_dict(),
            outcome="ok",
            source=source_digest(KERNEL),
            compiler=Freshness().compiler,
            time_us=100.0,
            final=True,
        )
    )
    dispatcher = Dispatcher(H100, store)
    for seed in range(2):
        found = dispatcher.choose(routed(divided(4096, 64, seed)))
        assert (found.kernel, found.config, found.source) == (KERNEL, config, "store")
        assert not found.measured
    assert dispatcher.choose(routed(divided(32768, 64, 0))).config != config


def test_what_is_tried_for_them():
    problem = routed([57, 0, 200])
    tried = [each.name for each in tunable_kernels([problem], H100)]
    assert tried[0] == KERNEL.name
    assert {"grouped_wgmma", "grouped_mma", "grouped_typed"} <= set(tried)
    others = GemmProblem.of_groups("57x1408x2048,200x1408x2048", "nt", dtype="bfloat16")
    assert KERNEL not in tunable_kernels([others], H100)
    assert KERNEL not in tunable_kernels([others.product(0)], H100)
    # One configuration for all divisions of as many rows.
    classes = {ProblemClass.of(routed(divided(4096, 64, seed))) for seed in range(3)}
    assert len(classes) == 1
    (of_all,) = classes
    assert of_all.problem.ragged
    assert KERNEL.supports(of_all.problem, KERNEL.default, H100) is None


def test_which_explains_it():
    decision = which(routed([57, 0, 200]), H100, store=None)
    assert (decision.kernel, decision.groups) == (KERNEL.name, 3)
    assert decision.rows_per_group == (0, 257 / 3, 200)
    text = decision_text(decision)
    # The grid is that of all divisions of the rows.
    assert decision.busy_blocks < prod(decision.grid)
    assert f"; {decision.busy_blocks} have tiles of these rows" in text
    assert f"{decision.busy_blocks} blocks in {decision.waves:.2f} waves" in text
    assert "groups   3 of 0 to 200 rows each, 85.7 on average" in text
    assert "the same for any division of so many rows; this one is estimated at" in text
    assert f"limiter  {decision.limiter}" in text
    assert "a table of products for it at each call" in text
    # Of groups with a table, the limiter; of others, neither.
    grouped = which(GemmProblem.of_groups("57x64x64,200x64x64"), H100, store=None)
    assert (grouped.groups, grouped.rows_per_group) == (0, (0, 0.0, 0))
    assert grouped.limiter
    single = decision_text(which("512", H100, store=None))
    assert "limiter" not in single
    assert "groups  " not in single
    assert "2 of 1 row each" in decision_text(which(routed([1, 1]), H100, store=None))


@pytest.mark.parametrize("rows", [2**31, 2**53 + 1, 10**18 - 1])
def test_a_refusal_has_the_numbers_that_were_asked_for(rows):
    text = f"ragged:{rows}x64x64"
    with pytest.raises(UnsupportedProblem, match=f"no kernel takes {text}: .* m = {rows}: ind"):
        choose(GemmProblem.of_groups(text, dtype="bfloat16"), H100)
