import pytest

from fake_gpu import FakeGpu, FakeWork, fake_binary, fake_cost
from gemmkit import tune
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.dispatch.choose import choose
from gemmkit.errors import CompileError, CompilerMissing, DeviceError, TuningError, UsageError
from gemmkit.gpu import BOARDS
from gemmkit.problem import GemmProblem
from gemmkit.trials.entry import ProblemClass
from gemmkit.trials.freshness import Freshness
from gemmkit.trials.store import Store
from gemmkit.tune.progress import TuneProgress

SHAPE = "40x48x32"
GPU = "h100-132sm"
KERNELS = ["warp_tiled"]


def run(gpu, store, **changes):
    arguments = {
        "budget": 20.0,
        "kernels": KERNELS,
        "device": gpu,
        "store": store,
        "compile_one": fake_binary,
        "within": 1e9,
    }
    (found,) = tune(changes.pop("problem", SHAPE), **(arguments | changes))
    return found


class Stop(TuneProgress):
    """Presses Ctrl-C after so many trials."""

    def __init__(self, after):
        self.after, self.results = after, []

    def tried(self, entry, count, leader):
        if count == self.after:
            raise KeyboardInterrupt

    def finished(self, result):
        self.results.append(result)


def test_the_fastest_is_found_checked_and_stored(store):
    gpu = FakeGpu()
    found = run(gpu, store)
    assert found.ended == "all tried"
    assert found.untried == 0
    everything = store.entries()
    assert found.tried == {"ok": len(everything)}
    assert found.best.time_us == min(each.time_us for each in everything)
    assert found.best.final
    assert found.best.samples > 4
    assert found.runner_up.time_us >= found.best.time_us
    assert store.best(GPU, ProblemClass.of(GemmProblem(40, 48, 32))) == found.best
    assert {plan.entry for plan in gpu.launches} >= {
        entry.config and plan.entry for entry, plan in zip(everything, gpu.launches, strict=False)
    }
    assert len({plan.entry for plan in gpu.launches}) == len(everything), "each was checked"
    assert found.environment["gpu"] == "fake"


def test_kernels_that_take_no_part_are_named_with_their_reasons(store):
    with pytest.raises(UsageError, match=r"left to try .*gemm_small_k: it takes products of k up"):
        run(FakeGpu(), store, kernels=["gemm_small_k"], problem="40x48x64")
    found = run(FakeGpu(), store, kernels=["warp_tiled", "gemm_skinny"])
    assert found.excluded == {"gemm_skinny": "it takes products of at most 16 rows or columns"}


def test_far_ones_are_looked_at_briefly(store):
    found = run(FakeGpu(lambda plan: 50.0 if fake_cost(plan) < 55 else 500.0), store)
    assert found.best.time_us == pytest.approx(50.0)
    assert min(each.samples for each in store.entries() if each.time_us > 100.0) == 1
    assert found.best.samples > 4


class HotGpu(FakeGpu):
    """Runs 15 % slower once the finals have begun, as at the power limit."""

    hot = False

    def record(self, works, kept=()):
        slower = 1.15 if self.hot else 1.0
        return super().record([FakeWork(slower * work.microseconds) for work in works])


class Heating(TuneProgress):
    def __init__(self, gpu):
        self.gpu = gpu

    def finals(self, count):
        self.gpu.hot = True


def test_brief_looks_do_not_beat_finals_at_the_power_limit(store):
    gpu = HotGpu()
    found = run(gpu, store, progress=Heating(gpu))
    entries = store.entries()
    looks = {each.label: each.brief_us for each in entries}
    assert found.best.final
    assert looks[found.best.label] == min(looks.values())
    assert found.best.time_us == pytest.approx(1.15 * looks[found.best.label])
    assert any(each.time_us < found.best.time_us for each in entries), "of looks"
    assert found.runner_up.time_us == pytest.approx(1.15 * sorted(looks.values())[1])
    assert store.best(GPU, found.problem) == found.best


def test_a_second_run_at_the_power_limit_keeps_the_winner(store):
    gpu = HotGpu()
    first = run(gpu, store, progress=Heating(gpu))
    gpu.hot = False
    again = run(gpu, store, progress=Heating(gpu))
    assert again.best.label == first.best.label
    assert again.best.final


