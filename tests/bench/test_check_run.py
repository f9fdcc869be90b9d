"""`check`: which problems it runs, what it makes of findings, refusals and failures."""

from __future__ import annotations

import dataclasses

import pytest

from gemmkit.bench.check import check
from gemmkit.bench.edge_cases import NEAREST, case_name, edge_cases
from gemmkit.bench.progress import Progress
from gemmkit.check_record import CheckRecord
from gemmkit.devices.device import Launch
from gemmkit.errors import DeviceError, UnsupportedProblem, UsageError
from gemmkit.findings import AccessSite, Finding
from gemmkit.frontends.tiles import tiles_of
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import LADDER, find_kernel
from gemmkit.kernels.fitting import in_types_of
from gemmkit.problem import GemmProblem
from rung_boards import BY_TMA, board_for

SITE = AccessSite(file="naive.cu", line=23, instruction="ld.global.f32", thread=(0, 0, 0))
RACE = Finding(
    check="racecheck", kind="read after write", message="A race.", block=(0, 0, 0), here=SITE
)
READ = Finding(
    check="initcheck", kind="uninitialized", message="Not written.", block=(0, 0, 0), here=SITE
)


class Finder:
    """A fake device's launch that also finds things."""

    def __init__(self, device, *findings, error=None):
        self.compute, self.findings, self.error = device.launch, findings, error

    def __call__(self, binary, plan, arguments):
        if self.error is not None:
            raise self.error
        self.compute(binary, plan, arguments)
        return Launch(findings=self.findings, emulation_seconds=0.25)


class Log(Progress):
    def __init__(self):
        self.records, self.started_at = [], []

    def started(self, kernel, problem, done, total):
        self.started_at.append((problem.shape, done, total))

    def checked(self, record):
        self.records.append(record)


def test_clean_kernel_on_given_shapes(fake_device):
    log = Log()
    records = check("naive", ["8x9x10", (3, 2, 1)], device=fake_device, progress=log)
    assert [(each.problem.m, each.problem.n, each.problem.k) for each in records] == [
        (8, 9, 10),
        (3, 2, 1),
    ]
    assert all(each.clean and each.correct and each.verdict == "ok" for each in records)
    assert records[0].error_ratio < 1
    assert records[0].config == {"BM": 32, "BN": 32}
    assert log.records == records
    assert log.started_at == [("8x9x10", 0, 2), ("3x2x1", 1, 2)]


def test_findings_matter_more_than_the_result(fake_device):
    fake_device.launch = Finder(fake_device, RACE, READ)
    (record,) = check("naive", ["8x9x10"], device=fake_device)
    assert record.verdict == "findings"
    assert not record.clean
    assert record.correct is True
    assert record.findings == (RACE, READ)
    assert record.emulation_seconds == 0.25
    assert CheckRecord.from_json(record.to_json()) == record


def test_only_the_checks_that_were_asked_for(fake_device):
    fake_device.launch = Finder(fake_device, RACE)
    (record,) = check("naive", ["8x9x10"], device=fake_device, checks=("initcheck",))
    assert record.verdict == "ok"
    assert record.findings == ()


def test_wrong_result(fakes):
    def spoil(c):
        c[1, 2] += 1

    (record,) = check("naive", ["8x9x10"], device=fakes["FakeDevice"](spoil=spoil))
    assert record.verdict == "wrong result"
    assert record.correct is False
    assert record.detail.startswith("C[1, 2] is ")


def test_launch_that_fails_is_told_and_does_not_stop_the_others(fake_device):
    fake_device.launch = Finder(fake_device, error=DeviceError("it trapped"))
    records = check("naive", ["8x9x10", "4x4x4"], device=fake_device)
    assert [(each.verdict, each.detail) for each in records] == [("failed", "it trapped")] * 2
    assert records[0].correct is None
    assert not records[0].clean


def test_refused_problem_is_no_fault(fake_device):
    kernel = dataclasses.replace(
        find_kernel("naive"),
        condition=lambda problem, gpu: "n must be even" if problem.n % 2 else None,
    )
    odd, even = check(kernel, ["8x9x10", "8x8x10"], device=fake_device)
    assert odd.verdict == "refused"
    assert "n must be even" in odd.detail
    assert odd.clean
    assert even.verdict == "ok"


