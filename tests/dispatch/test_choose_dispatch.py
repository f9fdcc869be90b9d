"""Choices: the order of the sources, what is wrong with a source, and what always holds."""

from __future__ import annotations

import dataclasses
import random
import warnings

import msgspec
import pytest

from gemmkit import dispatch
from gemmkit.dispatch import choose as choose_module
from gemmkit.dispatch import remembered, tuned
from gemmkit.dispatch.candidate import Candidate
from gemmkit.dispatch.choose import Dispatcher, choose
from gemmkit.dispatch.costed import CostedCandidate
from gemmkit.dispatch.tuned import MOST_DISTANCE, distance_between, shipped_table
from gemmkit.epilogue import Epilogue
from gemmkit.errors import TuningError, UnsupportedProblem, UsageError
from gemmkit.gpu import BOARDS, find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.limits import MAX_EXTENT
from gemmkit.problem import GemmProblem
from gemmkit.trials.entry import Entry, ProblemClass, gpu_key
from gemmkit.trials.exchange import decode_table, write_table
from gemmkit.trials.freshness import Freshness, source_digest
from gemmkit.trials.store import Store
from gemmkit.units import microseconds_text

H100 = find_board("h100")
PROBLEM = GemmProblem(1000, 1200, 800)
# Not what the heuristic would take anywhere.
SLOW = {"BM": 8, "BN": 32}
OTHER = {"BM": 32, "BN": 32}


