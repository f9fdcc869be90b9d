import msgspec
import numpy as np
import pytest

from gemmkit.bench import workload as workload_module
from gemmkit.bench.run import run_kernel
from gemmkit.bench.workload import MAX_BUFFER_SETS, Workload
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.record import Record
from gemmkit.verify import make_inputs, verdict
from gemmkit.verify.arithmetic import FORMATS, Arithmetic, Rounded
from gemmkit.verify.bounds import exact_sums
from gemmkit.verify.inputs import INTEGER_SUM_LIMIT

NAIVE = find_kernel("naive")
PROBLEM = GemmProblem(50, 40, 30, alpha=1.5, beta=0.5, ldc=44)


def test_record_of_a_right_kernel(fake_device):
    config = NAIVE.configure({"BM": 16, "BN": 16})
    record = run_kernel(NAIVE, PROBLEM, fake_device, config=config, seed=3)
    assert record.correct
    assert record.check == "every element"
    assert record.max_error > 0
    assert 0 < record.error_ratio <= 1
    assert (record.kernel, record.rung, record.seed) == ("naive", 2, 3)
    assert record.config == {"BM": 16, "BN": 16}
    assert (record.problem.m, record.problem.alpha, record.problem.ldc) == (50, 1.5, 44)
    assert (record.device.kind, record.device.gpu) == ("emulator", "RTX 3090")
    assert record.counters == {"requests.sum": 12.0}
    assert record.emulation_seconds == 0.5
    assert record.resources.registers > 0
    assert record.occupancy.theoretical == 1.0
    assert record.occupancy.waves_per_sm == pytest.approx(4 * 3 / 6 / 82)
    assert record.time_us is record.tflops is record.peak_fraction is record.baseline is None
    assert record.environment["device"] == "fake"
    assert record.environment["inputs"] == "normal"
    assert "13." in record.environment["compiler"]
    assert Record.from_json(record.to_json()) == record


def wrong_element(c):
    c[1, 2] += 1.0


def unwritten(c):
    c[3, 4] = np.nan


@pytest.mark.parametrize("spoil", [wrong_element, unwritten])
def test_record_of_a_wrong_kernel(fakes, spoil):
    record = run_kernel(NAIVE, PROBLEM, fakes["FakeDevice"](spoil))
    assert not record.correct
    assert record.check.startswith("C[1, 2] is" if spoil is wrong_element else "C[3, 4] is")
    if spoil is unwritten:
        assert record.max_error is record.error_ratio is None
        assert record.error_bound > 0
        assert msgspec.json.decode(record.to_json())["max_error"] is None
    else:
        assert record.max_error == pytest.approx(1.0, rel=1e-3)
        assert record.error_ratio > 1


@pytest.mark.parametrize("epilogue", ["bias", "relu", "bias+relu"])
def test_epilogues_are_checked(fakes, epilogue):
    problem = GemmProblem(20, 30, 10, epilogue=Epilogue.parse(epilogue))
    assert run_kernel(NAIVE, problem, fakes["FakeDevice"](epilogue=epilogue)).correct
    assert not run_kernel(NAIVE, problem, fakes["FakeDevice"]()).correct


@pytest.mark.parametrize("shape", [(0, 5, 3), (5, 0, 3), (0, 0, 0)])
def test_empty_results_launch_nothing(fakes, shape):
    device = fakes["FakeTimedDevice"]()
    record = run_kernel(NAIVE, GemmProblem(*shape), device)
    assert record.correct
    assert device.launches == 0
    assert record.time_us is None


def test_refusals_are_raised(fake_device):
    problem = GemmProblem(8, 8, 8, epilogue=Epilogue.parse("relu"))
    with pytest.raises(UnsupportedProblem, match="no fused epilogue"):
        run_kernel(find_kernel("naive_uncoalesced"), problem, fake_device)


def test_time_speed_and_share_of_peak(fakes):
    device = fakes["FakeTimedDevice"](microseconds=200.0)
    record = run_kernel(NAIVE, GemmProblem(100, 200, 300), device)
    assert record.time_us.median == pytest.approx(200.0)
    assert record.tflops == pytest.approx(2 * 100 * 200 * 300 / 200e-6 / 1e12)
    assert record.peak_fraction == pytest.approx(record.tflops / device.spec.peak_tflops)
    assert record.baseline is None
    assert record.emulation_seconds is None


def test_timing_can_be_left_out(fakes):
    device = fakes["FakeTimedDevice"]()
    record = run_kernel(NAIVE, GemmProblem(8, 8, 8), device, time=False)
    assert record.time_us is None
    assert device.recorded == []


