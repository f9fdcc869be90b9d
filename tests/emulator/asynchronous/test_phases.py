"""Threads that arrive at an mbarrier, or wait for a phase of a parity, must know that the phase
before is complete; how they know it does not matter."""

from __future__ import annotations

from functools import cache

import pytest
from pipelines import HELPERS

from gemmkit.emulator import DeviceMemory, LaunchRequest, load
from gemmkit.emulator.schedule import Schedule
from gemmkit.findings import Finding
from gemmkit.jit.compiler import compile_source
from gemmkit.kernels.plan import SourceFile

MORE = """
typedef unsigned long long Token;
DEVICE Token arrive_for(unsigned b) {
  Token token;
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(token) : "r"(b) : "memory");
  return token;
}
DEVICE void await(unsigned b, Token token) {
  asm volatile("{ .reg .pred p; WAIT: mbarrier.try_wait.shared::cta.b64 p, [%0], %1;"
               " @!p bra WAIT; }" :: "r"(b), "l"(token) : "memory");
}
DEVICE void arrive_times(unsigned b, int n) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" :: "r"(b), "r"(n) : "memory");
}
DEVICE void drop(unsigned b) {
  asm volatile("mbarrier.arrive_drop.shared::cta.b64 _, [%0];" :: "r"(b) : "memory");
}
DEVICE void arrive_incomplete(unsigned b) {
  asm volatile("{ .reg .b64 t; mbarrier.arrive.noComplete.shared::cta.b64 t, [%0], 1; }"
               :: "r"(b) : "memory");
}
"""
# Three warps, and two mbarriers that expect `ONE` and `TWO` arrivals.
KERNEL = """
extern "C" __global__ void NAME(float* a, float* c) {
  __shared__ __align__(128) float tile[64];
  __shared__ unsigned long long one, two;
  __shared__ int next;
  const int t = threadIdx.x, warp = t / 32;
  if (t == 0) { init(at(&one), ONE); init(at(&two), TWO); init_fence(); }
  __syncthreads();
  BODY
}
"""

# By name: the arrivals that both mbarriers expect, and what the threads do.
RING = """
  for (int i = 0; i < 5; ++i)
    if (warp == 0) {
      PRODUCER
      if (t == 0) arrive(at(&one));
    } else {
      CONSUMER
      ARRIVE
    }"""
PRODUCER, CONSUMER = "wait(at(&two), i & 1 ^ 1);", "wait(at(&one), i & 1);"


def ring(arrive: str, producer: str = PRODUCER, consumer: str = CONSUMER) -> str:
    filled = RING.replace("PRODUCER", producer).replace("CONSUMER", consumer)
    return filled.replace("ARRIVE", arrive)


EACH_LANE, EACH_WARP = "arrive(at(&two));", "if (t % 32 == 0) arrive(at(&two));"
# One warp hands out numbers, and the others read them until there are none.
NUMBERS = """
  for (int i = 0;; ++i) {
    if (warp == 0) {
      RELEASED
      if (t == 0) { next = i; arrive(at(&one)); }
      if (i == 4) break;
    } else {
      wait(at(&one), i & 1);
      const int seen = next;
      arrive(at(&two));
      if (seen == 4) break;
    }
  }"""
# The first two phases are complete before anybody waits.
LATE = """
  if (t == 0) { arrive(at(&one)); MIDDLE arrive(at(&one)); }
  BARRIER
  if (t == 0) arrive(at(&one));
  if (warp == 1) wait(at(&one), 0);"""
# All arrive in two phases, and wait for the second.
TWICE = "arrive(at(&two)); BETWEEN arrive(at(&two)); wait(at(&two), 1);"
# One thread fills a tile twice.
FILLED = """
  for (int i = 0; i < 2; ++i) {
    if (t == 0) { arrive_expecting(at(&one), 256); load(tile, a, 256, at(&one)); }
    AWAITED
    __syncthreads();
  }"""
