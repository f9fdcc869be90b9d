"""Programmatic dependent launches: what touches global memory before `griddepcontrol.wait` is a
finding, unless barriers, mbarriers or copies order it after another thread's wait."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizing import run

_WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
_LAUNCH = 'asm volatile("griddepcontrol.launch_dependents;" ::: "memory");'
_COMMON = """
k(const float* a, float* out, int n) {
  __shared__ float data[64];
  const int t = threadIdx.x, at = blockIdx.x * blockDim.x + t;
  BODY
}
"""
_NOT_WAITED = {("racecheck", "earlier launch not waited for")}
_APART = {("racecheck", "lanes not in step")}
_NEVER = {("synccheck", "launch that never waits")}
# The body after the index, and what is found in it.
BODIES = {
    "all wait first": (f"{_WAIT} out[at] = a[at] + n; {_LAUNCH}", set()),
    "shared memory before": (
        f"data[t] = n; __syncthreads(); {_WAIT} out[at] = data[63 - t];", set()),
    "read before": (
        f"float x = *(volatile const float*)&a[at]; {_WAIT} out[at] = x;", _NOT_WAITED),
    "written before": (f"out[at] = n; {_WAIT}", _NOT_WAITED),
    "counted before": (f"atomicAdd(&out[0], 1.0f); {_WAIT}", _NOT_WAITED),
    "prefetched before": (
        f'asm volatile("prefetch.global.L2 [%0];" :: "l"(a)); {_WAIT} out[at] = a[at];', set()),
    "cp.async before": (
        'asm volatile("cp.async.ca.shared.global [%0], [%1], 4; cp.async.wait_all;" :: '
        '"r"((int)__cvta_generic_to_shared(&data[t])), "l"(&a[at]) : "memory");'
        f"{_WAIT} out[at] = data[t];", _NOT_WAITED),
    "one warp waits, then a barrier": (
        f"if (t < 32) {{ {_WAIT} }} __syncthreads(); out[at] = a[at];", set()),
    "one lane waits, then a barrier": (
        f"if (t == 32) {{ {_WAIT} }} __syncthreads(); out[at] = a[at];", set()),
    "one lane waits, then a barrier that counts": (
        f'if (t == 32) {{ {_WAIT} }} asm volatile("bar.sync 1, 64;" ::: "memory");'
        "out[at] = a[at];", set()),
    "a barrier before the wait": (
        f"__syncthreads(); if (t < 32) {{ {_WAIT} }} out[at] = a[at];", _NOT_WAITED),
    "a barrier of others": (
        f'if (t < 32) {{ {_WAIT} }} else asm volatile("bar.sync 1, 32;" ::: "memory");'
        "out[at] = a[at];", _NOT_WAITED),
    "one lane of each warp waits, in step": (
        f"if (t % 32 == 0) {{ {_WAIT} }} __syncwarp(); out[at] = a[at];", set()),
    "one lane of each warp waits": (
        f"if (t % 32 == 0) {{ {_WAIT} }} out[at] = a[at];", _APART),
    "lanes of another branch": (
        f"if (t % 2 == 0) {{ {_WAIT} }} else out[at] = 1; __syncthreads();", _NOT_WAITED),
    "lanes of another branch, after it": (
        f"if (t % 2 == 0) {{ {_WAIT} }} else {{ out[at] = 1; }}"
        "if (t % 2) out[at] = 2; __syncwarp();", _NOT_WAITED),
    "some blocks have nothing to do": (
        f"if (blockIdx.x > 0) return; {_WAIT} out[at] = a[at];", set()),
    "no block waits": (f"if (n > 7) {{ {_WAIT} out[at] = a[at]; }}", _NEVER),
    "flags in shared memory": (
        f"__shared__ int flag; if (t == 0) flag = 0; __syncthreads(); if (t < 32) {{ {_WAIT} "
        "__threadfence_block(); __syncwarp(); if (t == 0) *(volatile int*)&flag = 1; } else { "
        "if (t == 32) while (*(volatile int*)&flag == 0) {} __syncwarp(); __threadfence_block(); }"
        "out[at] = a[at];", set()),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.sample(3)
def test_accesses_before_a_wait(name: str) -> None:
    body, expected = BODIES[name]
    arguments = {
        "a": np.arange(128, dtype=np.float32),
        "out": np.zeros(128, np.float32),
        "n": np.int32(7),
    }
    found = run(_COMMON.replace("BODY", body), arguments, grid=(2, 1, 1), arch="sm_90")
    assert found.kinds == expected, found.findings
    for each in found.findings:
        assert "griddepcontrol.wait (cudaGridDependencySynchronize())" in each.message
        assert each.check == "synccheck" or each.other is not None


def test_message_names_both_lines() -> None:
    body = f"\n  out[at] = n;\n  {_WAIT}"
    found = run(_COMMON.replace("BODY", body),
                {"a": np.zeros(128, np.float32), "out": np.zeros(128, np.float32),
                 "n": np.int32(7)}, arch="sm_90")  # fmt: skip
    assert found.only.message == (
        "earlier launch not waited for: thread (0, 0, 0) of block (0, 0, 0) writes byte 0 of 'out' "
        "at kernel.cu:5, and neither it nor a thread that it has synchronized with has executed "
        "griddepcontrol.wait (cudaGridDependencySynchronize()) at kernel.cu:6: an earlier launch "
        "may still read or write it"
    )
    assert found.only.count == 2


# One thread loads rows by bulk copies, two warps double them and store the results.
_PIPELINE = """
__cluster_dims__(CLUSTER) k(const float* a, float* out, int n) {
  __shared__ alignas(128) float rows[2][64];
  __shared__ alignas(8) unsigned long long full[2], empty[2];
  const int t = threadIdx.x;
  const auto at = [](auto& x) { return (unsigned)__cvta_generic_to_shared(&x); };
  const auto wait = [&](unsigned long long& b, int parity) {
    asm volatile("{.reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;"
                 "@!p bra AGAIN;}" :: "r"(at(b)), "r"(parity) : "memory");
  };
  if (t == 0) {
    for (int i = 0; i < 2; ++i) {
      asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(at(full[i])) : "memory");
      asm volatile("mbarrier.init.shared.b64 [%0], 64;" :: "r"(at(empty[i])) : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  FIRST
  __syncthreads();
  if (t >= 64) {
    if (t == 64) {
      BEFORE
      for (int i = 0; i < 4; ++i) {
        wait(empty[i % 2], i / 2 % 2 ^ 1);
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 256;"
                     :: "r"(at(full[i % 2])) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1], 256, [%2];"
                     :: "r"(at(rows[i % 2])), "l"(a + 64 * i), "r"(at(full[i % 2])) : "memory");
      }
      AFTER
    }
  } else {
    EARLY
    for (int i = 0; i < 4; ++i) {
      wait(full[i % 2], i / 2 % 2);
      out[64 * i + t] = 2 * rows[i % 2][t];
      asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(at(empty[i % 2])) : "memory");
    }
  }
  LAST
}
"""
_EVERYONE = 'asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");'
_FIRST_BLOCK = (
    'unsigned r; asm("mov.u32 %0, %cluster_ctarank;" : "=r"(r));'
    f"if (r == 0 && t < 32) {{ {_WAIT} }}"
)
# What stands where, and what is found.
PIPELINES = {
    "the producer waits": ({"BEFORE": _WAIT}, set()),
    "all wait": ({"FIRST": _WAIT}, set()),
    "the producer waits too late": ({"AFTER": _WAIT}, _NOT_WAITED),
    "a consumer stores before its data is there": (
        {"BEFORE": _WAIT, "EARLY": "out[256 + t] = 0;"}, _NOT_WAITED),
    "all store after a barrier": (
        {"BEFORE": _WAIT, "LAST": "__syncthreads(); out[256 + t] = 0;"}, set()),
    "the producer's warp stores": (
        {"BEFORE": _WAIT, "LAST": "if (t >= 96) out[256 + t] = 0;"}, _NOT_WAITED),
    "one block of the cluster waits": (
        {"FIRST": f"{_FIRST_BLOCK} {_EVERYONE}", "CLUSTER": "2"}, set()),
    "one block of the cluster waits for itself": (
        {"FIRST": f"{_EVERYONE} {_FIRST_BLOCK}", "CLUSTER": "2"}, _NOT_WAITED),
}  # fmt: skip


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.sample(3)
def test_one_thread_that_waits_for_others(name: str) -> None:
    words, expected = PIPELINES[name]
    source = _PIPELINE
    for place in ("FIRST", "BEFORE", "AFTER", "EARLY", "LAST", "CLUSTER"):
        source = source.replace(place, words.get(place, "1" if place == "CLUSTER" else ""))
    arguments = {"a": np.arange(256, dtype=np.float32), "out": np.zeros(512, np.float32),
                 "n": np.int32(7)}  # fmt: skip
    for seed in (0, 1):
        found = run(
            source, arguments, grid=(int(words.get("CLUSTER", "1")), 1, 1), block=(128, 1, 1),
            arch="sm_90", warp_seed=seed,
        )  # fmt: skip
        assert found.kinds == expected, found.findings


_WEIGHTS = """
k(const float* a, const float* b, float* out) {
  __shared__ alignas(128) float data[64];
  __shared__ alignas(8) unsigned long long full;
  static float bias[64];
  const int t = threadIdx.x;
  EARLY
  WAIT
  LATE
  out[t] = x + a[t];
}
"""
_BULK = """
  const unsigned bar = (unsigned)__cvta_generic_to_shared(&full);
  if (t == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.proxy.async;"
    " mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 256;"
    " cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%1], [%2], 256, [%0];"
    :: "r"(bar), "r"((unsigned)__cvta_generic_to_shared(data)), "l"(b) : "memory");
