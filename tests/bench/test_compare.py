"""Comparisons on a device without hardware: what is run, what is judged, what the records hold."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from gemmkit.bench import compare as compare_module
from gemmkit.bench.baseline import Way
from gemmkit.bench.compare import Pick, Task, compare, plain_of
from gemmkit.bench.peers import LIBRARIES, Library, Peer, entrants
from gemmkit.bench.progress import Progress
from gemmkit.bench.suites import FURTHER_EPILOGUES
from gemmkit.bench.workload import Workload, launching
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem, UsageError
from gemmkit.gpu import BOARDS
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.record import Record
from gemmkit.verify import Verdict

NAIVE, TILED = find_kernel("naive"), find_kernel("shared_tiling")
PROBLEM = GemmProblem(48, 40, 32)


class Log(Progress):
    def __init__(self):
        self.notes, self.records = [], []

    def note(self, line):
        self.notes.append(line)

    def finished(self, record):
        self.records.append(record)


class Work:
    """A launch of a peer's: it computes as the device does, then spoils its result if it is to."""

    def __init__(self, device, name, microseconds, arguments, spoil):
        self.device, self.name, self.microseconds = device, name, microseconds
        self.arguments, self.spoil = arguments, spoil

    def __call__(self, stream):
        assert stream == self.device.stream
        kept, self.device.spoil = self.device.spoil, self.spoil
        self.device.compute(self.arguments)
        self.device.spoil = kept


class Baseline:
    def __init__(self, device, times, spoil=lambda c: None, fails_at=None):
        self.device, self.times, self.spoil, self.fails_at = device, times, spoil, fails_at

    def candidates(self, problem, arguments):
        if problem.m == self.fails_at:
            raise RuntimeError("no such algorithm")
        return {
            name: Way([Work(self.device, name, time, each, self.spoil) for each in arguments])
            for name, time in self.times.items()
        }


@pytest.fixture
def device(fakes, monkeypatch):
    monkeypatch.setattr(compare_module, "copy_gb_per_s", lambda _device: 800.0)
    probes = {"sm_clock_mhz": lambda: 1500.0, "power_watts": lambda: 300.0}
    monkeypatch.setattr(compare_module, "management_probes", lambda _stream: probes)
    return fakes["FakeTimedDevice"](microseconds=100.0)


@pytest.fixture
def install(monkeypatch, device):
    def put(**baselines):
        for name, baseline in baselines.items():
            library = Library(lambda _device, it=baseline: it, "", name != "triton")
            monkeypatch.setitem(LIBRARIES, name, library)

    return put


def naive(_problem, _gpu):
    return (Pick(NAIVE, NAIVE.default, "the only one"),)


def test_each_peer_is_judged_and_timed_in_turn(device, install):
    install(
        cublas=Baseline(device, {"its own": 120.0, "slow": 500.0, "quick": 110.0}),
        torch=Baseline(device, {"torch": 130.0}),
        triton=Baseline(device, {"small": 90.0, "large": 80.0}),
    )
    names = ("cublas", "torch", "triton")
    (record,) = compare([Task(PROBLEM, "mine")], naive, device=device, against=names)
    assert (record.suite, record.choice, record.kernel) == ("mine", "the only one", "naive")
    assert record.correct
    assert [(each.vendor, each.choice, each.name, each.candidates) for each in record.peers] == [
        ("cublas", "default", "its own", 3),
        ("cublas", "best", "quick", 3),
        ("torch", "default", "torch", 1),
        ("triton", "best", "large", 2),
    ]
    assert all(each.correct and each.max_error > 0 for each in record.peers)
    assert [each.speedup for each in record.peers] == pytest.approx([1.2, 1.1, 1.3, 0.8])
    assert record.ratio_to_cublas == pytest.approx(1.1)
    assert record.baseline.name == "quick"
    assert record.peers[3].tflops == pytest.approx(PROBLEM.flops / 80e-6 / 1e12)
    rounds = [name for name, _ in itertools.groupby(device.log)]
    assert sorted(rounds[-5:]) == ["its own", "large", "ours", "quick", "torch"]
    assert Record.from_json(record.to_json()) == record


def test_conditions_and_shares(device, install):
    install(cublas=Baseline(device, {"its own": 100.0}))
    (record,) = compare([Task(PROBLEM)], naive, device=device)
    seen, shares = record.conditions, record.profile
    assert (seen.sm_clock_mhz, seen.power_watts, seen.temperature_c) == (1500.0, 300.0, None)
    assert seen.samples >= 1
    assert shares.peak_tflops == pytest.approx(2 * 82 * 128 * 1500e6 / 1e12)
    assert shares.peak_share == pytest.approx(record.tflops / shares.peak_tflops)
    assert shares.gb_per_s == pytest.approx(PROBLEM.minimal_bytes / 100e-6 / 1e9)
    assert shares.copy_share == pytest.approx(shares.gb_per_s / 800)
    assert shares.tile_share == pytest.approx(48 * 40 / (64 * 64))
    assert shares.wave_share == pytest.approx(record.occupancy.waves_per_sm)
    assert 1 <= shares.issue_cycles < 3