def test_a_second_run_goes_on_with_what_is_left(store):
    gpu = FakeGpu()
    stop = Stop(after=20)
    with pytest.raises(KeyboardInterrupt):
        run(gpu, store, progress=stop)
    (interrupted,) = stop.results
    assert interrupted.ended == "interrupted"
    assert interrupted.trials == 20 == len(store.entries())
    assert interrupted.best is not None
    known = {str(each.config) for each in store.entries()}
    before = len(gpu.launches)
    found = run(gpu, store)
    assert found.known == 20
    assert found.ended == "all tried"
    tried_again = {plan.entry for plan in gpu.launches[:before]} & {
        plan.entry for plan in gpu.launches[before:]
    }
    # Only leaders meet again, in the finals.
    assert len(tried_again) <= 12
    assert len(store.entries()) > len(known)


def test_nothing_is_left_to_try_the_third_time(store):
    gpu = FakeGpu()
    first = run(gpu, store)
    again = run(gpu, store)
    assert again.known == len(store.entries())
    assert again.best.config == first.best.config


def test_wrong_results_never_win(store):
    best_of_all = []

    def spoil(plan, c):
        if fake_cost(plan) < 60:
            best_of_all.append(plan)
            c[-1, -1] += 1.0

    found = run(FakeGpu(spoil=spoil), store)
    wrong = [each for each in store.entries() if each.outcome == "wrong"]
    assert len(wrong) == len({plan.entry for plan in best_of_all}) == found.tried["wrong"] > 0
    assert found.best.time_us >= 60
    assert "C[39, 47]" in wrong[0].reason
    assert all(each.time_us is None for each in wrong)


def test_what_is_right_for_integers_alone_never_wins(store):
    fastest = []

    def spoil(plan, c):
        # As rounding to a shorter format would: exact for small integers.
        if fake_cost(plan) < 60:
            fastest.append(plan.entry)
            c[:] = c.round(1)

    found = run(FakeGpu(spoil=spoil), store)
    assert fastest
    assert found.best.time_us >= 60
    assert found.tried["wrong"] > 0


def test_compile_failures_are_kept_with_their_reason(store):
    def refuse(plan, arch):
        if fake_cost(plan) < 60:
            raise CompileError("error: too many registers")
        return fake_binary(plan, arch)

    found = run(FakeGpu(), store, compile_one=refuse)
    failed = [each for each in store.entries() if each.outcome == "uncompiled"]
    assert found.tried["uncompiled"] == len(failed) > 0
    assert failed[0].reason == "error: too many registers"
    assert found.best.time_us >= 60


def test_launch_failures_are_kept_with_their_reason(store):
    def fail(plan):
        return "too many resources requested" if fake_cost(plan) < 60 else None

    found = run(FakeGpu(fail=fail), store)
    failed = [each for each in store.entries() if each.outcome == "unlaunched"]
    assert found.tried["unlaunched"] == len(failed) > 0
    assert "too many resources" in failed[0].reason
    assert found.best.time_us >= 60


def test_a_lost_gpu_ends_the_search_and_is_not_lost_twice(store):
    def fail(plan):
        if fake_cost(plan) < 60:
            gpu.lost = True
            return "an illegal address"
        return None

    gpu = FakeGpu(fail=fail)
    with pytest.raises(TuningError, match=r"an illegal address; the GPU must be opened anew"):
        run(gpu, store)
    (failed,) = [each for each in store.entries() if each.outcome == "unlaunched"]
    later = FakeGpu(fail=lambda plan: None)
    found = run(later, store)
    assert failed in store.entries()
    assert found.known >= 1


def test_without_a_compiler_there_is_one_clear_error(store):
    def missing(plan, arch):
        raise CompilerMissing("no NVRTC")

    with pytest.raises(CompilerMissing):
        run(FakeGpu(), store, compile_one=missing)
    assert store.entries() == []


def test_a_changed_source_makes_trials_stale_and_first_to_be_tried(store):
    gpu = FakeGpu()
    old = run(gpu, store).best
    changed = Freshness(compiler="13.5.37", digests={"warp_tiled": "0" * 16})
    later = Store(store.path, changed)
    kind = ProblemClass.of(GemmProblem(40, 48, 32))
    assert later.best(GPU, kind) is None
    watch = Stop(after=1)
    with pytest.raises(KeyboardInterrupt):
        run(FakeGpu(), later, progress=watch, strategy="exhaustive")
    (result,) = watch.results
    assert result.known == 0
    assert result.best.config == old.config
    assert later.best(GPU, kind).source == "0" * 16