def entry(problem=PROBLEM, kernel="naive", config=SLOW, **changes) -> Entry:
    fields = {
        "gpu": gpu_key(H100),
        "problem": ProblemClass.of(problem),
        "kernel": kernel,
        "config": config,
        "outcome": "ok",
        "source": source_digest(find_kernel(kernel)),
        "compiler": "13.5",
        "time_us": 50.0,
        "final": True,
    }
    return Entry(**(fields | changes))


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store.sqlite3", Freshness(compiler="13.5"))


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Ships a table of entries, of the H100 unless another board is named, and no others."""
    (tmp_path / "tables").mkdir()
    monkeypatch.setattr(tuned, "shipped_file", lambda *names: tmp_path.joinpath(*names))

    def ship(*entries: Entry, board=H100) -> None:
        write_table(tmp_path / "tables" / f"{board.key}.json", entries)
        shipped_table.cache_clear()
        tuned._tables_of.cache_clear()
        choose_module._dispatcher.cache_clear()

    ship()
    yield ship
    shipped_table.cache_clear()
    tuned._tables_of.cache_clear()
    choose_module._dispatcher.cache_clear()


def chosen(problem=PROBLEM, store=None):
    found = Dispatcher(H100, store).choose(problem)
    return found.source, found.kernel.name, found.config.as_dict()


# --- sources in their order ---------------------------------------------------------------------


def test_without_measurements_the_heuristic_decides(table, store):
    found = Dispatcher(H100, store).choose(PROBLEM)
    assert found.source == "heuristic"
    ranked = Dispatcher(H100, None).ranked(PROBLEM)
    assert found.microseconds == min(each.estimate.microseconds for each in ranked)
    assert "no tuned shape is near" in found.reason
    assert microseconds_text(found.microseconds) in found.reason


def test_the_store_goes_before_the_table(table, store):
    table(entry(config=OTHER))
    store.put(entry())
    found = Dispatcher(H100, store).choose(PROBLEM)
    assert (found.source, found.config.as_dict()) == ("store", SLOW)
    assert found.microseconds == 50.0
    assert "your store" in found.reason
    assert "38.4 TFLOP/s" in found.reason


def test_the_table_goes_before_the_heuristic(table, store):
    table(entry(config=OTHER))
    found = Dispatcher(H100, store).choose(PROBLEM)
    assert (found.source, found.config.as_dict()) == ("shipped table", OTHER)
    assert "table for H100" in found.reason


def test_a_table_is_for_boards_with_the_same_sms(table):
    table(entry(config=OTHER))
    fewer = dataclasses.replace(H100, sm_count=114)
    assert Dispatcher(fewer, None).choose(PROBLEM).source == "heuristic"
    assert Dispatcher(find_board("a100"), None).choose(PROBLEM).source == "heuristic"
    h200 = find_board("h200")
    found = Dispatcher(h200, None).choose(PROBLEM)
    assert (found.source, found.config.as_dict()) == ("shipped table", OTHER)
    assert "in the table for H100, which has the same SMs," in found.reason
    assert not found.measured
    here, there = (
        CostedCandidate(Candidate("naive", found.config), board).estimate(PROBLEM).microseconds
        for board in (h200, H100)
    )
    assert found.microseconds == pytest.approx(50.0 * here / there)


def test_entries_of_a_board_with_other_memory_must_hold_where_memory_decides(table):
    # 86 blocks won on the H100; the H200's memory is faster than what five SMs of a group read.
    few = GemmProblem(16, 11008, 4096, dtype="bfloat16").laid_out("nt")
    large = GemmProblem(4096, 4096, 4096, dtype="bfloat16").laid_out("nt")
    ones = {"pingpong": 1, "cluster_m": 1, "cluster_n": 1, "cluster_k": 1}
    wide = {"BM": 32, "BN": 128, "BK": 64, "stages": 8, "consumers": 1, **ones}
    square = {"BM": 128, "BN": 128, "BK": 64, "stages": 6, "consumers": 2, **ones}
    table(
        entry(few, kernel="gemm_wgmma", config=wide, time_us=34.0),
        entry(large, kernel="gemm_wgmma", config=square, time_us=1.0),
    )
    assert Dispatcher(H100, None).choose(few).config.as_dict() == wide
    h200 = Dispatcher(find_board("h200"), None)
    assert h200.choose(few).source == "heuristic"
    assert h200.choose(large).config.as_dict() == square


def test_a_boards_own_entries_go_before_those_of_others(table):
    h200 = find_board("h200")
    other = GemmProblem(2000, 1200, 800)
    table(entry(config=OTHER, time_us=1.0), entry(other, config=OTHER))
    table(entry(gpu=gpu_key(h200)), board=h200)
    dispatcher = Dispatcher(h200, None)
    assert dispatcher.choose(PROBLEM).config.as_dict() == SLOW
    assert dispatcher.choose(PROBLEM).measured
    assert dispatcher.choose(other).config.as_dict() == OTHER


def test_the_class_counts_not_scale_or_epilogue(table, store):
    store.put(entry())
    other = dataclasses.replace(PROBLEM, alpha=2.0, beta=1.0, epilogue=Epilogue(bias=True))
    assert chosen(other, store)[0] == "store"


@pytest.mark.parametrize(
    "changes",
    [
        {"epilogue": Epilogue(bias=True)},
        {"beta": 1.0},
        {"alpha": 0.0},
        {"alpha": -2.0},
        {"ldc": 1300},
        {"lda": 804, "ldb": 1204},
    ],
    ids=str,
)
@pytest.mark.parametrize("where", ["store", "shipped table"])
def test_a_time_is_measured_where_this_very_problem_was(table, store, where, changes):
    table(entry()) if where == "shipped table" else store.put(entry())
    exact = Dispatcher(H100, store).choose(PROBLEM)
    assert (exact.measured, exact.microseconds) == (True, 50.0)
    alike = Dispatcher(H100, store).choose(dataclasses.replace(PROBLEM, **changes))
    assert (alike.source, alike.config) == (where, exact.config)
    assert not alike.measured
    assert "estimated at" in alike.reason
    assert "TFLOP/s" not in alike.reason


def test_what_is_estimated_of_a_winner_starts_from_its_time(table, store):
    """β = 1 reads C too: somewhat longer than what was measured, whatever the closed form says."""
    store.put(entry(time_us=500.0))
    alike = Dispatcher(H100, store).choose(dataclasses.replace(PROBLEM, beta=1.0))
    assert 400 < alike.microseconds < 700


def test_other_alignment_is_another_class(table, store):
    store.put(entry())
    assert chosen(dataclasses.replace(PROBLEM, lda=801), store)[0] != "store"


def test_times_with_the_same_epilogue_go_first(table, store):
    store.put(entry(time_us=50.0), entry(config=OTHER, time_us=60.0, epilogue="relu"))
    fused = dataclasses.replace(PROBLEM, epilogue=Epilogue(activation="relu"))
    assert chosen(fused, store)[2] == OTHER
    assert chosen(PROBLEM, store)[2] == SLOW
    table(entry(time_us=50.0), entry(config=OTHER, time_us=60.0, epilogue="relu"))
    assert chosen(fused)[2] == OTHER
    assert chosen(PROBLEM)[2] == SLOW


@pytest.mark.parametrize("where", ["store", "shipped table"])
def test_types_of_16_bits_have_each_other_s_measurements(table, store, where):
    bfloat16 = GemmProblem(1000, 1024, 1024, dtype="bfloat16")
    won = {"BM": 64, "BN": 64, "BK": 64, "stages": 3, "consumers": 1, "cluster_m": 1}
    config = find_kernel("gemm_wgmma").configure(won).as_dict()
    of_one = entry(bfloat16, kernel="gemm_wgmma", config=config)
    if where == "store":
        store.put(of_one)
    else:
        table(of_one)
    dispatcher = Dispatcher(H100, store)
    own = dispatcher.choose(bfloat16)
    assert (own.source, own.config.as_dict(), own.measured) == (where, config, True)
    found = dispatcher.choose(GemmProblem(1000, 1024, 1024, dtype="float16"))
    assert (found.source, found.config.as_dict(), found.measured) == (where, config, False)
    wide = dataclasses.replace(bfloat16, dtype="float16", out_dtype="float32")
    assert dispatcher.choose(wide).source == "heuristic"


# --- the nearest tuned shape --------------------------------------------------------------------


def winner(problem: GemmProblem, speed: float = 1.0) -> Entry:
    """As if the heuristic's second choice had won, in so many times what was estimated for it."""
    second = list(Dispatcher(H100, None).ranked(problem))[1]
    costed = second.costed
    return entry(
        problem,
        costed.kernel.name,
        costed.config.as_dict(),
        time_us=second.estimate.microseconds * speed,
    )