"""
_LANDED = """
  __syncthreads();
  asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;"
    " @!p bra W; }" :: "r"(bar) : "memory");
  const float x = data[t];
"""


@pytest.mark.parametrize(
    ("early", "late", "array"),
    [
        ("const float x = *(volatile const float*)&b[t];", "", "b"),
        ("const float x = *(volatile float*)&bias[t];", "", "bias"),
        (_BULK, _LANDED, "b"),
    ],
)
@pytest.mark.sample
def test_arrays_that_no_earlier_launch_writes(early: str, late: str, array: str) -> None:
    source = _WEIGHTS.replace("EARLY", early).replace("LATE", late).replace("WAIT", _WAIT)
    arguments = {name: np.ones(64, np.float32) for name in ("a", "b", "out")}
    for told, expected in (
        ((), _NOT_WAITED),
        ((array,), set()),
        ((array.upper(),), set()),
        (("a", "out"), _NOT_WAITED),
    ):
        outcome = run(source, arguments, arch="sm_90", not_written_before=told)
        assert outcome.kinds == expected, outcome.findings
        assert {each.array for each in outcome.findings} <= {array}


def test_what_is_told_of_one_array_is_not_true_of_another_or_of_stores() -> None:
    early = "const float x = *(volatile const float*)&b[t] + *(volatile const float*)&a[t];"
    source = _WEIGHTS.replace("EARLY", early).replace("LATE", "").replace("WAIT", _WAIT)
    arguments = {name: np.ones(64, np.float32) for name in ("a", "b", "out")}
    found = run(source, arguments, arch="sm_90", not_written_before=("b",)).findings
    assert {each.array for each in found} == {"a"}
    # An earlier launch may still read what it does not write.
    source = source.replace(early, "const float x = 1; out[t] = 2;")
    found = run(source, arguments, arch="sm_90", not_written_before=("out",)).findings
    assert {each.array for each in found} == {"out"}
