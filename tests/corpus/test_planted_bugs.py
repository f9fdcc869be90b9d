"""Every planted bug is found, and no unchanged kernel has a finding."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from mutation import CONFIGS, WRONG_RESULT, Mutation
from planted import MUTATIONS, check_mutant, seen

from gemmkit.bench.check import CHECKS, check
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import LADDER, PRODUCTION
from rung_boards import BY_TMA, device_for

LEAST_BUGS = 44

GEMMS = [each for each in PRODUCTION if (each.dtypes, each.precision) == (("float32",), "ieee")]


@pytest.fixture(scope="module")
def device() -> EmulatedDevice:
    return EmulatedDevice(find_board("rtx3090"), threads=1, sanitize=True)


def label(mutation: Mutation) -> str:
    return f"{mutation.kernel}: {mutation.name}"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=label)
@pytest.mark.sample(31)
def test_planted_bug_is_found(device, tmp_path, mutation):
    record = check_mutant(mutation, device, tmp_path)
    assert set(mutation.expects) <= seen(record), record
    if mutation.expects == (WRONG_RESULT,):
        assert record.findings == ()


def test_every_bug_fits_the_kernels_of_today(tmp_path):
    for number, mutation in enumerate(MUTATIONS):
        folder = tmp_path / str(number)
        folder.mkdir()
        mutation.mutant(folder)


@pytest.mark.parametrize("kernel", [*LADDER, *GEMMS], ids=lambda kernel: kernel.name)
@pytest.mark.sample(13)
def test_kernel_as_it_is_has_no_finding(device, kernel):
    device = device_for(kernel, device)
    records = check(kernel, config=CONFIGS[kernel.name], device=device)
    # Rows that TMA cannot copy are refused.
    good = ("ok", "refused") if kernel.name in BY_TMA else ("ok",)
    assert [(each.case, each.verdict) for each in records if each.verdict not in good] == []
    assert sum(each.verdict == "ok" for each in records) > len(records) // 2


def test_corpus_is_large_and_covers_every_kernel_and_check():
    assert len(MUTATIONS) >= LEAST_BUGS
    assert len({label(each) for each in MUTATIONS}) == len(MUTATIONS)
    per_kernel = Counter(each.kernel for each in MUTATIONS)
    assert {kernel.name for kernel in (*LADDER, *GEMMS)} == set(per_kernel)
    assert min(per_kernel.values()) >= 3
    assert {word for each in MUTATIONS for word in each.expects} == {*CHECKS, WRONG_RESULT}
    assert any(each.file for each in MUTATIONS)


def test_words_that_do_not_stand_exactly_once_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"not exactly once in naive.cu"):
        replace(MUTATIONS[6], old="row").mutant(tmp_path)
    with pytest.raises(ValueError, match=r"not exactly once in naive.cu"):
        replace(MUTATIONS[6], old="no such words").mutant(tmp_path)
