"""Findings about bulk copies and barriers name what is missing, not a consequence of it."""

from __future__ import annotations

from functools import cache

from pipelines import HELPERS

from gemmkit.emulator import DeviceMemory, LaunchRequest, load
from gemmkit.findings import Finding
from gemmkit.jit.compiler import compile_source
from gemmkit.kernels.plan import SourceFile


@cache
def _program(source: str) -> str:
    file = SourceFile(HELPERS + source, "k.cu", "cuda", ("",), ())
    return compile_source(file, "k", "sm_90a", assemble=False).ptx


def findings(source: str, threads: int = 64) -> tuple[Finding, ...]:
    """Those of one block; `a` and `c` have 4,096 words."""
    memory = DeviceMemory()
    arrays = [memory.allocate(4 * 4096, name) for name in "ac"]
    packed = b"".join(each.address.to_bytes(8, "little") for each in arrays)
    request = LaunchRequest((1, 1, 1), (threads, 1, 1), packed)
    return load(_program(source), "k", sanitize=True).run(request, memory, sanitize=True).findings


# A tile is stored, and filled again through another thread.
STORED = """
extern "C" __global__ void k(float* a, float* c) {
  __shared__ __align__(128) float tile[256];
  __shared__ unsigned long long full;
  const int t = threadIdx.x;
  if (t == 0) { init(at(&full), 1); init_fence(); }
  for (int i = t; i < 256; i += 64) tile[i] = i;
  proxy_fence();
  __syncthreads();
  if (t == 0) { store(c, tile, 1024); commit(); WAIT }
  __syncthreads();
  if (t == 32) { arrive_expecting(at(&full), 1024); load(tile, a, 1024, at(&full)); }
  wait(at(&full), 0);
  a[1024 + t] = tile[t];
  if (t == 0) wait_all();
}
"""


def test_a_copy_that_is_still_read_is_named_with_the_missing_wait() -> None:
    assert not findings(STORED.replace("WAIT", "wait_read();"))
    (found,) = findings(STORED.replace("WAIT", ""))
    assert found.kind == "write before wait"
    assert "which the bulk copy by thread (0, 0, 0) at" in found.message
    assert "with no cp.async.bulk.wait_group.read for it" in found.message


# An mbarrier that lies within a tile.
INSIDE = """
extern "C" __global__ void k(float* a, float* c) {
  __shared__ __align__(128) unsigned char memory[2048];
  auto tile = (float*)memory;
  auto full = (unsigned long long*)(memory + PLACE);
  const int t = threadIdx.x;
  if (t == 0) { init(at(full), 1); init_fence(); }
  __syncthreads();
  if (t == 0) { arrive_expecting(at(full), 1024); load(tile, a, 1024, at(full)); }
  wait(at(full), 0);
  c[t] = tile[t];
}
"""


def test_a_copy_that_overwrites_an_mbarrier_is_named() -> None:
    assert not findings(INSIDE.replace("PLACE", "1024"))
    (found,) = findings(INSIDE.replace("PLACE", "1016"))
    assert found.kind == "mbarrier overwritten"
    assert "the bulk copy by thread (0, 0, 0)" in found.message
    assert "overwrites the mbarrier at byte 1016 of" in found.message


NAMED = """
extern "C" __global__ void k(float* a, float* c) {
  __shared__ unsigned long long full;
  if (threadIdx.x == 0) init(at(&full), 1);
  if (threadIdx.x >= 64) asm volatile("bar.sync 3, 64;" ::: "memory");
}
"""


def test_a_deadlock_names_barriers_with_their_counts() -> None:
    (found,) = findings(NAMED, 96)
    assert found.kind == "deadlock"
    assert "for barrier 3 (32 of 64 threads); warps 0-1 exited" in found.message


# Copies whose arrival cancels itself: the form without `.noinc`.
ARRIVING = """
extern "C" __global__ void k(float* a, float* c) {
  __shared__ __align__(128) float tile[128];
  __shared__ unsigned long long full;
  const int t = threadIdx.x;
  if (t == 0) init(at(&full), 32);
  __syncthreads();
  if (t < 32) {
    copy16(tile + 4 * t, a + 4 * t);
    asm volatile("cp.async.mbarrier.arriveFORM.shared::cta.b64 [%0];" :: "r"(at(&full)) : "memory");
  }
  wait(at(&full), 0);
  c[t] = tile[t];
}
"""


def test_an_arrival_of_copies_that_counts_for_none_is_named() -> None:
    assert not findings(ARRIVING.replace("FORM", ".noinc"))
    (found,) = findings(ARRIVING.replace("FORM", ""))
    assert found.kind == "deadlock"
    assert "The cp.async.mbarrier.arrive at k.cu:" in found.message
    assert "has no .noinc" in found.message