SOUND = {
    "each lane arrives": (1, 64, ring(EACH_LANE)),
    "one lane of each warp arrives": (1, 2, ring(EACH_WARP)),
    "one warp waits for the other": (
        1,
        2,
        ring(EACH_WARP, consumer=f'if (warp == 1) {CONSUMER} asm volatile("bar.sync 1, 64;");'),
    ),
    "numbers": (1, 64, NUMBERS.replace("RELEASED", PRODUCER)),
    "known by a barrier": (1, 1, LATE.replace("MIDDLE", "").replace("BARRIER", "__syncthreads();")),
    "arrivals known by a barrier": (1, 96, TWICE.replace("BETWEEN", "__syncthreads();")),
    "arrivals known by a wait": (1, 96, TWICE.replace("BETWEEN", "wait(at(&two), 0);")),
    "one phase of several arrivals": (1, 192, TWICE.replace("BETWEEN", "").replace("1)", "0)")),
    "bytes": (1, 1, FILLED.replace("AWAITED", "if (warp == 1) wait(at(&one), i);")),
    "tokens": (
        1,
        96,
        "for (int i = 0; i < 4; ++i) { Token was = arrive_for(at(&two)); await(at(&two), was); }",
    ),
    "counts, and arrivals that do not complete": (
        1,
        6,
        """
        for (int i = 0; i < 4; ++i) {
          if (t == 0) arrive_incomplete(at(&two));
          if (t == 32) arrive_times(at(&two), 2);
          if (t == 0) arrive_times(at(&two), 3);
          if (warp < 2) wait(at(&two), i & 1);
        }""",
    ),
    "a warp that drops out": (
        1,
        96,
        """
        for (int i = 0; i < 4; ++i) {
          if (warp == 2 && i == 2) { drop(at(&two)); break; }
          arrive(at(&two));
          wait(at(&two), i & 1);
        }""",
    ),
}
EARLY, AMBIGUOUS = "early arrival", "ambiguous parity"
# What is found instead where the order of the warps is such that the bug has other consequences: a
# phase that may be missed, one that was, or an arrival that is refused.
OTHERWISE = {"phase overrun", "deadlock", "too many arrivals"}
BUGS = {
    "one lane too few": (1, 63, ring(EACH_LANE), EARLY),
    "half of the lanes": (1, 32, ring(EACH_LANE), EARLY),
    "one warp too few": (1, 1, ring(EACH_WARP), EARLY),
    "a warp that does not wait": (
        1,
        2,
        ring(EACH_WARP, consumer=f"if (warp == 1) {CONSUMER}"),
        EARLY,
    ),
    "a producer that does not wait": (1, 2, ring(EACH_WARP, producer=""), AMBIGUOUS),
    "a consumer that leaves a wait out": (
        1,
        2,
        ring(EACH_WARP, consumer=f"if (i != 3) {CONSUMER}"),
        EARLY,
    ),
    "numbers that nobody releases": (
        1,
        64,
        NUMBERS.replace("RELEASED", ""),
        AMBIGUOUS,
    ),
    "known by nothing": (
        1,
        1,
        LATE.replace("MIDDLE", "").replace("BARRIER", ""),
        AMBIGUOUS,
    ),
    "arrivals known by nothing": (1, 96, TWICE.replace("BETWEEN", ""), EARLY),
    "bytes that nobody awaits": (1, 1, FILLED.replace("AWAITED", ""), EARLY),
    "a warp that drops out early": (
        1,
        96,
        """
        for (int i = 0; i < 4; ++i) {
          arrive(at(&two));
          if (warp == 2 && i == 2) { drop(at(&two)); break; }
          wait(at(&two), i & 1);
        }""",
        EARLY,
    ),
}
SEEDS = range(4)