@pytest.mark.parametrize("where", ["table", "store"])
def test_a_winner_nearby_is_taken(table, store, where):
    near = GemmProblem(1040, 1200, 800)
    won = winner(near, 0.9)
    table(won) if where == "table" else store.put(won)
    found = Dispatcher(H100, store).choose(PROBLEM)
    assert found.source == "nearest tuned shape"
    assert (found.kernel.name, found.config.as_dict()) == (won.kernel, won.config)
    assert "1040x1200x800" in found.reason


def test_rows_that_are_not_aligned_are_no_guide_to_those_that_are(table):
    aligned, not_aligned = GemmProblem(1040, 1200, 800), GemmProblem(1041, 1201, 801)
    table(winner(not_aligned, 0.9))
    assert chosen(aligned)[0] == "heuristic"
    assert chosen(GemmProblem(1043, 1203, 803))[0] == "nearest tuned shape"
    table(winner(aligned, 0.9))
    assert chosen(not_aligned)[0] == "nearest tuned shape"


def test_a_winner_far_away_is_not(table):
    table(winner(GemmProblem(2000, 1200, 800), 0.9))
    assert chosen()[0] == "heuristic"


def test_a_winner_that_promises_less_here_is_not(table):
    """It won there in a time that its estimate, so corrected, does not bear out here."""
    near = GemmProblem(1040, 1200, 800)
    slow = list(Dispatcher(H100, None).ranked(near))[-1]
    table(
        entry(
            near,
            slow.costed.kernel.name,
            slow.costed.config.as_dict(),
            time_us=slow.estimate.microseconds,
        )
    )
    assert chosen()[0] == "heuristic"