def test_without_nvml_the_boost_clock_counts(device, install, monkeypatch):
    monkeypatch.setattr(compare_module, "management_probes", lambda _stream: {})
    install(cublas=Baseline(device, {"its own": 100.0}))
    (record,) = compare([Task(PROBLEM)], naive, device=device)
    assert record.conditions is None
    assert record.profile.clock_mhz == device.spec.clock_mhz


def test_a_wrong_peer_is_told(device, install):
    def spoil(c):
        c[1, 2] += 1

    install(torch=Baseline(device, {"torch": 100.0}, spoil))
    (record,) = compare([Task(PROBLEM)], naive, device=device, against=["torch"])
    assert record.correct
    assert record.ratio_to_cublas is record.baseline is None
    assert not record.peers[0].correct
    assert record.peers[0].check.startswith("C[1, 2]")


def test_a_peer_that_fails_is_left_out_of_that_problem_only(device, install):
    install(torch=Baseline(device, {"torch": 100.0}, fails_at=48))
    log = Log()
    tasks = [Task(PROBLEM), Task(replace(PROBLEM, m=16))]
    records = compare(tasks, naive, device=device, against=["torch"], progress=log)
    assert [len(each.peers) for each in records] == [0, 1]
    assert all(each.environment["against"] == ["torch"] for each in records)
    assert log.notes == ["torch left out at 48x40x32: RuntimeError: no such algorithm"]
    assert log.records == records


def test_the_fastest_of_several_choices_is_taken(device, install, monkeypatch):
    install(cublas=Baseline(device, {"its own": 100.0}))
    times = {"naive": 90.0, "shared_tiling": 60.0}

    def work(binary, plan, arguments):
        return Work(device, plan.kernel, times[plan.kernel], arguments, device.spoil)

    monkeypatch.setattr(device, "work", work)
    both = (Pick(NAIVE, NAIVE.default), Pick(TILED, TILED.default))
    (record,) = compare([Task(PROBLEM)], lambda _problem, _gpu: both, device=device)
    assert record.kernel == "shared_tiling"
    assert record.time_us.median == pytest.approx(60.0)


def test_an_epilogue_is_timed_beside_the_plain_product(device, install):
    install(cublas=Baseline(device, {"its own": 100.0}))
    problem = replace(PROBLEM, epilogue=Epilogue.parse("bias+relu"))
    device.epilogue = problem.epilogue
    launch = device.launch

    def fuse_or_not(binary, plan, arguments):
        device.epilogue = Epilogue.parse("bias+relu" if "Relu" in plan.entry else "none")
        seen = launch(binary, plan, arguments)
        device.epilogue = problem.epilogue
        return seen

    device.launch = fuse_or_not
    (record,) = compare([Task(problem)], naive, device=device)
    assert record.correct
    plain, cublas = record.peers
    assert (plain.vendor, plain.choice, plain.name) == ("gemmkit", "plain", "naive")
    assert plain.correct
    assert plain.max_error > 0
    assert cublas.correct


@pytest.mark.parametrize("epilogue", FURTHER_EPILOGUES, ids=str)
def test_the_plain_product_is_judged_beside_any_epilogue(epilogue):
    fused = replace(PROBLEM, epilogue=epilogue)
    plain, device = plain_of(fused), EmulatedDevice(BOARDS["h100"])
    plan = NAIVE.plan(plain, NAIVE.default, device.spec)
    binary = compile_plan(plan, device.spec.arch)
    workload = Workload(fused, device, 0)
    assert workload.judge(launching(device, binary, plan, []), plain).correct
    assert not workload.judge(launching(device, binary, plan, []), fused).correct


def test_what_no_kernel_takes_is_left_out(device, install):
    install(cublas=Baseline(device, {"its own": 100.0}))
    uncoalesced = find_kernel("naive_uncoalesced")
    log = Log()
    fused = replace(PROBLEM, epilogue=Epilogue.parse("relu"))
    choice = Pick(uncoalesced, uncoalesced.default)
    tasks = [Task(fused), Task(PROBLEM)]
    records = compare(tasks, lambda _p, _g: (choice,), device=device, progress=log)
    assert [each.problem.epilogue for each in records] == ["none"]
    assert "Left out at 48x40x32: naive_uncoalesced" in log.notes[0]


def test_nothing_to_multiply_is_left_out(device, install):
    install(cublas=Baseline(device, {"its own": 100.0}))
    log = Log()
    tasks = [Task(GemmProblem(8, 8, 0)), Task(GemmProblem(0, 8, 8))]
    assert compare(tasks, naive, device=device, progress=log) == []
    assert [line.partition(":")[0] for line in log.notes] == [
        "Left out at 8x8x0",
        "Left out at 0x8x8",
    ]


