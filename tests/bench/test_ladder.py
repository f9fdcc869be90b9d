import pytest

import gemmkit
from gemmkit.bench import ladder as ladder_module
from gemmkit.bench.ladder import ladder
from gemmkit.bench.peers import HOW_TO_GET
from gemmkit.bench.progress import Progress
from gemmkit.bench.sweep import SIZES, sweep
from gemmkit.devices.choose import open_device
from gemmkit.dispatch.choose import choose
from gemmkit.errors import UnsupportedProblem, UsageError
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import LADDER, kernels_for
from gemmkit.problem import GemmProblem
from gemmkit.report.tables import ladder_table

SOME = ["naive_uncoalesced", "naive", "shared_tiling"]
FP32 = [each for each in LADDER if "float32" in each.dtypes]


class Watcher(Progress):
    def __init__(self):
        self.heard = []

    def opened(self, device, note):
        self.heard.append(("opened", device.spec.name, note))

    def compiled(self, done, total, kernel):
        self.heard.append(("compiled", done, total))

    def skipped(self, kernel, problem, reason):
        self.heard.append(("skipped", kernel.name, reason))

    def started(self, kernel, problem, done, total):
        self.heard.append(("started", kernel.name, done, total))

    def finished(self, record):
        self.heard.append(("finished", record.kernel))


def test_records_come_in_the_order_asked(fake_device):
    records = ladder(48, device=fake_device, kernels=SOME)
    assert [record.kernel for record in records] == SOME
    assert all(record.correct for record in records)
    assert {record.problem.m for record in records} == {48}


def test_kernels_share_inputs_reference_and_environment(fake_device):
    ladder(48, device=fake_device, kernels=SOME)
    assert fake_device.uploads == 2 + len(SOME), "A and B once, C for each"
    assert fake_device.asked_environment == 1


@pytest.mark.parametrize("shape", ["30x20x10", (30, 20, 10)])
@pytest.mark.sample(6)
def test_shape(fake_device, shape):
    (record,) = ladder(shape=shape, device=fake_device, kernels=["naive"], alpha=2.0, beta=-1.0)
    assert (record.problem.m, record.problem.n, record.problem.k) == (30, 20, 10)
    assert (record.problem.alpha, record.problem.beta) == (2.0, -1.0)
    assert record.correct


def test_size_and_shape_exclude_each_other(fake_device):
    with pytest.raises(UsageError, match="not both"):
        ladder(48, shape="1x1x1", device=fake_device)


def test_a_size_is_no_text(fake_device):
    with pytest.raises(UsageError, match="one number for M, N and K, not '16x16x16'"):
        ladder("16x16x16", device=fake_device)


def test_progress_hears_all_in_order(fake_device):
    watcher = Watcher()
    ladder(32, device=fake_device, kernels=SOME[:2], progress=watcher)
    assert watcher.heard == [
        ("opened", "RTX 3090", ""),
        ("compiled", 1, 2),
        ("compiled", 2, 2),
        ("started", "naive_uncoalesced", 0, 2),
        ("finished", "naive_uncoalesced"),
        ("started", "naive", 1, 2),
        ("finished", "naive"),
    ]


def test_all_rungs_leave_out_those_that_refuse(fakes, monkeypatch):
    first = LADDER[:4]
    monkeypatch.setattr("gemmkit.kernels.catalog.LADDER", first)
    watcher = Watcher()
    device = fakes["FakeDevice"](epilogue="relu")
    records = ladder(16, device=device, epilogue="relu", progress=watcher)
    assert [record.kernel for record in records] == [kernel.name for kernel in first[1:]]
    assert all(record.correct for record in records)
    (skipped,) = (each for each in watcher.heard if each[0] == "skipped")
    assert skipped[1] == "naive_uncoalesced"
    assert "no fused epilogue" in skipped[2]


def test_the_production_kernel_follows_the_rungs(fake_device):
    records = ladder(64, device=fake_device, production=gemmkit.choose)
    *rungs, last = records
    choice = gemmkit.choose(GemmProblem(64, 64, 64), fake_device.spec)
    assert (last.kernel, last.config) == (choice.kernel.name, choice.config.as_dict())
    assert (choice.kernel.rung, last.correct) == (None, True)
    assert all(record.rung is not None for record in rungs)
    text = ladder_table(records).to_text().plain
    assert f"Below the rungs: {last.kernel}, which the library launches here." in text
    assert "Below the rungs" not in ladder_table(rungs).to_text().plain


@pytest.mark.parametrize(
    ("problems", "dtypes"),
    [
        ([GemmProblem(8, 8, 8)], {"float32"}),
        ([GemmProblem(8, 8, 8, dtype="float16")], {"float16"}),
        ([GemmProblem(8, 8, 8, dtype="bfloat16", out_dtype="float32")], {"bfloat16"}),
        ([GemmProblem(8, 8, 8), GemmProblem(9, 9, 9, dtype="bfloat16")], {"float32", "bfloat16"}),
    ],
)
def test_unless_named_the_rungs_for_the_types_are_run(problems, dtypes):
    wanted = [each for each in LADDER if dtypes & {*each.dtypes}]
    assert [*kernels_for(problems)] == wanted
    assert [each.rung for each in wanted] == sorted(each.rung for each in wanted)


@pytest.mark.parametrize("dtypes", [("float64", "float64"), ("bfloat16", "float64")])
def test_types_that_no_rung_takes_are_for_production_kernels(dtypes):
    found = kernels_for([GemmProblem(8, 8, 8, dtype=dtypes[0], out_dtype=dtypes[1])])
    assert found
    assert all(each.rung is None for each in found)