def test_an_arrival_of_copies_beside_others_is_none_that_is_missing() -> None:
    """As those of a `cuda::pipeline`, whose producer does not wait for its consumers."""
    arrivals = ARRIVING.replace("FORM", "").split("  if (t < 32) {")[1].split("  }")[0]
    twice = 2 * (arrivals + "    arrive(at(&full));\n")
    (found,) = findings(ARRIVING.replace("FORM", "").replace(arrivals, twice))
    assert found.kind == "deadlock"
    assert "has completed 2 phases" in found.message
    assert "has no .noinc" not in found.message


BEYOND = """
extern "C" __global__ void k(float* a, float* c) {
  extern __shared__ __align__(128) float tile[];
  __shared__ unsigned long long full;
  if (threadIdx.x == 0) {
    init(at(&full), 1);
    init_fence();
    arrive_expecting(at(&full), 1024);
    load(tile, a, 1024, at(&full));
    wait(at(&full), 0);
  }
}
"""


def test_a_copy_out_of_bounds_says_how_much_shared_memory_there_is() -> None:
    (found,) = findings(BEYOND)
    assert found.kind == "out of bounds"
    assert "out of bounds: the block has 128 bytes of shared memory" in found.message


# Thread 0 waits for a phase; then two warps arrive for the next one, each at a line of its own.
OVERRUN = """
DEVICE void release(unsigned b) {
  arrive(b);
}
extern "C" __global__ void k(float* a, float* c) {
  __shared__ unsigned long long full, seen;
  __shared__ volatile int flag;
  const int t = threadIdx.x;
  if (t == 0) { init(at(&full), 64); init(at(&seen), 1); init_fence(); flag = 0; }
  __syncthreads();
  if (t >= 32) arrive(at(&full));
  if (t == 0) {
    wait(at(&full), 0);
    TELL
  } else if (t >= 32) {
    AWAIT
    if (t < 64)
      arrive(at(&full));  // one
    else
      release(at(&full));  // other
  }
}
"""


def test_an_overrun_phase_names_the_arrivals_of_the_next_one() -> None:
    sound = OVERRUN.replace("TELL", "arrive(at(&seen));").replace("AWAIT", "wait(at(&seen), 0);")
    assert not findings(sound, 96)
    bug = OVERRUN.replace("TELL", "flag = 1;").replace("AWAIT", "while (!flag);")
    early, found = sorted(findings(bug, 96), key=lambda each: each.kind)
    assert early.kind == "early arrival"
    lines = (HELPERS + bug).split("\n")
    (one,), (other,), (arrival,) = (
        [number for number, line in enumerate(lines, 1) if words in line]
        for words in ("// one", "// other", '"mbarrier.arrive.shared::cta')
    )
    release = lines.index("DEVICE void release(unsigned b) {") + 2
    assert found.kind == "phase overrun"
    assert (
        f"before the arrivals of the next phase by thread (63, 0, 0) at k.cu:{arrival} (called at "
        f"k.cu:{one}) and thread (95, 0, 0) at k.cu:{arrival} (called at k.cu:{release}): if"
    ) in found.message
    assert found.other is not None
    assert found.other.called_from[0] == f"k.cu:{one}"
    assert other > one


# Two tiles are written, and copied to two places each.
UNFENCED = """
extern "C" __global__ void k(float* a, float* c) {
  __shared__ __align__(128) float one[64], other[64];
  const int t = threadIdx.x;
  one[t] = t;
  MIDDLE
  other[t] = t;
  END
  if (t == 0) {
    store(a, one, 256);
    store(c, one, 256);
    store(a + 64, other, 256);
    store(c + 64, other, 256);
    commit();
    wait_all();
  }
}
"""


def test_findings_that_one_proxy_fence_would_end_have_one_cause() -> None:
    def causes_of(middle: str, end: str) -> list[str]:
        found = findings(UNFENCED.replace("MIDDLE", middle).replace("END", end))
        assert {each.kind for each in found} <= {"missing proxy fence"}
        return [each.cause for each in found]

    barrier = "__syncthreads();"
    fenced = f"proxy_fence(); {barrier}"
    assert causes_of("", fenced) == []
    together = causes_of("", barrier)
    assert len(together) == 2
    assert len(set(together)) == 1
    assert together[0].startswith("no-proxy-fence/before:k.cu:")
    apart = causes_of(barrier, barrier)
    assert len(apart) == 2
    assert len(set(apart)) == 2
    assert len(set(causes_of(fenced, barrier))) == 1


# A tile is stored by a thread of the first warp; nothing waits for what the second warp writes.
UNORDERED = """
extern "C" __global__ void k(float* a, float* c) {
  __shared__ __align__(128) float tile[64];
  const int t = threadIdx.x;
  tile[t] = a[t];
  proxy_fence();
  __syncwarp();
  BARRIER
  if (t == 0) { store(c, tile, 256); commit(); wait_read(); }
  NEXT
}
"""
AGAIN = "__syncthreads(); tile[t] = 2 * a[t]; proxy_fence();"


