"""What the page of a ladder says of each step: the speed, or the counter that changed most."""

from __future__ import annotations

import msgspec
import pytest

from gemmkit.bench.ladder import ladder
from gemmkit.report.record_page import records_document
from gemmkit.report.steps import TITLE, steps_section
from gemmkit.report.tables import ladder_table
from gemmkit.report.translation import CHINESE, phrases

NAMES = ["naive_uncoalesced", "naive", "shared_tiling"]


@pytest.fixture(scope="module")
def records(shared_cache_dir):
    return ladder(64, kernels=NAMES, device="emulator", gpu="rtx3090", cache_dir=shared_cache_dir)


def told(records):
    section = steps_section(records)
    return [] if section is None else list(section.blocks[0].items)


def test_without_times_the_counter_that_changed_most_is_told(records):
    first, second = told(records)
    assert first.text.startswith(
        "naive: 6.6 times fewer sectors of global loads than naive_uncoalesced."
    )
    assert second.text.startswith(
        "shared_tiling: 32 times fewer global loads per result than naive."
    )
    assert second.evidence == ("global loads per result: 4 | 128",)
    assert (first.mark, second.mark) == ("good", "good")


def test_each_step_has_its_command(records):
    assert told(records)[1].text.endswith(
        "run `gemmkit explain shared_tiling --against naive --shape 64x64x64 --gpu rtx3090`."
    )
    other = msgspec.structs.replace(records[0].problem, layout="nt", beta=0.5, epilogue="relu")
    changed = [msgspec.structs.replace(each, problem=other) for each in records]
    assert "--layout NT --beta 0.5 --epilogue relu --gpu" in told(changed)[0].text
    configured = [msgspec.structs.replace(each, config={"BM": 7}) for each in records]
    assert not any("gemmkit explain" in each.text for each in told(configured))


@pytest.mark.parametrize(
    ("speeds", "text", "mark"),
    [
        ((1.0, 2.5), "naive: 2.5 times as fast as naive_uncoalesced.", "good"),
        ((2.5, 1.0), "naive: 2.5 times slower than naive_uncoalesced.", "bad"),
        ((1.0, 1.0), "naive: as fast as naive_uncoalesced.", "neither"),
    ],
)
def test_times_are_told_where_both_have_one(records, speeds, text, mark):
    timed = [
        msgspec.structs.replace(each, tflops=speed)
        for each, speed in zip(records, speeds, strict=False)
    ]
    (only,) = told(timed)
    assert only.text.startswith(text)
    assert only.mark == mark


def test_more_loads_are_told_without_a_mark(records):
    (only,) = told([records[2], records[1]])
    assert only.text.startswith("naive: 32 times as many global loads per result as shared_tiling.")
    assert only.mark == "neither"


def test_a_wrong_kernel_is_compared_with_nothing(records):
    wrong = msgspec.structs.replace(records[1], correct=False)
    (only,) = told([records[0], wrong, records[2]])
    assert "than naive_uncoalesced" in only.text
    assert told([wrong, records[2]]) == []


def test_runs_of_several_problems_have_no_steps(records):
    larger = msgspec.structs.replace(
        records[1], problem=msgspec.structs.replace(records[1].problem, m=128)
    )
    assert steps_section([records[0], larger]) is None
    assert steps_section([records[0], records[0]]) is None


def test_the_page_begins_with_the_steps_and_says_them_in_chinese(records):
    document = records_document([ladder_table(records)], records)
    assert document.sections[0].title == TITLE
    assert document.sections[0].leading
    chinese = phrases(CHINESE)
    said = chinese.say(told(records)[1].text)
    assert said.startswith("shared_tiling：每个结果的全局内存加载量减少到 naive 的 1/32。")
    assert "要了解原因，请运行 `gemmkit explain shared_tiling" in said
    for each in (
        "naive: as fast as shared_tiling.",
        "a: 12.5 % more global loads per result than b.",
    ):
        assert chinese.say(each) != each