def test_the_fastest_candidate_of_the_baseline_is_the_peer(fakes):
    device = fakes["FakeTimedDevice"](microseconds=200.0)
    baseline = fakes["FakeBaseline"](device, slow=90.0, fast=50.0, middling=70.0)
    workload = Workload(GemmProblem(64, 64, 64), device)
    for _ in range(2):
        record = run_kernel(NAIVE, workload.problem, device, workload=workload, baseline=baseline)
        assert record.baseline.name == "fast"
        assert record.baseline.time_us.median == pytest.approx(50.0)
        assert record.baseline.speedup == pytest.approx(0.25)
    assert baseline.asked == 1, "candidates are tried once for a problem"


def test_no_peer_without_arithmetic(fakes):
    device = fakes["FakeTimedDevice"]()
    baseline = fakes["FakeBaseline"](device, only=1.0)
    record = run_kernel(NAIVE, GemmProblem(8, 8, 0, beta=0.5), device, baseline=baseline)
    assert record.correct
    assert record.tflops == 0
    assert record.baseline is None


def test_timed_buffers_rotate_beyond_the_cache(fakes):
    device = fakes["FakeTimedDevice"]()
    problem = GemmProblem(300, 300, 300)
    workload = Workload(problem, device)
    size = 3 * 4 * 300 * 300
    assert len(workload.rotating) * size > 2 * device.spec.l2_bytes
    assert (len(workload.rotating) - 1) * size <= 2 * device.spec.l2_bytes
    for name in "ABC":
        assert len({each[name] for each in workload.rotating}) == len(workload.rotating)
    assert len(Workload(GemmProblem(2, 2, 2), device).rotating) == MAX_BUFFER_SETS


def test_large_problems_run_exact_integers_too(fakes, monkeypatch):
    monkeypatch.setattr(verdict, "FULL_LIMIT", 0)
    # A wrong element too small for the rounding bound of a sampled row to show.
    spots = []

    def slightly_wrong(c):
        if float(c[0, 0]).is_integer():
            spots.append(c.shape)
            c[77, 88] += 1

    problem = GemmProblem(100, 120, 64)
    record = run_kernel(NAIVE, problem, fakes["FakeDevice"]())
    assert record.correct
    assert record.environment["inputs"] == "normal and integer"
    assert "Freivalds" in record.check
    record = run_kernel(NAIVE, problem, fakes["FakeDevice"](slightly_wrong))
    assert spots
    assert not record.correct
    assert record.check.startswith("C[77, 88]")


def test_only_integers_that_a_kernel_is_judged_by_are_drawn(fakes, monkeypatch):
    monkeypatch.setattr(verdict, "FULL_LIMIT", 0)
    drawn = []

    def counted(problem, seed, kind, sum_limit):
        drawn.append((kind, sum_limit))
        return make_inputs(problem, seed, kind, sum_limit)

    monkeypatch.setattr(workload_module, "make_inputs", counted)
    problem = GemmProblem(100, 120, 64, dtype="bfloat16")
    workload = Workload(problem, fakes["FakeDevice"]())
    assert workload.environment["inputs"] == "normal and integer"
    assert drawn == [("normal", INTEGER_SUM_LIMIT)]
    half = FORMATS["float16"]
    narrow = Arithmetic(rounded=(Rounded(half, block=1),), sums=(half,))
    for _ in range(2):
        kinds = [case.inputs.kind for case in workload._cases_for(narrow)]
        assert kinds == ["normal", "integer"]
        assert drawn[1:] == [("integer", exact_sums(problem, narrow))]
    assert drawn[1][1] < INTEGER_SUM_LIMIT
    assert [case.inputs.kind for case in workload.cases] == ["normal", "integer"]
    assert drawn[2:] == [("integer", INTEGER_SUM_LIMIT)]


def test_clock_and_power_while_timed_are_recorded(fakes, monkeypatch):
    probes = {"sm_clock_mhz": lambda: 1500.0, "power_watts": lambda: 300.0}
    monkeypatch.setattr(workload_module, "management_probes", lambda _stream: probes)
    device = fakes["FakeTimedDevice"]()
    seen = run_kernel(NAIVE, GemmProblem(8, 8, 8), device).conditions
    assert (seen.sm_clock_mhz, seen.power_watts, seen.temperature_c) == (1500.0, 300.0, None)
    assert run_kernel(NAIVE, GemmProblem(8, 8, 8), device, time=False).conditions is None