def test_winners_of_similar_problems_are_tried_first(store):
    gpu = FakeGpu()
    near = run(gpu, store).best
    watch = Stop(after=1)
    with pytest.raises(KeyboardInterrupt):
        tune(
            "40x48x64",
            kernels=KERNELS,
            device=FakeGpu(),
            store=store,
            compile_one=fake_binary,
            progress=watch,
            strategy="exhaustive",
            within=1e9,
        )
    assert watch.results[0].best.config == near.config


# Of NN, tests of dispatch hold that a tuned entry is what it chooses.
@pytest.mark.parametrize("layout", [pytest.param("nn", marks=pytest.mark.slow), "nt"])
def test_what_dispatch_would_choose_is_tried_before_others(store, layout):
    problem = GemmProblem(1, 4096, 512).laid_out(layout)
    choice = choose(problem, "h100", store=None)
    changes = {"kernels": [choice.kernel.name, "gemm_tiled"], "strategy": "exhaustive"}
    with pytest.raises(KeyboardInterrupt):
        run(FakeGpu(), store, problem=problem, progress=Stop(after=3), **changes)
    tried = {(each.kernel, each.tile_config) for each in store.entries()}
    assert (choice.kernel.name, choice.config) in tried


def test_a_budget_ends_the_search(store):
    def slow(plan, arch):
        import time

        time.sleep(0.02)
        return fake_binary(plan, arch)

    found = run(FakeGpu(), store, budget=0.4, compile_one=slow)
    assert found.ended == "budget"
    assert found.untried > 0
    assert found.trials + found.untried == len(store.entries()) + found.untried


@pytest.mark.parametrize("epilogue", ["none", "bias"])
@pytest.mark.sample(2)
def test_shapes_are_taken_in_all_forms(store, epilogue):
    found = tune(
        ["32x32x16", (16, 32, 16), GemmProblem(32, 16, 16)],
        kernels=KERNELS,
        epilogue=epilogue,
        device=FakeGpu(),
        store=store,
        compile_one=fake_binary,
        budget=5.0,
        strategy="random",
        seed=3,
    )
    assert [each.problem.shape for each in found] == ["32x32x16", "16x32x16", "32x16x16"]
    assert [each.epilogue for each in found] == [epilogue, epilogue, "none"]
    assert found[0].from_json(found[0].to_json()) == found[0]


@pytest.mark.parametrize(
    ("shapes", "changes", "message"),
    [
        ("0x4x4", {}, "nothing to multiply"),
        ((4, 4), {}, "is not a valid shape"),
        ("4x4x4", {"budget": 0}, "is not enough to tune in"),
        ("4x4x4", {"strategy": "genetic"}, "unknown strategy"),
        ("4x4x4", {"kernels": ["nave"]}, "did you mean naive"),
        (
            "4x4x4",
            {"kernels": ["naive_uncoalesced"], "epilogue": "relu"},
            "no configuration is left",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(store, shapes, changes, message):
    arguments = {"device": FakeGpu(), "store": store, "compile_one": fake_binary}
    with pytest.raises(UsageError, match=message):
        tune(shapes, **(arguments | changes))


def test_a_device_without_a_clock_is_refused(store):
    with pytest.raises(DeviceError, match="this device has no clock: without one"):
        tune(SHAPE, device=EmulatedDevice(BOARDS["h100"]), store=store)


def test_without_a_gpu_it_says_what_can_be_done(store, monkeypatch):
    monkeypatch.setattr("gemmkit.tune.run.gpu_problem", lambda: "this machine has no driver")
    with pytest.raises(DeviceError, match=r"this machine has no driver: .*--device model"):
        tune(SHAPE, store=store)


def test_the_package_can_be_called():
    import gemmkit
    import gemmkit.trials.store

    assert callable(gemmkit.tune)
    with pytest.raises(UsageError, match="is not enough"):
        gemmkit.tune("4x4x4", budget=-1)


def test_further_keys_are_tried_where_the_leaders_are(store):
    def cost(plan):
        return fake_cost(plan) - 40.0 * (".interleave = 2, .order = 7," in plan.entry)

    # Of 1,200 configurations, those that are estimated to be nearly the best.
    changes = {"kernels": ["gemm_tiled"], "strategy": "exhaustive", "budget": 30.0, "within": 1.5}
    found = run(FakeGpu(cost), store, **changes)
    assert (found.best.config["interleave"], found.best.config["order"]) == (2, 7)
    again = run(FakeGpu(cost), store, **changes)
    assert again.known >= found.trials
    assert again.best.time_us <= found.best.time_us