def test_a_choice_may_refuse(device, install):
    def refuse(_problem, _gpu):
        raise UnsupportedProblem("nothing takes it")

    install(cublas=Baseline(device, {"its own": 100.0}))
    log = Log()
    assert compare([Task(PROBLEM)], refuse, device=device, progress=log) == []
    assert log.notes == ["Left out at 48x40x32: nothing takes it"]


def test_unknown_and_missing_peers(device, install, monkeypatch):
    with pytest.raises(UsageError, match="unknown peer 'blas': did you mean cublas"):
        compare([Task(PROBLEM)], naive, device=device, against=["blas"])

    def absent(_device):
        raise ImportError("No module named 'triton'")

    monkeypatch.setitem(LIBRARIES, "triton", Library(absent, "no Triton here", False))
    with pytest.raises(UsageError, match=r"no Triton here \(No module named 'triton'\)"):
        compare([Task(PROBLEM)], naive, device=device, against=["triton"])
    monkeypatch.setitem(LIBRARIES, "cublas", Library(lambda _device: None, "no cuBLAS here"))
    with pytest.raises(UsageError, match="no cuBLAS here"):
        compare([Task(PROBLEM)], naive, device=device)


def test_all_that_is_given_is_timed_beside_the_first(device, install, monkeypatch):
    install(cublas=Baseline(device, {"its own": 100.0}))
    times = {"naive": 90.0, "shared_tiling": 60.0}

    def work(binary, plan, arguments):
        return Work(device, plan.kernel, times[plan.kernel], arguments, device.spoil)

    monkeypatch.setattr(device, "work", work)
    both = (Pick(NAIVE, NAIVE.default), Pick(TILED, TILED.default))
    (record,) = compare([Task(PROBLEM)], lambda _problem, _gpu: both, device=device, every=True)
    assert record.kernel == "naive"
    candidate, cublas = record.peers
    assert (candidate.vendor, candidate.choice) == ("gemmkit", "candidate")
    assert (candidate.name, candidate.config) == ("shared_tiling", TILED.default.as_dict())
    assert candidate.speedup == pytest.approx(60 / 90)
    assert candidate.correct
    assert (cublas.speedup, record.ratio_to_cublas) == pytest.approx((100 / 90, 100 / 90))


def test_the_record_says_which_candidate_was_the_best_and_orders_the_others(device, install):
    install(cublas=Baseline(device, {"first": 120.0, "slow": 500.0, "quick": 110.0}))
    (record,) = compare([Task(PROBLEM)], naive, device=device)
    default, best = record.peers
    assert (default.name, default.ranking) == ("first", ())
    assert (best.name, best.ranking) == ("quick", ("quick", "first", "slow"))


class LabelledBaseline(Baseline):
    """Ways that are rotations each, one of which leaves its result elsewhere unless it is judged;
    `stored` says after which steps they store."""

    stored = ()

    def candidates(self, problem, arguments):
        found = super().candidates(problem, arguments)

        def elsewhere(stream):
            pass

        elsewhere.name, elsewhere.microseconds = "compiled", 70.0
        compiled = [elsewhere for _ in arguments]
        return {
            "by hand": Way(found["by hand"].works, self.stored, "eager"),
            "by compiler": Way(compiled, self.stored, "compiled", found["by hand"].works),
        }


def test_ways_with_names_of_their_own_are_all_timed(device, install):
    install(linear=LabelledBaseline(device, {"by hand": 130.0}))
    (record,) = compare([Task(PROBLEM)], naive, device=device, against=["linear"])
    seen = [(each.choice, each.name, each.candidates, each.correct) for each in record.peers]
    assert seen == [("eager", "by hand", 1, True), ("compiled", "by compiler", 1, True)]
    assert [each.speedup for each in record.peers] == pytest.approx([1.3, 0.7])
    assert record.ratio_to_cublas is None


@pytest.mark.parametrize("stored", [(), ("product", "bias")])
def test_peers_are_judged_by_their_own_roundings(device, install, stored):
    epilogue = Epilogue("column", residual=True)
    problem = replace(PROBLEM, dtype="bfloat16", out_dtype=None, epilogue=epilogue)
    baseline = LabelledBaseline(device, {"by hand": 130.0})
    baseline.stored = stored
    judged = []

    def judge(compute, problem=None, arithmetic=None):
        judged.append(arithmetic)
        return verdict

    verdict = Verdict(True, 0.0, 0.0, 0.0, 0.0, 0.0, "every element")
    workload = Workload(problem, device)
    workload.judge = judge
    workload.rotating = [{}]
    entrants(Peer("linear", baseline), workload, device)
    assert [each.stored for each in judged] == [stored, stored]
    assert all(bool(stored) == (each.sum_bits == 8) for each in judged)