def test_named_kernels_say_which_types_are_meant():
    device = open_device("emulator", "h100")
    records = ladder(16, device=device, kernels=["mma_sync"])
    assert [(each.problem.dtype, each.correct) for each in records] == [("bfloat16", True)]
    with pytest.raises(UnsupportedProblem, match="is for bfloat16, float16, not float32"):
        ladder(shape=GemmProblem(16, 16, 16), device=device, kernels=["mma_sync"])
    with pytest.raises(UnsupportedProblem, match="is for bfloat16, float16, not float32"):
        ladder(16, device=device, kernels=["naive", "mma_sync"])


@pytest.mark.parametrize("changes", [{"kernels": ["naive"]}, {"config": {}, "kernels": SOME}])
def test_what_was_asked_for_by_name_is_all(fake_device, changes):
    records = ladder(64, device=fake_device, production=gemmkit.choose, **changes)
    assert [record.kernel for record in records] == changes["kernels"]


def test_a_production_kernel_that_is_a_rung_is_not_repeated(fake_device):
    board = find_board("t4")
    choice = gemmkit.choose(GemmProblem(64, 64, 64), board)
    assert choice.kernel.rung, "without cp.async the library launches rungs"
    records = ladder(64, device=fake_device, production=lambda problem, _gpu: choice)
    assert [record.rung for record in records] == sorted(record.rung for record in records)


def test_a_named_kernel_that_refuses_is_an_error(fake_device):
    with pytest.raises(UnsupportedProblem, match="no fused epilogue"):
        ladder(16, device=fake_device, kernels=["naive_uncoalesced"], epilogue="relu")
    with pytest.raises(UnsupportedProblem, match="must be equal"):
        ladder(16, device=fake_device, kernels=["shared_tiling"], config={"BM": 8})


def test_configuration(fake_device):
    (record,) = ladder(
        64, device=fake_device, kernels=["coarsening_1d"], config={"stride": 4, "BM": 32}
    )
    assert record.config == {"BM": 32, "BN": 16, "BK": 16, "TM": 4}
    with pytest.raises(UsageError, match="has no key 'TN'"):
        ladder(64, device=fake_device, kernels=["naive"], config={"TN": 4})


def test_unknown_names(fake_device):
    with pytest.raises(UsageError, match="unknown kernel"):
        ladder(64, device=fake_device, kernels=["naiv"])
    with pytest.raises(UsageError, match="unknown epilogue"):
        ladder(64, device=fake_device, epilogue="tanh")
    with pytest.raises(UsageError, match="yet to be opened"):
        ladder(64, device=fake_device, gpu="a100")


def test_cublas_is_timed_beside_each_kernel(fakes, monkeypatch):
    device = fakes["FakeTimedDevice"](microseconds=200.0)
    baseline = fakes["FakeBaseline"](device, peer=100.0)
    monkeypatch.setattr(ladder_module, "find_baseline", lambda _device: baseline)
    watcher = Watcher()
    records = ladder(48, device=device, kernels=SOME[:2], progress=watcher)
    assert [record.baseline.speedup for record in records] == [pytest.approx(0.5)] * 2
    assert watcher.heard[0] == ("opened", "RTX 3090", "")


def test_missing_baseline_is_told(fakes, monkeypatch):
    monkeypatch.setattr(ladder_module, "find_baseline", lambda _device: None)
    watcher = Watcher()
    (record,) = ladder(48, device=fakes["FakeTimedDevice"](), kernels=["naive"], progress=watcher)
    assert record.baseline is None
    assert watcher.heard[0] == ("opened", "RTX 3090", HOW_TO_GET)


def test_sweep_goes_size_by_size(fake_device):
    records = sweep([16, 33], k=20, device=fake_device)
    assert [(r.problem.m, r.problem.n, r.problem.k, r.kernel) for r in records] == [
        (16, 16, 20, "naive_uncoalesced"),
        (16, 16, 20, "naive"),
        (33, 33, 20, "naive_uncoalesced"),
        (33, 33, 20, "naive"),
    ]
    assert all(record.correct for record in records)
    assert len(SIZES) == 15


def test_the_package_offers_it():
    assert gemmkit.ladder is ladder
    assert gemmkit.sweep is sweep
    assert set(gemmkit.__all__) == set(dir(gemmkit))
    for name in gemmkit.__all__:
        assert getattr(gemmkit, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'leader'"):
        gemmkit.leader  # noqa: B018


def test_a_sweep_is_of_two_kernels_and_of_groups_by_those_that_take_them(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "gemmkit.bench.sweep.run_suite", lambda problems, **rest: asked.append((problems, rest))
    )
    sweep((64, 96), k=8)
    groups = GemmProblem.of_groups("8x8x8,4x4x4")
    sweep(groups=(groups,), beta=0.5)
    (plain, rest), (grouped, others) = asked
    assert [each.shape for each in plain] == ["64x64x8", "96x96x8"]
    assert rest["kernels"] == ("naive_uncoalesced", "naive")
    assert [each.groups for each in grouped] == [groups.groups]
    assert (grouped[0].beta, others["kernels"]) == (0.5, None)


@pytest.mark.parametrize(
    ("asked", "kernels"),
    [
        ({}, ["naive_uncoalesced", "naive"]),
        (
            {"layout": "NT"},
            [choose(GemmProblem(32, 32, 16).laid_out("nt"), "rtx3090").kernel.name],
        ),
        ({"dtype": "float64"}, ["typed", "typed_mma"]),
    ],
    ids=str,
)
def test_a_sweep_runs_what_takes_its_types_layout_and_epilogue(asked, kernels):
    found = sweep([32], k=16, device="emulator", gpu="rtx3090", production=choose, **asked)
    assert [each.kernel for each in found][: len(kernels)] == kernels
    assert all(each.correct for each in found)
