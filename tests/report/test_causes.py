"""Findings by what caused them: over problems, pairs of lines and arrays."""

from __future__ import annotations

import msgspec

from gemmkit.check_record import CheckRecord
from gemmkit.findings import AccessSite, Check, Finding
from gemmkit.record import DeviceRecord, ProblemRecord
from gemmkit.report.causes import causes
from gemmkit.report.findings import check_table, further_lines, summary

KINDS = {
    "racecheck": "read after write",
    "memcheck": "out of bounds",
    "initcheck": "uninitialized",
    "synccheck": "divergent barrier",
}


def site(line: int, instruction: str = "st.shared.f32", *calls: str) -> AccessSite:
    return AccessSite(
        file="k.cu", line=line, instruction=instruction, thread=(0, 0, 0), called_from=calls
    )


def found(
    check: Check,
    here: AccessSite,
    other: AccessSite | None = None,
    array: str = "As",
    cause: str = "",
) -> Finding:
    return Finding(
        check=check,
        kind=KINDS[check],
        message=f"{check} of {array}",
        block=(0, 0, 0),
        here=here,
        other=other,
        array=array,
        count=2,
        cause=cause,
    )


def record(n: int, *findings: Finding) -> CheckRecord:
    problem = ProblemRecord(m=n, n=n, k=n, alpha=1, beta=0, epilogue="none", lda=n, ldb=n, ldc=n)
    return CheckRecord(
        kernel="k",
        case="",
        problem=problem,
        config={},
        device=DeviceRecord(kind="emulator", gpu="RTX 3090"),
        seed=0,
        verdict="findings",
        correct=False,
        findings=findings,
    )


def test_a_race_is_one_over_problems_and_ways_round() -> None:
    read, write = site(30, "ld.shared.f32"), site(24)
    pair = found("racecheck", read, write), found("racecheck", write, read)
    (cause,) = causes([record(16, *pair), record(32, *pair)])
    assert (cause.count, len(cause.problems), cause.others) == (8, 2, [])
    assert "1 distinct finding (1 racecheck)" in summary([record(16, *pair), record(32, *pair)])
    assert "1 racecheck" in check_table([record(16, *pair)]).to_text().plain


def test_arrays_that_one_barrier_orders_share_a_cause() -> None:
    first = found("racecheck", site(30), site(24), "As", "27")
    second = found("racecheck", site(31), site(25), "Bs", "27")
    third = found("racecheck", site(40), site(41), "Bs", "39")
    one, other = causes([record(16, first, second, third)])
    assert (one.finding, one.others, one.arrays) == (first, [second], {"As", "Bs"})
    assert other.finding == third
    without = [found("racecheck", site(30 + n), site(24), cause="") for n in range(2)]
    assert len(causes([record(16, *without)])) == 2


def test_calls_tell_places_apart() -> None:
    each = [found("memcheck", site(5, "ld.global.f32", f"k.cu:{line}")) for line in (20, 21)]
    assert len(causes([record(16, *each)])) == 2


def test_causes_come_before_what_follows() -> None:
    late = found("initcheck", site(30, "ld.shared.f32"))
    of_other = found("initcheck", site(31, "ld.shared.f32"), array="Bs")
    race = found("racecheck", site(30), site(24))
    outside = found("memcheck", site(24), array="Cs")
    every = causes([record(16, late, of_other, race, outside)])
    assert [each.finding for each in every] == [outside, race, of_other]
    assert every[1].follows == [late]


def test_what_follows_from_nothing_stands_by_itself() -> None:
    """A load that is left out writes nothing, and what a caller has not written is not a race's."""
    reads = found("initcheck", site(30, "ld.shared.f32"))
    load = found("memcheck", site(24, "ld.shared.f32"))
    assert [each.finding for each in causes([record(16, reads, load)])] == [load, reads]
    argument = found("initcheck", site(30, "ld.global.f32"), array="C")
    race = found("racecheck", site(30), site(24), array="C")
    assert [each.finding for each in causes([record(16, argument, race)])] == [race, argument]


def test_what_is_found_when_a_block_ends_comes_after_races() -> None:
    at_exit = msgspec.structs.replace(found("synccheck", site(20)), kind="block may have exited")
    barrier = found("synccheck", site(50))
    race = found("racecheck", site(30), site(24))
    every = causes([record(16, at_exit, race, barrier)])
    assert [each.finding for each in every] == [barrier, race, at_exit]


def test_lines_that_differ_by_the_call_alone_name_it() -> None:
    def through(line: int, array: str) -> Finding:
        write = site(8, "cp.async.ca.shared.global", f"k.cu:{line}")
        return found("racecheck", site(20), write, array, cause="read-before-wait")

    findings = [through(14, "As"), through(14, "Bs"), through(12, "As"), through(12, "Bs")]
    records = [record(16, *findings)]
    (one,) = causes(records)
    assert [each for each in further_lines(one, records) if each.startswith("the same")] == [
        "the same: read after write, 'Bs' at k.cu:20 and k.cu:8",
        "the same: read after write, 'As' at k.cu:20 and k.cu:8 (called at k.cu:12)",
        "the same: read after write, 'Bs' at k.cu:20 and k.cu:8 (called at k.cu:12)",
    ]


def test_one_missing_proxy_fence_names_all_lines_that_it_concerns() -> None:
    def unfenced(reads: int, writes: int, *calls: str, cause: str) -> Finding:
        read, wrote = site(reads, "wgmma.mma_async", *calls), site(writes)
        plain = found("racecheck", read, wrote, cause=f"no-proxy-fence/before:{cause}")
        return msgspec.structs.replace(plain, kind="missing proxy fence")

    findings = [
        unfenced(14, 20, cause="k.cu:25"),
        unfenced(15, 20, cause="k.cu:25"),
        unfenced(14, 22, cause="k.cu:25"),
        unfenced(16, 22, "k.cu:40", cause="k.cu:25"),
        unfenced(14, 30, cause="k.cu:35"),
    ]
    records = [record(16, *findings)]
    one, other = causes(records)
    assert (one.count, other.count) == (8, 2)
    lines = "\n".join(further_lines(one, records))
    also = "also read or overwritten at k.cu:15, k.cu:16 (called at k.cu:40); written at k.cu:22"
    assert also in lines
    assert "also" not in "\n".join(further_lines(other, records))
