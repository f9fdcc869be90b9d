"""The lines between which racecheck reports a missing barrier."""

from __future__ import annotations

import re

import numpy as np
import pytest
from sanitizing import Outcome, run

from gemmkit.findings import Finding

# A tile of which each warp reads the other's half in every iteration.
LOOP = """k(float* out, const float* in, int turns) {
    __shared__ float tile[64];
    float sum = 0;
    UNROLL
    for (int turn = 0; turn < turns; ++turn) {
        tile[threadIdx.x] = in[threadIdx.x] * turn;
        FIRST
        sum += tile[threadIdx.x ^ WHOM];
        SECOND
    }
    out[threadIdx.x] = sum;
}"""
BARRIER = "__syncthreads();"


def race(first: str, second: str, whom: int = 32, unroll: str = "") -> Outcome:
    words = {"FIRST": first, "SECOND": second, "WHOM": str(whom), "UNROLL": unroll}
    source = LOOP
    for word, text in words.items():
        source = source.replace(word, text)
    ones = np.ones(64, np.float32)
    return run(source, {"out": ones, "in": ones, "turns": np.int32(4)})


def racing(outcome: Outcome) -> list[Finding]:
    found = [each for each in outcome.findings if each.check == "racecheck"]
    assert found
    return found


@pytest.mark.parametrize("unroll", ["#pragma unroll 1", "#pragma unroll 4"])
def test_the_write_of_the_next_iteration(unroll: str) -> None:
    for found in racing(race(BARRIER, "", unroll=unroll)):
        assert found.message.endswith(
            "with no barrier between line 8 and line 6 of the next iteration; the barrier at "
            "line 7 comes before both"
        )


@pytest.mark.parametrize("unroll", ["#pragma unroll 1", "#pragma unroll 4"])
def test_the_write_of_the_same_iteration(unroll: str) -> None:
    messages = [each.message for each in racing(race("", BARRIER, unroll=unroll))]
    assert any("no barrier between line 6 and line 8; the barrier at line 9" in m for m in messages)
    assert not any("next iteration" in message for message in messages)


def test_a_warps_barrier_does_not_order_the_block() -> None:
    messages = [each.message for each in racing(race("__syncwarp();", BARRIER))]
    assert all(
        "between line 6 and line 8" in message
        and "the __syncwarp() at line 7 orders the lanes of one warp only" in message
        for message in messages
    )


def test_lanes_of_one_warp() -> None:
    (found,) = racing(race("__syncwarp();", "", whom=1))
    assert found.kind == "write after read"
    assert "no __syncwarp() or barrier between line 8 and line 6 of the next iteration" in (
        found.message
    )
    same = racing(race("", "__syncwarp();", whom=1))
    assert {each.kind for each in same} == {"read after write"}
    assert all("barrier between line 6 and line 8" in each.message for each in same)
    assert not race("__syncwarp();", "__syncwarp();", whom=1).findings


def test_no_barrier_at_all() -> None:
    source = """k(float* out) {
        __shared__ float tile[64];
        tile[threadIdx.x] = 1;
        out[threadIdx.x] = tile[threadIdx.x ^ 32];
    }"""
    for found in run(source).findings:
        if found.check == "racecheck":
            assert found.message.endswith("with no barrier between line 3 and line 4")


def test_lines_of_a_function_that_both_call() -> None:
    """The kernel's own lines determine the iteration, not those of the functions that it calls."""
    source = """k(float* out, int turns);
    __device__ __forceinline__ float read(float* tile) { return tile[threadIdx.x ^ 32]; }
    __device__ __forceinline__ void fill(float* tile, float x) { tile[threadIdx.x] = x; }
    extern "C" __global__ void k(float* out, int turns) {
        __shared__ float tile[64];
        float sum = 0;
        for (int turn = 0; turn < turns; ++turn) {
            fill(tile, turn);
            __syncthreads();
            sum += read(tile);
        }
        out[threadIdx.x] = sum;
    }"""
    outcome = run(source, {"out": np.zeros(64, np.float32), "turns": np.int32(3)})
    for found in racing(outcome):
        assert "between line 10 and line 8 of the next iteration" in found.message
        assert {found.here.line, found.other.line if found.other else 0} == {2, 3}


def test_races_of_one_missing_barrier_have_one_cause() -> None:
    source = """k(float* out, int turns) {
        __shared__ float As[64], Bs[64];
        float sum = 0;
        for (int turn = 0; turn < turns; ++turn) {
            As[threadIdx.x] = turn;
            Bs[threadIdx.x] = turn;
            __syncthreads();
            sum += As[threadIdx.x ^ 32];
            sum += Bs[threadIdx.x ^ 33];
            BARRIER
        }
        out[threadIdx.x] = sum;
    }"""
    arguments = {"out": np.zeros(64, np.float32), "turns": np.int32(3)}
    found = run(source.replace("BARRIER", ""), arguments).findings
    assert {each.array for each in found} == {"As", "Bs"}
    assert len({each.cause for each in found}) == 1
    assert re.fullmatch(r"no-barrier/after:\S+:7/next-iteration", found[0].cause)
    assert not run(source.replace("BARRIER", "__syncthreads();"), arguments).findings


def test_the_missing_barrier_in_global_memory() -> None:
    source = """k(float* out, float* tmp, int turns) {
        float sum = 0;
        for (int turn = 0; turn < turns; ++turn) {
            tmp[threadIdx.x] = turn;
            __syncthreads();
            sum += tmp[threadIdx.x ^ 32];
            BARRIER
        }
        out[threadIdx.x] = sum;
    }"""
    zeros = np.zeros(64, np.float32)
    arguments = {"out": zeros, "tmp": zeros, "turns": np.int32(3)}
    for found in run(source.replace("BARRIER", ""), arguments).findings:
        assert "line 6 and line 4 of the next iteration; the barrier at line 5" in found.message
        assert f" byte {found.offset} of 'tmp' at kernel.cu:{found.here.line}, " in found.message
    assert not run(source.replace("BARRIER", "__syncthreads();"), arguments).findings


def test_both_accesses_on_one_line() -> None:
    source = """k(float* out, int turns) {
        __shared__ float tile[64];
        tile[threadIdx.x] = 0;
        __syncthreads();
        for (int turn = 0; turn < turns; ++turn)
            tile[threadIdx.x] = tile[threadIdx.x ^ 32] + 1;
        out[threadIdx.x] = tile[threadIdx.x];
    }"""
    outcome = run(source, {"out": np.zeros(64, np.float32), "turns": np.int32(3)})
    messages = [each.message for each in racing(outcome)]
    assert any("no barrier between the two accesses on line 6" in each for each in messages)
    assert not any("line 6 and line 6" in each for each in messages)