def test_an_estimate_that_a_measurement_contradicts_is_no_guide(table):
    table(entry(GemmProblem(1040, 1200, 800), time_us=0.5))
    assert chosen()[0] == "heuristic"


def test_distance():
    def of(m, n, k, aligned=True):
        return ProblemClass(m=m, n=n, k=k, aligned=aligned)

    here = of(1024, 512, 256)
    assert distance_between(here, here) == 0
    assert distance_between(here, of(2048, 512, 256)) == pytest.approx(1)
    assert distance_between(here, of(2048, 1024, 256)) == pytest.approx(2**0.5)
    assert 0 < distance_between(here, of(1024, 512, 256, aligned=False)) < MOST_DISTANCE
    assert distance_between(here, of(0, 512, 256)) == float("inf")
    assert distance_between(of(0, 512, 256), of(0, 512, 256)) == 0


# --- what is wrong with a source ----------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"source": "of yesterday"},
        {"kernel": "gone", "source": "0"},
        {"config": {"BM": 8, "BN": 32, "BZ": 1}},
        {"config": {"BM": 8}},
        {"config": {"BM": 4096, "BN": 4096}},
        {"outcome": "wrong"},
        {"time_us": None},
    ],
    ids=str,
)
def test_entries_that_cannot_be_used_are_passed_over(table, store, changes):
    changes = dict(changes)
    kernel = changes.pop("kernel", "naive")
    bad = msgspec.structs.replace(entry(**changes), kernel=kernel)
    table(bad)
    assert chosen()[0] == "heuristic"
    store.put(bad)
    assert chosen(store=store)[0] == "heuristic"


def test_a_store_of_another_compiler_is_stale_and_a_table_is_not(table, store):
    table(entry(compiler="12.9"))
    store.put(entry(config=OTHER, compiler="12.9"))
    assert chosen(store=store)[::2] == ("shipped table", SLOW)


def test_a_damaged_table_is_told_and_left_out(table, tmp_path):
    (tmp_path / "tables" / "h100.json").write_text('{"format": "gemmkit tuning ta')
    shipped_table.cache_clear()
    tuned._tables_of.cache_clear()
    with pytest.warns(RuntimeWarning, match="table of tuned shapes for H100 is left out"):
        assert chosen()[0] == "heuristic"


