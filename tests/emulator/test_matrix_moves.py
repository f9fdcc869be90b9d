"""`ldmatrix`, `stmatrix` and `movmatrix` on every executor: results, addresses, counts."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from launching import Executor, kernel_ptx, launch

from gemmkit.jit.compiler import compile_source
from gemmkit.kernels.plan import SourceFile

DATA = Path(__file__).parent / "data" / "ldmatrix_stmatrix.csv"
FORMS = [(count, turned) for count in (1, 2, 4) for turned in ("", ".trans")]

LOADS, STORES = "ldsm", "shared_stsm"


def registers(count: int) -> str:
    return "{" + ", ".join(f"%x{number}" for number in range(count)) + "}"


def moving(instruction: str, count: int, *, words: int = 1024) -> str:
    """The kernel (out, in, offsets) copies `in` to shared memory, runs the instruction with the
    lanes' byte offsets from there, and copies registers and shared memory to `out`."""
    loads = "\n".join(
        f"ld.global.b32 %v, [%rd1+{128 * row}]; st.shared.b32 [%here+{128 * row}], %v;"
        for row in range(words // 32)
    )
    fill = "\n".join(f"ld.global.b32 %x{n}, [%rd1+{128 * n}];" for n in range(count))
    store = "\n".join(f"st.global.b32 [%rd0+{128 * n}], %x{n};" for n in range(4))
    back = "\n".join(
        f"ld.shared.b32 %v, [%here+{128 * row}]; st.global.b32 [%rd0+{512 + 128 * row}], %v;"
        for row in range(words // 32)
    )
    return kernel_ptx(
        f"""
        mov.b32 %x0, 0; mov.b32 %x1, 0; mov.b32 %x2, 0; mov.b32 %x3, 0;
        mul.wide.u32 %lane, %tid, 4;
        add.s64 %rd0, %rd0, %lane; add.s64 %rd1, %rd1, %lane; add.s64 %rd2, %rd2, %lane;
        mov.u32 %base, tile; shl.b32 %v, %tid, 2; add.u32 %here, %base, %v;
        {loads}
        bar.warp.sync -1;
        ld.global.u32 %v, [%rd2]; add.u32 %row, %base, %v;
        {fill if instruction.startswith("st") else ""}
        {instruction}
        bar.warp.sync -1;
        {store}
        {back}
        """,
        pointers=3,
        target="sm_90",
        declarations=f".reg .b32 %x<4>, %v, %here, %base, %row; .reg .b64 %lane;"
        f".shared .align 128 .b8 tile[{4 * words}];",
    )


def outputs(executor: Executor, instruction: str, count: int, given: np.ndarray, at: list[int]):
    offsets = np.array(at, np.uint32)
    text = moving(instruction, count, words=given.size)
    out = np.zeros((4 + given.size // 32, 32), np.uint32)
    outcome = launch(executor, text, out, given.reshape(-1, 32), offsets)
    return outcome, outcome.arrays[0][:4], outcome.arrays[0][4:].reshape(-1).view(np.uint16)


def some_rows(rng: np.random.Generator) -> list[int]:
    """Distinct rows of 16 bytes in 4 KiB, in random order."""
    return (16 * rng.permutation(256)[:32]).tolist()


@pytest.mark.parametrize(("count", "turned"), FORMS)
def test_loads_distribute_rows(executor: Executor, count: int, turned: str) -> None:
    rng = np.random.default_rng(count)
    given, at = rng.integers(0, 2**32, 1024, np.uint32), some_rows(rng)
    text = f"ldmatrix.sync.aligned.m8n8.x{count}{turned}.shared.b16 {registers(count)}, [%row];"
    # Addresses of lanes without a row mean nothing.
    at[8 * count :] = [3] * (32 - 8 * count)
    _, found, _ = outputs(executor, text, count, given, at)
    memory = given.view(np.uint16)
    for number in range(count):
        matrix = np.stack([memory[at[8 * number + row] // 2 :][:8] for row in range(8)])
        matrix = matrix.T if turned else matrix
        assert np.array_equal(found[number].view(np.uint16).reshape(8, 8), matrix)


@pytest.mark.parametrize(("count", "turned"), FORMS)
def test_stores_collect_rows(executor: Executor, count: int, turned: str) -> None:
    rng = np.random.default_rng(count)
    given, at = rng.integers(0, 2**32, 1024, np.uint32), some_rows(rng)
    text = f"stmatrix.sync.aligned.m8n8.x{count}{turned}.shared.b16 [%row], {registers(count)};"
    at[8 * count :] = [3] * (32 - 8 * count)
    _, _, found = outputs(executor, text, count, given, at)
    wanted = given.view(np.uint16).copy()
    for number in range(count):
        matrix = given[32 * number :][:32].view(np.uint16).reshape(8, 8)
        for row, numbers in enumerate(matrix.T if turned else matrix):
            wanted[at[8 * number + row] // 2 :][:8] = numbers
    assert np.array_equal(found, wanted)


def test_movmatrix_transposes(executor: Executor) -> None:
    given = np.random.default_rng(1).integers(0, 2**32, 1024, np.uint32)
    text = "ld.shared.b32 %x1, [%here]; movmatrix.sync.aligned.m8n8.trans.b16 %x0, %x1;"
    _, found, _ = outputs(executor, text, 1, given, [0] * 32)
    matrix = given[:32].view(np.uint16).reshape(8, 8)
    assert np.array_equal(found[0].view(np.uint16).reshape(8, 8), matrix.T)


def measured() -> list[dict[str, str]]:
    """What an H100 counted for requests of one warp, by the rows' byte offsets."""
    with DATA.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("kind", ["ldm1", "ldm2", "ldm4", "stm1", "stm2", "stm4"])
@pytest.mark.sample(5)
def test_wavefronts_are_the_hardwares(executor: Executor, kind: str) -> None:
    count, way = int(kind[3:]), "ld" if kind.startswith("ld") else "st"
    given = np.zeros(4096, np.uint32)
    lists = registers(count)
    operands = f"{lists}, [%row]" if way == "ld" else f"[%row], {lists}"
    text = f"{way}matrix.sync.aligned.m8n8.x{count}.shared.b16 {operands};"
    rows = [row for row in measured() if row["kind"] == kind]
    assert rows
    for row in rows:
        at = [int(each) for each in row["offsets"].split()]
        metrics = outputs(executor, text, count, given, at)[0].metrics
        found = [
            metrics[f"smsp__sass_l1tex_data_{which}_mem_shared_op_{way}sm.sum"]
            for which in ("pipe_lsu_wavefronts", "bank_conflicts_pipe_lsu")
        ]
        wanted = [float(row[f"{which}_per_req"]) for which in ("wavefronts", "bank_conflicts")]
        assert found == wanted, row
        name = LOADS if way == "ld" else STORES
        assert metrics[f"smsp__sass_inst_executed_op_{name}.sum"] == 1


# Of one warp of each kernel, with the leading dimension given; read by Nsight Compute 2025.3 on an
# H100 (shared-memory loads: without those of the last line).
_SHARED = "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_"
_ON_H100 = {
    ("in_shared", 16): {
        "smsp__sass_inst_executed_op_ldsm.sum": 2,
        f"{_SHARED}ldsm.sum": 16,
        "smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ldsm.sum": 8,
        "smsp__sass_inst_executed_op_shared_ld.sum": 1,
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": 17,
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": 8,
        "smsp__sass_inst_executed_op_shared_st.sum": 4,
        f"{_SHARED}st.sum": 16,
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum": 8,
    },
    ("in_global", 16): {
        "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 8,
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 64,
        "l1tex__t_output_wavefronts_pipe_lsu_mem_global_op_ld.sum": 8,
        "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": 4,
        "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": 32,
        "l1tex__t_output_wavefronts_pipe_lsu_mem_global_op_st.sum": 4,
        "smsp__sass_inst_executed_op_ldsm.sum": 0,
    },
    ("in_global", 64): {
        "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 8,
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 64,
        "l1tex__t_output_wavefronts_pipe_lsu_mem_global_op_ld.sum": 16,
        "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": 4,
        "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": 32,
        "l1tex__t_output_wavefronts_pipe_lsu_mem_global_op_st.sum": 8,
    },
}
_WMMA = """
#include <mma.h>
using namespace nvcuda::wmma;
__device__ void multiply(const half* from, int pitch, float* to) {
  fragment<matrix_a, 16, 16, 16, half, row_major> a;
  fragment<matrix_b, 16, 16, 16, half, row_major> b;
  fragment<accumulator, 16, 16, 16, float> c;
  load_matrix_sync(a, from, pitch);
  load_matrix_sync(b, from + 512, pitch);
  fill_fragment(c, 0);
  mma_sync(c, a, b, c);
  store_matrix_sync(to, c, pitch, mem_row_major);
}
"""
_KERNELS = {
    "in_shared": """
__global__ void in_shared(int pitch, int* out) {
  extern __shared__ __align__(1024) char tile[];
  multiply((half*)tile, pitch, (float*)(tile + 8192));
  out[threadIdx.x] = tile[8192 + threadIdx.x];
}
""",
    "in_global": """
__global__ void in_global(int pitch, int* out) {
  multiply((half*)out, pitch, (float*)(out + 8192));
}
""",
}


@pytest.mark.parametrize(("entry", "pitch"), _ON_H100)
def test_wmma_counts_as_on_an_h100(
    executor: Executor, tmp_path: Path, entry: str, pitch: int
) -> None:
    file = SourceFile(_WMMA + _KERNELS[entry], "my.cu", "cuda", (str(tmp_path),))
    ptx = compile_source(file, entry, "sm_90", assemble=False).ptx
    out = np.zeros(1 << 15, np.int32)
    outcome = launch(executor, ptx, np.int32(pitch), out, shared_bytes=16384)
    wanted = _ON_H100[entry, pitch]
    assert {name: outcome.metrics[name] for name in wanted} == wanted
