"""initcheck: values that were never set, tracked to their uses, as the oracle does."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pytest
from numpy.typing import NDArray
from sanitizing import Outcome, by_oracle, run

from gemmkit.findings import Finding

OUT = np.zeros(512, np.float32)
IN = np.arange(512, dtype=np.float32)
NUMBERS = np.arange(64, dtype=np.int32)
FIVE = np.int32(5)
Arguments = Mapping[str, NDArray[np.generic] | np.generic]
# Lines of the use and of the load that the value comes from; None if a register was never set.
Lines = tuple[int, int | None]

PLAIN: Arguments = {"out": OUT, "in": IN, "n": FIVE}


def lines_of(finding: Finding) -> Lines:
    if finding.other is None:
        return finding.here.line, None
    return finding.other.line, finding.here.line


def checked(
    source: str,
    arguments: Arguments = PLAIN,
    threads: int = 64,
    unwritten: Collection[str] = (),
) -> Outcome:
    """What the engine finds; the oracle must find the same."""
    block = (threads, 1, 1)
    outcome = run(source, arguments, block=block, unwritten=unwritten)
    findings = by_oracle(source, arguments, block=block, unwritten=unwritten)

    def facts(found: Collection[Finding]) -> list[tuple[object, ...]]:
        return sorted((each.check, each.kind, each.message) for each in found)

    assert facts(outcome.findings) == facts(findings)
    return outcome


ACCUMULATOR = """k(float* out, const float* in, int n) {
    float sum SET;
    for (int i = 0; i < n; ++i)
        sum += in[i] * in[threadIdx.x];
    out[threadIdx.x] = sum;
}"""
TILE = """k(float* out, const float* in, int n) {
    float sum[2][3] SET;
    for (int i = 0; i < n; ++i)
        for (int r = 0; r < 2; ++r)
            for (int c = 0; c < 3; ++c) sum[r][c] += in[i + r] * in[threadIdx.x + c];
    for (int r = 0; r < 2; ++r)
        for (int c = 0; c < 3; ++c)
            out[(2 * threadIdx.x + r) * 3 + c] = sum[r][c];
}"""
ONE_LEFT = """k(float* out, const float* in, int n) {
    float sum[4];
    for (int i = 0; i < COUNT; ++i) sum[i] = 0;
    for (int p = 0; p < n; ++p)
        for (int i = 0; i < 4; ++i) sum[i] += in[p] * in[4 * threadIdx.x + i];
    for (int i = 0; i < 4; ++i)
        out[4 * threadIdx.x + i] = sum[i];
}"""
SOME_LANES = """k(float* out, const float* in, int n) {
    float value;
    if (threadIdx.x < n) value = in[threadIdx.x];
    if (threadIdx.x < LIMIT)
        out[threadIdx.x] = value;
}"""
GREATEST = """k(float* out, const float* in, int n) {
    float most START;
    for (int i = 0; i < n; ++i) if (in[i] > most) most = in[i];
    out[threadIdx.x] = most;
}"""
WHOLE_NUMBERS = """k(int* out, const int* in, int n) {
    int sum SET;
    for (int i = 0; i < n; ++i) sum += in[i] & threadIdx.x;
    out[threadIdx.x] = sum;
}"""
DOUBLES = """k(float* out, const float* in, int n) {
    double sum SET;
    for (int i = 0; i < n; ++i) sum += in[i];
    out[threadIdx.x] = sum;
}"""
EXCHANGED = """k(float* out, const float* in, int n) {
    float value;
    if (threadIdx.x < n) value = in[threadIdx.x];
    float other = __shfl_xor_sync(~0u, value, 1);
    if (threadIdx.x < LIMIT)
        out[threadIdx.x] = other;
}"""


@pytest.mark.parametrize(
    ("bug", "sound", "line"),
    [
        (ACCUMULATOR.replace("SET", ""), ACCUMULATOR.replace("SET", "= 0"), 5),
        (TILE.replace("SET", ""), TILE.replace("SET", "= {}"), 8),
        (ONE_LEFT.replace("COUNT", "3"), ONE_LEFT.replace("COUNT", "4"), 7),
        (SOME_LANES.replace("LIMIT", "n + 1"), SOME_LANES.replace("LIMIT", "n"), 5),
        (GREATEST.replace("START", ""), GREATEST.replace("START", "= -1"), 4),
        (DOUBLES.replace("SET", ""), DOUBLES.replace("SET", "= 0"), 4),
        (EXCHANGED.replace("LIMIT", "n + 1"), EXCHANGED.replace("LIMIT", "n - 1"), 6),
    ],
    ids=["scalar", "tile", "one element", "some lanes", "maximum", "double", "shuffle"],
)
def test_variables_never_set(bug: str, sound: str, line: int) -> None:
    found = checked(bug).only
    assert (found.check, found.kind) == ("initcheck", "uninitialized")
    assert lines_of(found) == (line, None)
    assert "a value that was never set is stored to global memory" in found.message
    assert not checked(sound).findings


def test_integers_never_set() -> None:
    arguments = {"out": OUT, "in": NUMBERS, "n": FIVE}
    found = checked(WHOLE_NUMBERS.replace("SET", ""), arguments).only
    assert lines_of(found) == (4, None)
    assert not checked(WHOLE_NUMBERS.replace("SET", "= 0"), arguments).findings


def test_the_thread_that_has_no_value() -> None:
    found = checked(SOME_LANES.replace("LIMIT", "9")).only
    assert (found.here.thread, found.count) == ((5, 0, 0), 1)
    assert "by thread (5, 0, 0) of block (0, 0, 0) at kernel.cu:5" in found.message


LOCAL = """k(float* out, const int* in, int n) {
    float own[8];
    for (int i = 0; i < COUNT; ++i) own[in[i]] = i;
    float sum = 0;
    for (int i = 0; i < n; ++i)
        sum += own[in[i]];
    out[threadIdx.x] = sum;
}"""


def test_local_memory_never_written() -> None:
    arguments = {"out": OUT, "in": NUMBERS, "n": FIVE}
    found = checked(LOCAL.replace("COUNT", "4"), arguments).only
    assert (lines_of(found), found.array, found.offset) == ((7, 6), "local memory", 16)
    assert not checked(LOCAL.replace("COUNT", "n"), arguments).findings
    # Before each block, local memory is undefined.
    source = LOCAL.replace("COUNT", "(blockIdx.x ? 4 : n)")
    source = source.replace("[threadIdx.x] = sum", "[threadIdx.x + 64 * blockIdx.x] = sum")
    assert run(source, arguments, grid=(2, 1, 1)).only.block == (1, 0, 0)


PADDED = """k(float* out) {
    __shared__ float4 rows[64];
    float* own = (float*)&rows[threadIdx.x];
    own[0] = 1; own[1] = threadIdx.x; own[2] = 3;
    __syncthreads();
    float4 row = rows[63 - threadIdx.x];
    out[threadIdx.x] = row.x + row.y + row.z USED;
}"""


def test_a_padding_word_that_a_vector_brings_along() -> None:
    found = checked(PADDED.replace("USED", "+ row.w"), {"out": OUT}).only
    assert (lines_of(found), found.array, found.offset) == ((7, 6), "rows", 63 * 16 + 12)
    assert found.message.endswith(
        "which was never written; the value is stored to global memory by thread (0, 0, 0) of "
        "block (0, 0, 0) at kernel.cu:7"
    )
    assert not checked(PADDED.replace("USED", ""), {"out": OUT}).findings


BYTES = """k(unsigned* out) {
    __shared__ unsigned char bytes[256];
    for (int i = 0; i < 3; ++i) bytes[4 * threadIdx.x + i] = threadIdx.x;
    __syncthreads();
    unsigned word = ((unsigned*)bytes)[threadIdx.x];
    out[threadIdx.x] = (word & 255) + (word >> 8 & 255) + (word >> SHIFT & 255);
}"""


def test_bytes_of_a_word() -> None:
    found = checked(BYTES.replace("SHIFT", "24"), {"out": OUT}).only
    assert (lines_of(found), found.offset) == ((6, 5), 3)
    assert not checked(BYTES.replace("SHIFT", "16"), {"out": OUT}).findings


HALVES = """k(unsigned* out, const uint2* in) {
    uint2 pair = in[threadIdx.x];
    out[threadIdx.x] = MADE;
}"""


def test_global_memory_of_which_a_part_is_never_used() -> None:
    arguments = {"out": OUT, "in": IN}
    assert not checked(HALVES.replace("MADE", "pair.x * 0u"), arguments).findings
    found = checked(HALVES.replace("MADE", "pair.x"), arguments, unwritten=["in"]).only
    assert (found.array, found.offset, found.count) == ("in", 0, 2)
    # Loaded (a volatile load is not eliminated), and not used.
    idle = "k(float* out, const volatile float* in) { in[threadIdx.x]; out[threadIdx.x] = 1; }"
    assert not checked(idle, arguments, unwritten=["in"]).findings


STAGED = """k(float* out, const float* in, int n) {
    __shared__ float tile[64];
    float value;
    if (threadIdx.x < n) value = __ldg(in + threadIdx.x);
    asm volatile("st.shared.f32 [%0], %1;" :: "r"(4 * threadIdx.x), "f"(value) : "memory");
    __syncthreads();
    if (threadIdx.x < LIMIT)
        out[threadIdx.x] = tile[threadIdx.x];
}"""


def test_undefined_values_go_through_shared_memory() -> None:
    found = checked(STAGED.replace("LIMIT", "n + 1")).only
    assert (lines_of(found), found.array, found.offset) == ((8, 8), "tile", 20)
    assert "which was never written, or with a value that was never set, at kernel.cu:5" in (
        found.message
    )
    assert not checked(STAGED.replace("LIMIT", "n")).findings


@pytest.mark.parametrize(
    ("use", "what"),
    [
        ("out[index] = 1;", "is an address of st.global"),
        ("if (index > 3) out[threadIdx.x] = 1;", "decides a branch"),
        ("atomicAdd((int*)out + threadIdx.x, index);", "is an operand of an atomic operation"),
        ("out[__syncthreads_count(index > 3)] = 1;", "is an operand of a barrier"),
        ("out[threadIdx.x] = __shfl_sync(~0u, 1.0f, index);", "is an operand of shfl.sync.idx"),
        ("out[threadIdx.x] = __ballot_sync(~0u, index > 3);", "is stored to global memory"),
    ],
    ids=["address", "branch", "atomic", "barrier", "shuffled lane", "ballot"],
)
def test_uses(use: str, what: str) -> None:
    source = f"""k(float* out, const int* in) {{
        __shared__ int table[64];
        if (threadIdx.x < LIMIT) table[threadIdx.x] = in[threadIdx.x];
        __syncthreads();
        int index = table[threadIdx.x] & 63;
        {use}
    }}"""
    arguments = {"out": OUT, "in": NUMBERS}
    outcome = checked(source.replace("LIMIT", "40"), arguments)
    found = next(each for each in outcome.findings if each.check == "initcheck")
    assert found.array == "table"
    assert what in found.message
    twin = checked(source.replace("LIMIT", "64"), arguments).findings
    assert not [each for each in twin if each.check == "initcheck"]


def test_matrices_of_which_some_rows_are_not_there() -> None:
    """Undefined rows of A make their own rows of the product undefined, and no others."""
    source = """k(double* out, const double* in, int rows) {
        double a, d0 = 0, d1 = 0;
        if (threadIdx.x / 4 < rows) a = in[threadIdx.x];
        asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 "
            "{%0, %1}, {%2}, {%3}, {%0, %1};" : "+d"(d0), "+d"(d1) : "d"(a), "d"(1.0));
        if (threadIdx.x / 4 < LIMIT)
            out[threadIdx.x] = d0 + d1;
    }"""
    numbers = np.zeros(64)
    arguments = {"out": numbers, "in": numbers, "rows": FIVE}
    found = checked(source.replace("LIMIT", "rows + 1"), arguments, 32).only
    assert (lines_of(found), found.here.thread) == ((7, None), (20, 0, 0))
    assert not checked(source.replace("LIMIT", "rows"), arguments, 32).findings


def test_packed_sums_of_which_some_rows_are_not_there() -> None:
    """Two rows of binary16 sums are in two registers; two columns share one."""
    source = """k(unsigned* out, const unsigned* in, int rows) {
        unsigned a0, a1, d0 = 0, d1 = 0;
        if (threadIdx.x / 4 < rows) a0 = in[threadIdx.x];
        a1 = in[threadIdx.x + 32];
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 "
            "{%0, %1}, {%2, %3}, {%3}, {%0, %1};" : "+r"(d0), "+r"(d1) : "r"(a0), "r"(a1));
        out[threadIdx.x + 32] = d1;
        if (threadIdx.x / 4 < LIMIT)
            out[threadIdx.x] = d0 >> 16;
    }"""
    words = np.zeros(64, np.uint32)
    arguments = {"out": words, "in": words, "rows": FIVE}
    found = checked(source.replace("LIMIT", "rows + 1"), arguments, 32).only
    assert (lines_of(found), found.here.thread) == ((9, None), (20, 0, 0))
    assert not checked(source.replace("LIMIT", "rows"), arguments, 32).findings


def test_one_finding_for_one_cause() -> None:
    source = """k(float* out) {
        __shared__ float tile[64];
        if (threadIdx.x < 32) tile[threadIdx.x] = 1;
        __syncthreads();
        float value = tile[63 - threadIdx.x];
        out[threadIdx.x + 64 * blockIdx.x] = value;
        out[threadIdx.x + 64 * blockIdx.x + 256] = value + 1;
    }"""
    outcome = run(source, {"out": OUT}, grid=(3, 1, 1))
    assert (lines_of(outcome.only), outcome.only.count) == ((6, 5), 6)


def test_a_value_that_was_read_unset_and_kept_in_shared_memory_is_found_where_it_was_read() -> None:
    source = """k(float* out, const float* in, int n) {
    __shared__ float tile[64], results[64];
    if (threadIdx.x > n) tile[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    float sum = tile[threadIdx.x ^ 1] + in[threadIdx.x];
    results[threadIdx.x] = sum;
    __syncthreads();
    out[threadIdx.x] = results[63 - threadIdx.x];
}"""
    findings = checked(source).findings
    assert {(each.array, lines_of(each)) for each in findings} == {("tile", (8, 5))}
