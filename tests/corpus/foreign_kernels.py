"""Kernels in the styles that users bring, and the bugs that such kernels have.

Each `foreign/*.cu` is correct; a bug changes a few of its words. The kernels are checked as a user
would check them: by file, with a grid and a block, and mostly on the shapes that `check` chooses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemmkit.bench.check import check
from gemmkit.check_record import CheckRecord
from gemmkit.kernels.kernel import Kernel

FOLDER = Path(__file__).parent / "foreign"
WRONG_RESULT = "wrong result"

_TILES_16 = {"grid": "(N+15)/16,(M+15)/16", "block": "16,16"}
_TILES_8 = {"grid": "(N+7)/8,(M+7)/8", "block": "8,8"}


@dataclass(frozen=True)
class Foreign:
    """How a kernel is given to `Kernel.from_file` and `check`.

    `shapes` replace the default ones when a bug is planted, to keep tests short.
    """

    kernel: Mapping[str, Any]
    shapes: tuple[str, ...]
    check: Mapping[str, Any] = field(default_factory=dict)


FOREIGN = {
    "square": Foreign({"grid": "(n+15)/16,(n+15)/16", "block": "16,16"}, ("33x33x33",)),
    "whole_tiles": Foreign(
        {"entry": "matmul<16>", "grid": "N/16,M/16", "block": "256", "multiple_of": 16},
        ("32x48x64",),
    ),
    "register_tile": Foreign({"grid": "(N+31)/32,(M+31)/32", "block": "64"}, ("37x45x19",)),
    "padded_float4": Foreign(_TILES_8, ("9x10x17",)),
    "double_buffer": Foreign({**_TILES_16, "shared": "4*16*16*4"}, ("17x18x65",)),
    "cp_async_ring": Foreign(
        {"grid": "N/16,M/16", "block": "16,16", "multiple_of": 16}, ("32x16x112",)
    ),
    "warp_dot": Foreign({"grid": "(M*N*32+63)/64", "block": "64"}, ("5x7x70",)),
    "atomic_split": Foreign(
        {"grid": "(N+7)/8,(M+7)/8,(K+7)/8", "block": "8,8"}, ("9x10x33",), {"beta": 1.0}
    ),
    "last_block": Foreign({"grid": "(N+7)/8,(M+7)/8,2", "block": "8,8"}, ("17x9x20",)),
    "half_inside": Foreign(_TILES_8, ("9x10x40",)),
    "bf16_mma": Foreign({"grid": "(N+7)/8,(M+15)/16", "block": "32"}, ("17x9x33",)),
    "matrix_struct": Foreign(_TILES_8, ("9x10x17",)),
    "nt": Foreign({**_TILES_8, "layout": "NT"}, ("9x10x17",)),
    "block_scratch": Foreign({"grid": "(M*N+15)/16", "block": "16,4"}, ("9x10x33",)),
    "local_array": Foreign({"grid": "(N+63)/64,(M+3)/4", "block": "8,4"}, ("9x69x17",)),
    "swizzled": Foreign(_TILES_16, ("17x18x33",)),
    "warp_synchronous": Foreign({"grid": "(N+31)/32,(M+3)/4", "block": "128"}, ("6x40x70",)),
    "column_major": Foreign(
        {
            "args": "N,M,K,alpha,B,ldb,A,lda,beta,C,ldc",
            "grid": "(N+7)/8,(M+7)/8",
            "block": "8,8",
        },
        ("9x10x17",),
    ),
    "wmma_tiles": Foreign(
        {"grid": "N/32,M/16", "block": "64", "multiple_of": (16, 32, 16)},
        ("16x32x48",),
        {"dtype": "float16", "out_dtype": "float32"},
    ),
    "ldmatrix_swizzled": Foreign(
        {"grid": "N/32,M/64", "block": "128", "multiple_of": (64, 32, 32)},
        ("64x32x64",),
        {"dtype": "bfloat16", "gpu": "h100"},
    ),
}


@dataclass(frozen=True)
class Bug:
    """A bug of a foreign kernel: `old`, which occurs exactly once, becomes `new`.

    `expects` lists what must be reported, one of them being enough: a check, or a wrong result.
    `gpu` is the board that shows it, if not every board does.
    """

    kernel: str
    name: str
    old: str
    new: str
    expects: tuple[str, ...]
    shapes: tuple[str, ...] = ()
    check: Mapping[str, Any] = field(default_factory=dict)
    gpu: str = "rtx3090"


RACE, INIT, MEM, SYNC = ("racecheck",), ("initcheck",), ("memcheck",), ("synccheck",)
WRONG = (WRONG_RESULT,)

_SYNC = "    __syncthreads();\n"

BUGS = (
    # --- square -------------------------------------------------------------------------------
    Bug("square", "no barrier after the products", "sa[ty][k] * sb[k][tx];\n" + _SYNC,
        "sa[ty][k] * sb[k][tx];\n", RACE),
    Bug("square", "no barrier before the products", ": 0.0f;\n" + _SYNC, ": 0.0f;\n", RACE),
    Bug("square", "accumulator never set", "float acc = 0.0f;", "float acc;", INIT),
    Bug("square", "last tile left out", "t < (n + TILE - 1) / TILE", "t < n / TILE", WRONG),
    Bug("square", "no guard of the store", "if (row < n && col < n) c[", "c[", MEM),
    Bug("square", "operands exchanged", "sa[ty][k] * sb[k][tx]", "sb[ty][k] * sa[k][tx]", WRONG),
    # --- whole_tiles --------------------------------------------------------------------------
    Bug("whole_tiles", "no second barrier", "Bs[k * TILE + col];\n" + _SYNC,
        "Bs[k * TILE + col];\n", RACE),
    Bug("whole_tiles", "B steps by one row too few", "B += TILE * N;", "B += (TILE - 1) * N;",
        WRONG),
    Bug("whole_tiles", "transposed tile of A", "As[row * TILE + k]", "As[k * TILE + row]", WRONG),
    Bug("whole_tiles", "tile read past its end", "Bs[k * TILE + col];", "Bs[k * TILE + col + 1];",
        (*MEM, *INIT)),
    # --- register_tile ------------------------------------------------------------------------
    Bug("register_tile", "accumulators never set", "acc[TM][TN] = {}", "acc[TM][TN]", INIT),
    Bug("register_tile", "one column of results a thread left", "for (int j = 0; j < TN; ++j)\n",
        "for (int j = 0; j < TN - 1; ++j)\n", WRONG),
    Bug("register_tile", "tile of A overruns into B's", "As[k][r] = row0",
        "As[k + 1][r] = row0", (*MEM, *INIT, *RACE)),
    Bug("register_tile", "beta ignored", "alpha * acc[i][j] + beta * old",
        "alpha * acc[i][j]", WRONG, check={"beta": -0.5}),
    Bug("register_tile", "C read although beta is 0", "beta == 0.0f ? 0.0f : C[row * N + col]",
        "C[row * N + col]", INIT),
    Bug("register_tile", "alpha applied twice", "alpha * acc[i][j]", "alpha * alpha * acc[i][j]",
        WRONG, check={"alpha": 0.5}),
    Bug("register_tile", "no barrier at the end of the loop",
        "Bs[k][thread_col + j];\n    }\n" + _SYNC, "Bs[k][thread_col + j];\n    }\n", RACE),
    Bug("register_tile", "last step of k guards A by M", "row0 + r < M && k0 + k < K ? A",
        "row0 + r < M ? A", (*MEM, *WRONG)),
    Bug("register_tile", "more threads than launch bounds", "__launch_bounds__(64)",
        "__launch_bounds__(32)", ("failed", "refused")),
    # --- padded_float4 ------------------------------------------------------------------------
    Bug("padded_float4", "pad word used", "if (k + i < T) sum", "if (k + i <= T) sum", INIT),
    Bug("padded_float4", "misaligned read", "&As[row * PITCH + (k & ~3)]", "&As[row * PITCH + k]",
        MEM),
    Bug("padded_float4", "pitch smaller than a row", "T = 8, PITCH = T + 4", "T = 8, PITCH = 4",
        (*MEM, *RACE, *INIT)),
    # --- double_buffer ------------------------------------------------------------------------
    Bug("double_buffer", "one buffer only", "const int now = step & 1;", "const int now = 0;",
        (*RACE, *WRONG)),
    Bug("double_buffer", "loads the buffer in use", "load(step + 1, now ^ 1)",
        "load(step + 1, now)", RACE),
    Bug("double_buffer", "no barrier in the loop", "+ k * BS + tx];\n" + _SYNC,
        "+ k * BS + tx];\n", RACE),
    Bug("double_buffer", "no barrier before the loop", "load(0, 0);\n  __syncthreads();",
        "load(0, 0);", RACE),
    Bug("double_buffer", "half the dynamic memory", "smem + 2 * BS * BS", "smem + 3 * BS * BS",
        MEM),
    Bug("double_buffer", "barrier in a branch", "    __syncthreads();\n  }\n  if (row < M",
        "    if (row < M) __syncthreads();\n  }\n  if (row < M", (*SYNC, *RACE)),
    # --- cp_async_ring ------------------------------------------------------------------------
    Bug("cp_async_ring", "waits for one group too few", "wait<STAGES - 2>();",
        "wait<STAGES - 1>();", (*RACE, *INIT)),
    Bug("cp_async_ring", "no wait", "    wait<STAGES - 2>();\n", "", (*RACE, *INIT)),
    Bug("cp_async_ring", "no barrier", "    wait<STAGES - 2>();\n    __syncthreads();\n",
        "    wait<STAGES - 2>();\n", RACE),
    Bug("cp_async_ring", "refills the stage in use", "fetch(step + STAGES - 1);",
        "fetch(step + STAGES);", (*RACE, *WRONG)),
    Bug("cp_async_ring", "commits only what it copies", "    }\n    commit();",
        "      commit();\n    }", (*RACE, *INIT)),
    # --- warp_dot -----------------------------------------------------------------------------
    Bug("warp_dot", "shuffles from 8 on", "step = 16;", "step = 8;", WRONG),
    Bug("warp_dot", "lanes leave before the shuffles", "  float sum = 0.0f;\n",
        "  float sum = 0.0f;\n  if (lane >= K % 32 + 8) return;\n", SYNC),
    Bug("warp_dot", "mask names half the warp", "0xffffffffu", "0x0000ffffu", SYNC),
    Bug("warp_dot", "every lane stores its own sum", "if (lane == 0) C", "C", (*RACE, *WRONG)),
    Bug("warp_dot", "stride of 31", "k += 32", "k += 31", WRONG),
    # --- atomic_split -------------------------------------------------------------------------
    Bug("atomic_split", "no atomic", "atomicAdd(&C[row * N + col], sum);",
        "C[row * N + col] += sum;", RACE),
    Bug("atomic_split", "parts overlap", "min(begin + PART, K)", "min(begin + PART + 1, K)", WRONG),
    Bug("atomic_split", "past the end of k", "min(begin + PART, K)", "begin + PART",
        (*MEM, *WRONG)),
    # --- last_block ---------------------------------------------------------------------------
    Bug("last_block", "no fence before the counter",
        "  __threadfence();\n  __syncthreads();\n  if (tx", "  __syncthreads();\n  if (tx", RACE),
    Bug("last_block", "no barrier before the counter",
        "  __threadfence();\n  __syncthreads();\n  if (tx", "  __threadfence();\n  if (tx", RACE),
    Bug("last_block", "counter without atomic", "atomicAdd(&finished[tile], 1u) == PARTS - 1",
        "finished[tile]++ == PARTS - 1", RACE),
    Bug("last_block", "last of k left out", "half : K;", "half : K - 1;", WRONG),
    # --- half_inside --------------------------------------------------------------------------
    Bug("half_inside", "one of k left out", "k < min(k0 + 16, K)", "k < min(k0 + 15, K)", WRONG),
    Bug("half_inside", "one product in sixteen negative", "__float2half(A[row * K + k])",
        "__float2half(k % 16 == 15 ? -A[row * K + k] : A[row * K + k])", WRONG),
    # --- bf16_mma -----------------------------------------------------------------------------
    Bug("bf16_mma", "fragments of A exchanged",
        "const int m = group + i % 2 * 8, k = k0 + pair + i / 2 * 8;",
        "const int m = group + i / 2 * 8, k = k0 + pair + i % 2 * 8;", WRONG),
    Bug("bf16_mma", "accumulator kept from nowhere", "float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};",
        "float d[4]; d[0] = d[1] = d[2] = 0.0f;", INIT),
    Bug("bf16_mma", "second half of k twice", "const int k = k0 + pair + i * 8;",
        "const int k = k0 + pair + 8;", WRONG),
    # --- matrix_struct ------------------------------------------------------------------------
    Bug("matrix_struct", "width for height", "kb < B.height", "kb < B.width", (*MEM, *WRONG)),
    Bug("matrix_struct", "no second barrier", "Bs[e][c];\n" + _SYNC, "Bs[e][c];\n", RACE),
    Bug("matrix_struct", "stride of A for C", "C.elements[row * C.stride",
        "C.elements[row * A.stride", (*MEM, *WRONG)),
    # --- nt -----------------------------------------------------------------------------------
    Bug("nt", "multiplies by B itself", "B[n * K + k]", "B[k * N + n]", (*MEM, *WRONG)),
    Bug("nt", "minus", "sum += A", "sum -= A", WRONG),
    # --- block_scratch ------------------------------------------------------------------------
    Bug("block_scratch", "no barrier", "= sum;\n  __syncthreads();", "= sum;", RACE),
    Bug("block_scratch", "blocks share a slot", "total += slots[blockIdx.x][s]",
        "total += slots[blockIdx.x / 2][s]", (*RACE, *WRONG)),
    # --- local_array --------------------------------------------------------------------------
    Bug("local_array", "first element never set", "for (int j = 0; j < width; ++j) sums[j] = 0.0f;",
        "for (int j = 1; j < width; ++j) sums[j] = 0.0f;", INIT),
    Bug("local_array", "never set",
        "#pragma unroll 1\n  for (int j = 0; j < width; ++j) sums[j] = 0.0f;\n", "", INIT),
    Bug("local_array", "past the end of the row", "const int width = min(R, N - col0);",
        "const int width = R;", (*MEM, *WRONG, *RACE)),
    # --- swizzled -----------------------------------------------------------------------------
    Bug("swizzled", "flips an address bit for the second tile", "float* Bs = As + T * T;",
        "float* Bs = reinterpret_cast<float*>(reinterpret_cast<size_t>(As) ^ 1024);",
        (*MEM, *WRONG, *RACE, *INIT), gpu="h100"),
    Bug("swizzled", "reads without the swizzle", "Bs[k * T + (tx ^ k)]", "Bs[k * T + tx]", WRONG),
    # --- warp_synchronous ---------------------------------------------------------------------
    Bug("warp_synchronous", "no __syncwarp before the products", ": 0.0f;\n    __syncwarp();",
        ": 0.0f;", RACE),
    Bug("warp_synchronous", "reads its neighbor's row", "rows[warp][31 - (31 - k)]",
        "rows[warp ^ 1][31 - (31 - k)]", (*RACE, *WRONG, *INIT)),
    Bug("warp_synchronous", "half of the warp meets", ": 0.0f;\n    __syncwarp();",
        ": 0.0f;\n    if (lane < 16) __syncwarp(0xffff);", RACE),
    # --- column_major -------------------------------------------------------------------------
    Bug("column_major", "row-major after all", "C[i + j * ldc] = alpha", "C[i * ldc + j] = alpha",
        (*MEM, *WRONG, *RACE)),
    Bug("column_major", "beta squared", "beta * C[i + j * ldc]", "beta * beta * C[i + j * ldc]",
        WRONG, check={"beta": 0.5}),
    # --- wmma_tiles ---------------------------------------------------------------------------
    Bug("wmma_tiles", "no barrier before the products", _SYNC + "    wmma::load",
        "    wmma::load", RACE),
    Bug("wmma_tiles", "no barrier after the products", "mma_sync(c, a, b, c);\n" + _SYNC,
        "mma_sync(c, a, b, c);\n", RACE),
    Bug("wmma_tiles", "tile read with another leading dimension", "Bs[warp], LD);", "Bs[warp], T);",
        (*WRONG, *INIT)),
    Bug("wmma_tiles", "tile smaller than what is loaded", "half As[T * LD];", "half As[T * T];",
        MEM),
    Bug("wmma_tiles", "accumulator never set", "  wmma::fill_fragment(c, 0.0f);\n", "", INIT),
    # --- ldmatrix_swizzled --------------------------------------------------------------------
    Bug("ldmatrix_swizzled", "no barrier before ldmatrix", _SYNC + "    for (int step",
        "    for (int step", RACE),
    Bug("ldmatrix_swizzled", "no barrier after the products", _SYNC + "  }\n  for (int half",
        "  }\n  for (int half", RACE),
    Bug("ldmatrix_swizzled", "no barrier after stmatrix", '"memory");\n  }\n  __syncthreads();\n',
        '"memory");\n  }\n', RACE),
    Bug("ldmatrix_swizzled", "A read without the swizzle",
        "place(warp * 16 + lane % 16, step + lane / 16 * 8, BK);",
        "(warp * 16 + lane % 16) * BK * 2 + (step + lane / 16 * 8) * 2;", WRONG),
    Bug("ldmatrix_swizzled", "B not transposed", ".x4.trans.shared", ".x4.shared", WRONG),
    Bug("ldmatrix_swizzled", "rows that are not aligned", "step + lane / 16 * 8, BK);",
        "step + lane / 16 * 8, BK) + 8;", MEM),
    Bug("ldmatrix_swizzled", "rows past the tile", "place(warp * 16 + lane % 16, step",
        "place(warp * 16 + 8 + lane % 16, step", MEM),
    Bug("ldmatrix_swizzled", "a part of the tile not loaded", "i < BK * BN / 8; i += 128",
        "i < BK * BN / 8 - 1; i += 128", INIT),
    Bug("ldmatrix_swizzled", "matrices of C exchanged",
        "half * 16 + lane / 16 * 8, BN);\n    asm volatile(\"stmatrix",
        "half * 16 + 8 - lane / 16 * 8, BN);\n    asm volatile(\"stmatrix", WRONG),
)  # fmt: skip


def bring(name: str, folder: Path, bug: Bug | None = None) -> Kernel:
    """The kernel, with a bug if one is given, written to `folder` and read from there.

    Raises:
        ValueError: `old` does not occur exactly once in the file.
    """
    text = (FOLDER / f"{name}.cu").read_text("utf-8")
    if bug is not None:
        if text.count(bug.old) != 1:
            raise ValueError(f"{name}: not exactly once: {bug.old}")
        text = text.replace(bug.old, bug.new)
    path = folder / f"{name}.cu"
    path.write_text(text, "utf-8")
    return Kernel.from_file(path, **FOREIGN[name].kernel)


def check_bug(bug: Bug, folder: Path) -> list[CheckRecord]:
    """The records of a kernel with a bug."""
    foreign = FOREIGN[bug.kernel]
    return check(
        bring(bug.kernel, folder, bug),
        bug.shapes or foreign.shapes,
        **{"gpu": bug.gpu, **foreign.check, **bug.check},
    )


def seen(records: list[CheckRecord]) -> set[str]:
    """Everything that was reported: the checks, a wrong result, a failed or refused launch."""
    found = {finding.check for record in records for finding in record.findings}
    found |= {record.verdict for record in records if record.verdict != "findings"}
    if any(record.correct is False for record in records):
        found.add(WRONG_RESULT)
    return found