def test_the_own_store_is_told_and_left_out_when_it_is_damaged(table, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = Store().path
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no database at all" * 1000)
    with pytest.warns(RuntimeWarning, match="going on without it"):
        assert Dispatcher(H100).choose(PROBLEM).source == "heuristic"
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == b"no database at all" * 1000


def test_a_store_that_cannot_be_read_is_told_once(table, tmp_path):
    path = tmp_path / "folder.sqlite3"
    path.mkdir()
    found = Dispatcher(H100, Store(path))
    with pytest.warns(RuntimeWarning, match="going on without it"):
        assert found.choose(PROBLEM).source == "heuristic"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found.choose(GemmProblem(7, 8, 9)).source == "heuristic"


def test_a_path_has_to_be_that_of_a_store(table, tmp_path):
    with pytest.raises(TuningError, match="there is no tuning store"):
        choose(PROBLEM, H100, store=tmp_path / "none.sqlite3")
    (tmp_path / "text").write_text("not a store")
    with pytest.raises(TuningError, match="is not a tuning store of gemmkit"):
        choose(PROBLEM, H100, store=tmp_path / "text")


def test_a_store_must_be_one(table):
    with pytest.raises(UsageError, match="'user' or None"):
        choose(PROBLEM, H100, store="mine")


def test_the_users_own_store_is_the_default(table, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    own = Store()
    own.put(entry(compiler=own.freshness.compiler or "none"))
    assert choose(PROBLEM, H100).source == "store"
    assert choose(PROBLEM, H100, store=None).source == "heuristic"


@pytest.mark.parametrize("board", BOARDS.values(), ids=lambda board: board.key)
def test_a_table_that_ships_is_of_its_board_and_of_the_code_that_ships(board):
    path = dispatch.shipped_file("tables", f"{board.key}.json")
    if not path.is_file():
        assert shipped_table(board).best(ProblemClass.of(PROBLEM), "none") is None
        return
    code = Freshness(compiler=None)
    for each in decode_table(path.read_bytes(), board.key):
        assert each.gpu == gpu_key(board)
        assert code.staleness(each) is None, f"{each.kernel} has changed: tune {board.name} again"
        assert find_kernel(each.kernel).rule(each.tile_config, board) is None
        assert shipped_table(board).best(each.problem, each.epilogue) is not None


# --- what always holds --------------------------------------------------------------------------


def random_problem(rng: random.Random) -> GemmProblem:
    def size() -> int:
        return rng.choice([0, 1, rng.randint(1, 20), round(2 ** rng.uniform(0, 14))])

    m, n, k = size(), size(), size()
    if rng.random() < 0.5:
        n, k = n // 4 * 4, k // 4 * 4
    pad = rng.choice([0, 0, 1, 4])
    return GemmProblem(
        m,
        n,
        k,
        alpha=rng.choice([1.0, 0.0, -2.0]),
        beta=rng.choice([0.0, 0.5]),
        lda=max(k, 1) + pad,
        epilogue=Epilogue.parse(rng.choice(["none", "bias", "relu", "bias+relu"])),
    )


@pytest.mark.parametrize("board", BOARDS.values(), ids=lambda board: board.key)
@pytest.mark.sample(3)
def test_every_problem_gets_a_plan_on_every_board(board):
    rng = random.Random(board.key)
    found = Dispatcher(board, None)
    for _ in range(60):
        problem = random_problem(rng)
        choice = found.choose(problem)
        plan = choice.kernel.plan(problem, choice.config, board)
        assert bool(plan.blocks) == bool(problem.m * problem.n)
        assert choice.microseconds > 0 or not plan.blocks
        assert choice.reason


def test_choices_do_not_depend_on_what_was_asked_before():
    problems = [random_problem(random.Random(seed)) for seed in range(40)]
    forward = Dispatcher(H100, None)
    backward = Dispatcher(H100, None)
    first = [forward.choose(each) for each in problems]
    second = [backward.choose(each) for each in reversed(problems)]
    assert [(x.kernel.name, x.config, x.reason) for x in first] == [
        (x.kernel.name, x.config, x.reason) for x in reversed(second)
    ]


def test_what_no_kernel_takes_is_refused_with_the_reason():
    with pytest.raises(UnsupportedProblem, match=r"no kernel takes .*32-bit"):
        choose(GemmProblem(MAX_EXTENT + 1, 1, 1), H100, store=None)


# --- remembering --------------------------------------------------------------------------------


def test_a_choice_is_made_once(table, monkeypatch):
    found = Dispatcher(H100, None)
    first = found.choose(PROBLEM)
    monkeypatch.setattr(CostedCandidate, "estimate", None)
    assert found.choose(GemmProblem(1000, 1200, 800)) is first


def test_trials_of_this_process_count_at_once(table, store):
    found = Dispatcher(H100, store)
    assert found.choose(PROBLEM).source == "heuristic"
    store.put(entry())
    assert found.choose(PROBLEM).source == "store"
    store.put(winner(GemmProblem(300, 300, 300), 0.9))
    assert found.choose(GemmProblem(310, 300, 300)).source == "nearest tuned shape"


def test_what_is_remembered_is_bounded(table, monkeypatch):
    monkeypatch.setattr(remembered, "MOST_REMEMBERED", 3)
    found = Dispatcher(H100, None)
    for size in range(1, 9):
        found.choose(GemmProblem(size, size, size))
        assert len(found.choices) <= 3


def test_choose_keeps_a_dispatcher_for_each_board_and_store(table):
    assert choose(PROBLEM, H100, store=None) is choose(PROBLEM, find_board("H100"), store=None)
    assert choose(PROBLEM, H100, store=None) is not choose(PROBLEM, find_board("a100"), store=None)
