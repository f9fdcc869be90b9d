"""cp.async: each thread waits for its own copies, and hands them over by itself or in step."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizing import Outcome, run

from gemmkit.findings import Finding

# Warp 0 copies 32 numbers; each statement is on a line of its own, which begins with MADE.
SOURCE = r"""k(float* out, const float* in) {
__shared__ float As[64];
__shared__ alignas(8) unsigned long long full[2];
const int t = threadIdx.x, lane = t % 32;
const unsigned b = __cvta_generic_to_shared(full), to = __cvta_generic_to_shared(&As[t]);
#define COPY asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(in + t) : "memory");
#define COMMIT asm volatile("cp.async.commit_group;" ::: "memory");
#define WAIT(n) asm volatile("cp.async.wait_group %0;" :: "n"(n) : "memory");
#define ARRIVE(b) asm volatile("{.reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [%0];}" :: "r"(b) : "memory");
#define COPIES_ARRIVE asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(b) : "memory");
#define AWAIT(b) asm volatile("{.reg .pred p; W%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;" \
    " @!p bra W%=;}" :: "r"(b) : "memory");
if (t < 2) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(b + 8 * t), "r"(COUNT) : "memory");
__syncthreads();
MADE
}"""  # noqa: E501
FIRST = SOURCE.splitlines().index("MADE") + 1
ARRAYS = {"out": np.zeros(64, np.float32), "in": np.arange(64, dtype=np.float32)}


def check(*lines: str, count: int = 1, block: int = 64) -> Outcome:
    source = SOURCE.replace("MADE", "\n".join(lines)).replace("COUNT", str(count))
    return run(source, ARRAYS, arch="sm_90", block=(block, 1, 1))


def handed_over(*producer: str, count: int = 1, wait: str = "AWAIT(b)") -> Outcome:
    """What the first warp does on lines of its own, then the second reads what it has copied."""
    return check(
        "if (t < 32) {", *producer, "} else {", wait, "out[t] = As[63 - t];", "}", count=count
    )


def sites(found: Finding) -> tuple[int, tuple[int, ...], int, tuple[int, ...]]:
    """The lines of both accesses, from the first one that a test gives, and their threads."""
    assert found.other is not None
    here, there = found.here, found.other
    assert here.thread is not None
    assert there.thread is not None
    return here.line - FIRST, here.thread, there.line - FIRST, there.thread


def test_copies_are_handed_over_in_step() -> None:
    elected = "if (lane == 0) ARRIVE(b)"
    outcome = handed_over("COPY COMMIT", "WAIT(0)", "__syncwarp();", elected)
    assert not outcome.findings
    assert outcome.arrays["out"].view(np.float32)[32:].tolist() == list(range(31, -1, -1))
    for producer in (
        ("COPY COMMIT", "WAIT(0)", elected),
        ("COPY COMMIT", "__syncwarp(); WAIT(0)", elected),
    ):
        found = handed_over(*producer).only
        assert (found.check, found.kind) == ("racecheck", "lanes not in step")
        here, reader, there, copier = sites(found)
        assert (here, there) == (6, 1)
        assert reader[0] == 63 - copier[0]
        assert copier[0] != 0
        assert found.forgiven_by
        assert f"which the cp.async by thread ({copier[0]}, 0, 0) at" in found.message
        assert "only the arrival by thread (0, 0, 0)" in found.message
        assert found.message.endswith(
            "with no __syncwarp() between its wait and that (forgiven by the hardware as long as "
            "these lanes run together)"
        )


def test_a_lane_may_hand_over_its_own_copies() -> None:
    assert not handed_over("COPY COMMIT", "WAIT(0)", "ARRIVE(b)", count=32).findings
    assert not handed_over("COPY COMMIT", "WAIT(0) if (lane < 16)", "ARRIVE(b) else",
                           "ARRIVE(b)", count=32).findings  # fmt: skip


def test_a_wait_covers_the_copies_of_its_own_thread() -> None:
    after = "__syncwarp(); if (lane == 0) ARRIVE(b)"
    found = handed_over("COPY COMMIT", "if (lane == 3) WAIT(0)", after, "WAIT(0)").only
    assert found.kind == "read before wait"
    here, reader, there, copier = sites(found)
    assert (here, there, reader[0] + copier[0]) == (7, 1, 63)
    assert found.message.endswith(
        "with no cp.async wait for it by that thread, and synchronization after that, between"
    )
    # Only one thread copies.
    assert not handed_over(
        "if (lane == 3) {", "COPY COMMIT", "WAIT(0) }", after, wait="AWAIT(b) if (t == 60)"
    ).findings


@pytest.mark.parametrize("reader", ["63 - t", "t ^ 1", "t"])
def test_one_thread_waits_for_a_block(reader: str) -> None:
    lines = "COPY COMMIT", "if (t == 0) WAIT(0)", "__syncthreads();", f"out[t] = As[{reader}];"
    found = check(*lines).only
    assert (found.kind, sites(found)[0], sites(found)[2]) == ("read before wait", 3, 0)
    assert not check(lines[0], "WAIT(0)", *lines[2:]).findings


def test_lanes_apart_close_groups_of_their_own() -> None:
    """Each lane has one group, so that a wait which leaves one in flight covers none."""
    copies = "if (lane < 16) { COPY COMMIT } else {", "COPY COMMIT }"
    after = "__syncwarp(); if (lane == 0) ARRIVE(b)"
    found = handed_over(*copies, "WAIT(1)", after).findings
    assert {each.kind for each in found} == {"read before wait"}
    assert {sites(each)[2] for each in found} <= {1, 2}
    assert not handed_over(*copies, "WAIT(0)", after).findings


def test_what_has_arrived_is_for_those_who_wait() -> None:
    assert not handed_over("COPY", "COPIES_ARRIVE", count=32).findings
    assert not handed_over("COPY", "COPIES_ARRIVE", "AWAIT(b) out[t] = As[t ^ 1];",
                           count=32).findings  # fmt: skip
    # The thread itself has not waited, nor has a reader that waits for something else.
    early = handed_over("COPY", "COPIES_ARRIVE", "out[t] = As[t] + 1;", count=32).only
    assert early.kind == "read before wait"
    assert sites(early)[::2] == (3, 1)
    other = handed_over("COPY", "COPIES_ARRIVE", "ARRIVE(b + 8)", count=32, wait="AWAIT(b + 8)")
    assert other.only.kind == "read before wait"
    assert sites(other.only)[::2] == (6, 1)


def test_an_arrival_is_for_the_copies_of_its_own_thread() -> None:
    found = handed_over("COPY", "if (lane == 0) COPIES_ARRIVE", "WAIT(0)").only
    assert found.kind == "read before wait"
    here, reader, there, copier = sites(found)
    assert (here, there, reader[0] + copier[0]) == (6, 1, 63)


def test_a_proxy_fence_of_one_lane() -> None:
    """The asynchronous proxy may not see the copies of the others."""
    store = (
        'asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 128;"'
        ' :: "l"(out), "r"(b0) : "memory");'
        ' asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");'
    )
    fence = 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'
    start = "const unsigned b0 = __cvta_generic_to_shared(As);"

    def findings(*between: str) -> tuple[Finding, ...]:
        return check(
            start, "if (t < 32) {", "COPY COMMIT WAIT(0)", *between, f"if (t == 0) {{ {store} }}",
            "}",
        ).findings  # fmt: skip

    assert not findings(fence, "__syncwarp();")
    assert not findings("__syncwarp();", f"if (t == 0) {{ {fence} }}")
    found = findings(f"if (t == 0) {{ {fence} }}", "__syncwarp();")
    assert {each.kind for each in found} == {"lanes not in step"}
    assert "only the proxy fence by thread (0, 0, 0)" in found[0].message
    assert "the cp.async by thread (1, 0, 0)" in found[0].message
    assert {each.kind for each in findings()} >= {"lanes not in step"}


@pytest.mark.parametrize("asynchronous", [True, False])
def test_halves_of_a_warp(asynchronous: bool) -> None:
    """A barrier for a part of the warp orders the copies of that part only."""
    half = "__syncwarp(lane < 16 ? 0xFFFF : 0xFFFF0000);"
    quarter = "__syncwarp(0xFFu << lane / 8 * 8);"
    crossed = "__syncwarp(lane % 16 < 8 ? 0x00FF00FF : 0xFF00FF00);"

    def findings(between: str, reads: str) -> tuple[Finding, ...]:
        lines = "COPY COMMIT WAIT(0)", between, f"out[t] = As[{reads}];"
        if asynchronous:
            return check(*lines, block=32).findings
        macros = "\n".join(line for line in SOURCE.splitlines() if "mbarrier" not in line)
        text = macros.replace('" @!p bra W%=;}" :: "r"(b) : "memory");\n', "")
        text = text.replace("MADE", "\n".join(lines))
        return run(text, ARRAYS, block=(32, 1, 1)).findings

    assert not findings(half, "t ^ 1")
    assert not findings(half, "t ^ 15")
    assert not findings(half + crossed, "t ^ 16")
    assert not findings(half + crossed, "t ^ 31")
    assert findings(half, "t ^ 16")
    assert findings(quarter, "t ^ 8")
    assert findings(quarter + crossed, "t ^ 8")
    (found,) = findings(quarter, "t ^ 8")
    assert (found.kind, found.here.thread) == ("read after write", (0, 0, 0))
    assert found.other is not None
    assert found.other.thread == (8, 0, 0)


def test_what_another_lane_has_copied_is_overwritten() -> None:
    lines = ("COPY COMMIT WAIT(0)", "As[t ^ 1] = 0;")
    found = check(*lines, block=32).findings
    assert ("write after write", 1, 0) in {
        (each.kind, sites(each)[0], sites(each)[2]) for each in found
    }
    assert not check(lines[0], "__syncwarp();", lines[1], block=32).findings