def unordered(barrier: str = "", following: str = "") -> str:
    return UNORDERED.replace("BARRIER", barrier).replace("NEXT", following)


def test_a_barrier_that_is_missing_before_a_bulk_store_is_no_missing_wait() -> None:
    assert not findings(unordered("__syncthreads();", AGAIN))
    found, *others = sorted(findings(unordered()), key=lambda each: each.kind)
    # What was not written yet is what the copy reads.
    assert {each.kind for each in others} == {"uninitialized"}
    assert (found.check, found.kind) == ("racecheck", "read after write")
    assert "the bulk copy by thread (0, 0, 0) of block (0, 0, 0)" in found.message
    assert "which thread (32, 0, 0)" in found.message
    assert "with no barrier, and no arrival and wait at an mbarrier, between" in found.message


def test_a_wait_that_is_missing_after_a_bulk_store_stays_one() -> None:
    text = unordered("__syncthreads();", AGAIN)
    text = text.replace("wait_read();", "")
    kinds = {each.kind for each in findings(text)}
    assert "write before wait" in kinds
    assert "read after write" not in kinds


# The first warp fills, the second one waits. `full` is completed twice, `none` never.
PHASES = """
extern "C" __global__ void k(float* a, float* c) {
  __shared__ unsigned long long full, none;
  const int t = threadIdx.x;
  if (t == 0) { init(at(&full), 1); init(at(&none), 2); }
  __syncthreads();
  if (t == 0) arrive(at(&full));
  wait(at(&full), 0);
  __syncthreads();
  if (t == 0) arrive(at(&full));
  __syncthreads();
  if (t >= 32) { WAITS }
}
"""


def test_a_deadlock_tells_of_phases_that_a_warp_has_not_waited_for() -> None:
    assert not findings(PHASES.replace("WAITS", "wait(at(&full), 1);"))
    (found,) = findings(PHASES.replace("WAITS", "wait(at(&full), 0);"))
    assert found.kind == "deadlock"
    assert "'full' has completed 2 phases, of which warp 1 waited for 1;" in found.message
    assert "arrivals so far: warp 0, now exited, at k.cu:" in found.message


def test_a_deadlock_says_at_which_mbarrier_nobody_arrives() -> None:
    (found,) = findings(PHASES.replace("WAITS", "wait(at(&full), 1); wait(at(&none), 0);"))
    assert "'none' has completed no phase, and nobody has arrived at it" in found.message


STAGES = "for (int s = 0; s < 2; ++s) { init(at(&full[s]), 1); init(at(&empty[s]), COUNT); }"
# Two consumers release a stage that counts one: its producer goes on too early.
FEW = """
extern "C" __global__ void k(float* a, float* c) {
  __shared__ __align__(128) float tile[64];
  __shared__ unsigned long long full, empty;
  const int t = threadIdx.x;
  if (t == 0) { init(at(&full), 1); init(at(&empty), COUNT); init_fence(); }
  __syncthreads();
  for (int i = 0; i < 4; ++i) {
    if (t < 32) {
      if (t == 0) {
        wait(at(&empty), i & 1 ^ 1);
        arrive_expecting(at(&full), 256);
        load(tile, a + 64 * i, 256, at(&full));
      }
    } else {
      wait(at(&full), i & 1);
      c[96 * i + t] = tile[t - 32];
      __syncwarp();
      if (t % 32 == 0) arrive(at(&empty));
    }
  }
}
"""


def test_an_mbarrier_that_expects_too_few_arrivals_is_named_at_a_deadlock() -> None:
    assert not findings(FEW.replace("COUNT", "2"), 96)
    found = findings(FEW.replace("COUNT", "1"), 96)
    assert {each.kind for each in found} == {"deadlock", "early arrival"}
    for each in found:
        assert "Its phases expect 1 arrival, and 2 warps arrive at it" in each.message


# As each stage has one producer, an overrun does not stop the consumers.
def test_an_mbarrier_that_expects_too_few_arrivals_is_one_cause() -> None:
    text = FEW.replace("empty;", "empty[2];").replace("full, empty", "full[2], empty")
    text = text.replace("tile[64]", "tile[2][64]").replace("init(at(&full), 1);", STAGES)
    text = text.replace("init(at(&empty), COUNT);", "").replace("i < 4", "i < 8")
    text = text.replace("at(&empty)", "at(&empty[i & 1])").replace("at(&full)", "at(&full[i & 1])")
    text = text.replace("i & 1 ^ 1", "i / 2 & 1 ^ 1").replace(", i & 1)", ", i / 2 & 1)")
    text = text.replace("load(tile", "load(tile[i & 1]").replace("= tile[", "= tile[i & 1][")
    assert not findings(text.replace("COUNT", "2"), 96)
    found = findings(text.replace("COUNT", "1"), 96)
    overruns = [each for each in found if "expect 1 arrival, and 2 warps arrive" in each.message]
    assert overruns, [each.message for each in found]