@cache
def _ptx(options: tuple[str, ...] = ()) -> str:
    """All kernels as one text."""
    parts = [HELPERS, MORE]
    for number, (_, (one, two, body, *_)) in enumerate((*SOUND.items(), *BUGS.items())):
        text = KERNEL.replace("NAME", f"k{number}").replace("BODY", body)
        parts.append(text.replace("ONE", str(one)).replace("TWO", str(two)))
    file = SourceFile("".join(parts), "k.cu", "cuda", ("",), options)
    return compile_source(file, "k0", "sm_90a", assemble=False).ptx


def findings(
    name: str, *, seed: int = 0, schedule: Schedule | None = None, interleavings: bool = False
) -> tuple[Finding, ...]:
    """Those of one block of three warps."""
    memory = DeviceMemory()
    arrays = [memory.allocate(4 * 4096, each) for each in "ac"]
    packed = b"".join(each.address.to_bytes(8, "little") for each in arrays)
    request = LaunchRequest((1, 1, 1), (96, 1, 1), packed)
    program = load(_ptx(), f"k{[*SOUND, *BUGS].index(name)}", sanitize=True)
    run = program.run(
        request, memory, sanitize=True, warp_seed=seed, schedule=schedule,
        interleavings=interleavings, max_steps=1_000_000,
    )  # fmt: skip
    return run.findings


@pytest.mark.parametrize("name", SOUND)
def test_who_knows_that_the_phase_before_is_complete_is_not_reported(name: str) -> None:
    for seed in SEEDS:
        assert findings(name, seed=seed) == ()


@pytest.mark.parametrize("name", BUGS)
def test_who_does_not_know_it_is_reported_in_every_order(name: str) -> None:
    own, every = BUGS[name][3], set()
    for seed in SEEDS:
        kinds = {each.kind for each in findings(name, seed=seed)}
        assert kinds & (OTHERWISE | {own}), seed
        every |= kinds
    assert own in every


def test_both_threads_and_what_is_missing_are_named() -> None:
    early = next(each for each in findings("one warp too few") if each.kind == "early arrival")
    assert "thread (64, 0, 0) of block (0, 0, 0) at k.cu:" in early.message
    assert (
        "arrives at the mbarrier at byte 0 of 'two', but nothing orders this arrival after the end "
        "of the phase before, in which thread (32, 0, 0) at k.cu:"
    ) in early.message
    assert early.message.endswith(
        "it may count in that phase, and end it too early. Its phases expect 1 arrival, and 2 "
        "warps arrive at it: the count of its initialization may be too small"
    )
    assert early.other is not None
    (lanes,) = (each for each in findings("one lane too few") if each.kind == "early arrival")
    assert "and counts in the phase after the one that thread (94, 0, 0) at k.cu:" in lanes.message
    assert lanes.message.endswith(
        ", of the same warp, ends by the same instruction. Its phases expect 63 arrivals"
    )
    ((_, text),) = {
        (each.kind, each.message)
        for each in findings("known by nothing")
        if each.kind == "ambiguous parity"
    }
    assert (
        "waits for a phase of parity 0 of the mbarrier at byte 0 of 'one', but nothing orders this "
        "wait after the end of the phase before, in which thread (0, 0, 0) at k.cu:"
    ) in text
    (copies, *_) = (
        each for each in findings("bytes that nobody awaits") if each.kind == "early arrival"
    )
    assert "which takes the bytes of the bulk copy by thread (0, 0, 0) at k.cu:" in copies.message


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("one warp too few", "early arrival", "which counts in the phase before"),
        ("known by nothing", "ambiguous parity", "which ends at once"),
    ],
)
def test_the_order_in_which_it_goes_wrong_has_the_wrong_phase(
    name: str, kind: str, words: str
) -> None:
    found = next(each for each in findings(name, interleavings=True) if each.kind == kind)
    assert found.interleaving is not None
    *_, last_but_one, last = found.interleaving.steps
    assert last_but_one.endswith(words)
    assert "only now it arrives in the phase before" in last
    again = findings(name, schedule=Schedule.parse(found.interleaving.schedule))
    assert {each.kind for each in again} & ({kind} | OTHERWISE)