def test_nothing_to_check_is_an_error(fake_device):
    with pytest.raises(UnsupportedProblem, match=r"nothing to check: .*no fused epilogue"):
        check("naive_uncoalesced", ["8x9x10"], epilogue="bias", device=fake_device)


def test_memory_that_blas_does_not_read_counts_as_never_written(fake_device):
    check("naive", ["8x9x10"], device=fake_device, alpha=0.0)
    a, b, c = fake_device.memory.values()
    assert (a.initialized, b.initialized, c.initialized) == (False, False, False)
    fake_device.memory.clear()
    check("naive", ["8x9x10"], device=fake_device, alpha=0.5, beta=0.5)
    assert all(each.initialized for each in fake_device.memory.values())


@pytest.mark.parametrize(
    ("name", "sizes", "kept"),
    [
        ("primes", (37, 37, 37), True),
        ("primes", (112, 112, 112), False),
        ("one element", (16, 16, 16), False),
        ("one row", (1, 65, 17), True),
        ("k below the step", (17, 33, 8), False),
        ("no rows", (0, 0, 0), True),
        ("one more", (33, 33, 33), True),
    ],
)
def test_a_case_is_called_what_it_is(name, sizes, kept):
    assert case_name(name, GemmProblem(*sizes), 8) == (name if kept else NEAREST)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"checks": ("leakcheck",)}, "unknown check 'leakcheck'"),
        ({"checks": ()}, "no check is asked for"),
        ({"gpu": "h100"}, "gpu is for a device that is yet to be opened"),
        ({"shapes": ["8x9"]}, "not a valid shape"),
        ({"config": {"BQ": 3}}, "no key 'BQ'"),
        ({"epilogue": "tanh"}, "unknown epilogue"),
    ],
)
def test_bad_arguments(fake_device, arguments, message):
    with pytest.raises(UsageError, match=message):
        check("naive", device=fake_device, **arguments)


# Rungs for any shape: the other ones are for skinny products, or for aligned rows.
ANY_SHAPE = [each for each in LADDER if each.name not in ("warp_reduce", *BY_TMA)]


@pytest.mark.parametrize("kernel", ANY_SHAPE, ids=lambda kernel: kernel.name)
def test_edge_cases_meet_residues_and_every_vector_width(kernel):
    batched, vector = kernel.takes_batches, 4 if "float32" in kernel.dtypes else 8
    cases = edge_cases(
        tiles_of(kernel, kernel.default), fusing=kernel.fuses, batched=batched, vector=vector
    )
    problems = {name: in_types_of(kernel, each) for name, each in cases.items()}
    tile = kernel.default
    shapes = {(each.m % tile.BM, each.n % tile.BN) for each in problems.values()}
    assert {(0, 0), (1, 1), (tile.BM - 1, tile.BN - 1), (4, 4), (vector, vector)} <= shapes
    plans = [
        kernel.plan(each, tile, board_for(kernel, find_board("rtx3090")))
        for each in problems.values()
    ]
    entries = {each.entry for each in plans}
    assert not any(any(each.residue) for each in plans), (
        "only production kernels have residue tiles"
    )
    # Two vector widths where there are any, and an instance with an epilogue.
    widths = 2 if "VEC" in kernel.source else 1
    # Batches are instances of their own.
    assert len(entries) == widths + kernel.fuses + batched
    assert any(each.batch > 1 for each in problems.values()) == batched
    assert {bool(each.epilogue.bias) for each in problems.values()} == {False, kernel.fuses}
    assert any(0 in (each.m, each.n) for each in problems.values())
    assert any(each.k == 0 and each.beta for each in problems.values())
    assert any(each.lda > each.k and each.ldc > each.n for each in problems.values())
    assert in_types_of(kernel, GemmProblem(1, 1, 1)) in problems.values()


def test_matrices_that_the_host_cannot_hold_are_an_error():
    words = "does not have enough memory for the matrices of 10000000x"
    with pytest.raises(DeviceError, match=words):
        check("naive", [(10**7, 10**7, 10**7)])
