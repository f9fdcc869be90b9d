"""Matrix products by wgmma in a warp-specialized pipeline: sound kernels of bf16, in CUDA C++.

A and B are tiles of 64 numbers along k, 128-byte rows with a 128-byte swizzle, as they lie in a
stage of shared memory: A is (row tiles, k tiles, rows, 64), B likewise by columns.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from launching import parsed
from numpy.typing import NDArray

from gemmkit.emulator import DeviceMemory, LaunchRequest, load, oracle
from gemmkit.emulator.launch import Execution
from gemmkit.jit.compiler import compile_source
from gemmkit.kernels.plan import SourceFile

BK = 64


def _wrapper(columns: int, *, registers: bool = False) -> str:
    """`multiply(d, a, b, adds)` for so many columns; A is a descriptor or four registers."""
    sums = columns // 2
    d = ", ".join(f"%{number}" for number in range(sums))
    outputs = ", ".join(f'"+f"(d[{number}])' for number in range(sums))
    if registers:
        kind, of_a, count = "const unsigned (&a)[4]", [f'"r"(a[{n}])' for n in range(4)], 4
        operand = "{" + ", ".join(f"%{sums + number}" for number in range(4)) + "}"
    else:
        kind, of_a, count, operand = "unsigned long long a", ['"l"(a)'], 1, f"%{sums}"
    inputs = ", ".join([*of_a, '"l"(b)', '"r"(adds)'])
    b, scale = sums + count, sums + count + 1
    majors = "0" if registers else "0, 0"
    return f"""
DEVICE void multiply(float (&d)[{sums}], {kind}, unsigned long long b, int adds) {{
  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{scale}, 0;"
    " wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16"
    " {{{d}}}, {operand}, %{b}, p, 1, 1, {majors}; }}" : {outputs} : {inputs});
}}
"""


HELPERS = """
#define DEVICE __device__ __forceinline__
typedef unsigned short half_t;
DEVICE unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
DEVICE void init(unsigned b, int n) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(b), "r"(n) : "memory");
}
DEVICE void arrive(unsigned b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(b) : "memory");
}
DEVICE void arrive_expecting(unsigned b, int n) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(b), "r"(n) : "memory");
}
DEVICE void wait(unsigned b, int parity) {
  asm volatile("{ .reg .pred p; WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;"
               " @!p bra WAIT; }" :: "r"(b), "r"(parity) : "memory");
}
DEVICE void load(void* to, const void* from, int n, unsigned b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
               " [%0], [%1], %2, [%3];" :: "r"(at(to)), "l"(from), "r"(n), "r"(b) : "memory");
}
DEVICE void copy16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at(to)), "l"(from) : "memory");
}
DEVICE void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }
DEVICE void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> DEVICE void wait_groups() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}
template <int N> DEVICE void keep(float (&d)[N]) {
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i]) :: "memory");
}
DEVICE unsigned long long descriptor(const void* tile) {
  return (at(tile) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
"""

# Threads 0 to 128 WARPGROUPS - 1 multiply, the rest load; each warpgroup has 64 rows of the tile.
_HEAD = """
constexpr int WARPGROUPS = @WARPGROUPS@, BM = 64 * WARPGROUPS, BN = @COLUMNS@, BK = 64;
constexpr int STAGES = @STAGES@, CONSUMERS = 128 * WARPGROUPS;
extern "C" __global__ void __launch_bounds__(CONSUMERS + 128)
k(const half_t* A, const half_t* B, float* C, int M, int N, int K) {
  extern __shared__ __align__(1024) half_t tiles[];
  __shared__ unsigned long long full[STAGES], empty[STAGES];
  half_t* As = tiles;
  half_t* Bs = tiles + STAGES * BM * BK;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      init(at(&full[s]), @ARRIVALS@);
      init(at(&empty[s]), CONSUMERS);
    }
    init_fence();
  }
  __syncthreads();
  const int steps = K / BK;
  const half_t* a = A + blockIdx.y * BM * K;
  const half_t* b = B + blockIdx.x * BN * K;
  if (threadIdx.x >= CONSUMERS) {
    const int thread = threadIdx.x - CONSUMERS;
    #pragma unroll 1
    for (int i = 0; i < steps && @LOADS@; ++i) {
      const int s = i % STAGES;
      wait(at(&empty[s]), i / STAGES & 1 ^ 1);
@PRODUCER@
    }
  } else {
    const int rank = threadIdx.x / 128;
    float d[BN / 2] = {};
    keep(d);
@CONSUMER@
    const int own = rank * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    const int row = blockIdx.y * BM + own;
    for (int j = 0; j < BN / 8; ++j)
      for (int r = 0; r < 4; ++r)
        C[(row + 8 * (r / 2)) * N + blockIdx.x * BN + 8 * j + threadIdx.x % 4 * 2 + r % 2]
          = d[4 * j + r];
  }
}
"""
_BY_BULK = """
      arrive_expecting(at(&full[s]), 2 * (BM + BN) * BK);
      load(As + s * BM * BK, a + i * BM * BK, 2 * BM * BK, at(&full[s]));
      load(Bs + s * BN * BK, b + i * BN * BK, 2 * BN * BK, at(&full[s]));"""
_BY_COPIES = """
      #pragma unroll 1
      for (int c = thread; c < BM * BK / 8; c += 128)
        copy16(As + s * BM * BK + 8 * c, a + i * BM * BK + 8 * c);
      #pragma unroll 1
      for (int c = thread; c < BN * BK / 8; c += 128)
        copy16(Bs + s * BN * BK + 8 * c, b + i * BN * BK + 8 * c);
      copies_done();
      proxy_fence();
      arrive(at(&full[s]));"""
_BY_STORES = """
      #pragma unroll 1
      for (int c = thread; c < BM * BK / 8; c += 128)
        ((int4*)(As + s * BM * BK))[c] = ((const int4*)(a + i * BM * BK))[c];
      #pragma unroll 1
      for (int c = thread; c < BN * BK / 8; c += 128)
        ((int4*)(Bs + s * BN * BK))[c] = ((const int4*)(b + i * BN * BK))[c];
      proxy_fence();
      arrive(at(&full[s]));"""
# Each step is waited for.
_STEP_BY_STEP = """
    #pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      const int s = i % STAGES;
      wait(at(&full[s]), i / STAGES & 1);
      const unsigned long long left = descriptor(As + s * BM * BK + rank * 64 * BK);
      const unsigned long long right = descriptor(Bs + s * BN * BK);
      fence();
      for (int k = 0; k < BK / 16; ++k) multiply(d, left + 2 * k, right + 2 * k, i + k);
      commit();
      wait_groups<0>();
      arrive(at(&empty[s]));
    }"""
# One group stays in flight, and the stage before is released.
_ONE_IN_FLIGHT = """
    #pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      const int s = i % STAGES;
      wait(at(&full[s]), i / STAGES & 1);
      const unsigned long long left = descriptor(As + s * BM * BK + rank * 64 * BK);
      const unsigned long long right = descriptor(Bs + s * BN * BK);
      fence();
      for (int k = 0; k < BK / 16; ++k) multiply(d, left + 2 * k, right + 2 * k, i + k);
      commit();
      wait_groups<1>();
      if (i > 0) arrive(at(&empty[(i - 1) % STAGES]));
    }
    wait_groups<0>();
    keep(d);"""
# A is read from shared memory to registers.
_FROM_REGISTERS = """
    #pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      const int s = i % STAGES;
      wait(at(&full[s]), i / STAGES & 1);
      const unsigned long long right = descriptor(Bs + s * BN * BK);
      unsigned held[BK / 16][4];
      const int row = rank * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
      for (int k = 0; k < BK / 16; ++k)
        for (int r = 0; r < 4; ++r) {
          const int line = row + 8 * (r % 2), chunk = 2 * k + r / 2;
          const half_t* start = As + s * BM * BK + line * BK + ((chunk ^ line % 8) * 8);
          held[k][r] = ((const unsigned*)start)[threadIdx.x % 4];
        }
      fence();
      for (int k = 0; k < BK / 16; ++k) multiply(d, held[k], right + 2 * k, i + k);
      commit();
      wait_groups<0>();
      arrive(at(&empty[s]));
    }"""


def kernel(
    producer: str = _BY_BULK,
    consumer: str = _STEP_BY_STEP,
    *,
    warpgroups: int = 1,
    columns: int = 32,
    stages: int = 2,
) -> str:
    """The source of a kernel."""
    holes = {
        "WARPGROUPS": warpgroups,
        "COLUMNS": columns,
        "STAGES": stages,
        "LOADS": "thread == 0" if producer == _BY_BULK else "true",
        "ARRIVALS": "1" if producer == _BY_BULK else "128",
        "PRODUCER": producer,
        "CONSUMER": consumer,
    }
    body = _HEAD
    for name, value in holes.items():
        body = body.replace(f"@{name}@", str(value))
    return HELPERS + _wrapper(columns, registers=consumer == _FROM_REGISTERS) + body


# One stage, filled by all threads; barriers of the block order everything.
_BARRIERS = (
    HELPERS
    + _wrapper(32)
    + """
constexpr int BM = 64, BN = 32, BK = 64;
extern "C" __global__ void __launch_bounds__(256)
k(const half_t* A, const half_t* B, float* C, int M, int N, int K) {
  __shared__ __align__(1024) half_t As[BM * BK], Bs[BN * BK];
  const half_t* a = A + blockIdx.y * BM * K;
  const half_t* b = B + blockIdx.x * BN * K;
  float d[BN / 2] = {};
  keep(d);
  #pragma unroll 1
  for (int i = 0; i < K / BK; ++i) {
    #pragma unroll 1
    for (int c = threadIdx.x; c < BM * BK / 8; c += 256)
      ((int4*)As)[c] = ((const int4*)(a + i * BM * BK))[c];
    #pragma unroll 1
    for (int c = threadIdx.x; c < BN * BK / 8; c += 256)
      ((int4*)Bs)[c] = ((const int4*)(b + i * BN * BK))[c];
    proxy_fence();
    __syncthreads();
    if (threadIdx.x < 128) {
      const unsigned long long left = descriptor(As), right = descriptor(Bs);
      fence();
      for (int k = 0; k < BK / 16; ++k) multiply(d, left + 2 * k, right + 2 * k, i + k);
      commit();
      wait_groups<0>();
    }
    __syncthreads();
  }
  if (threadIdx.x < 128) {
    const int row = blockIdx.y * BM + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    for (int j = 0; j < BN / 8; ++j)
      for (int r = 0; r < 4; ++r)
        C[(row + 8 * (r / 2)) * N + blockIdx.x * BN + 8 * j + threadIdx.x % 4 * 2 + r % 2]
          = d[4 * j + r];
  }
}
"""
)


def _with_registers(source: str) -> str:
    """The producer leaves registers to the consumers: 2 · 168 are 104 and 232."""
    for before, asked in (
        ("const int thread = threadIdx.x - C", "dec.sync.aligned.u32 104"),
        ("const int rank = threadIdx.x / 128;", "inc.sync.aligned.u32 232"),
    ):
        source = source.replace(before, f'asm volatile("setmaxnreg.{asked};");\n    {before}')
    return source


# The group for which a warp has waited is complete for its warpgroup.
_RELEASE = "arrive(at(&empty[s]));"
SOUND = {
    "barriers": _BARRIERS,
    "bulk copies": kernel(),
    "one group in flight": kernel(consumer=_ONE_IN_FLIGHT, stages=3),
    "cp.async": kernel(_BY_COPIES),
    "stores": kernel(_BY_STORES, _ONE_IN_FLIGHT),
    "A in registers": kernel(_BY_STORES, _FROM_REGISTERS),
    "two warpgroups": kernel(warpgroups=2, columns=64),
    "registers moved": _with_registers(kernel(_BY_STORES)),
    "released by one warp for all": kernel()
    .replace("init(at(&empty[s]), CONSUMERS);", "init(at(&empty[s]), 32);")
    .replace(_RELEASE, f"if (threadIdx.x < 32) {_RELEASE}"),
}


_MULTIPLY = "multiply(d, left + 2 * k, right + 2 * k, i + k);"
_BULK, _STORES, _COPIES = SOUND["bulk copies"], kernel(_BY_STORES), SOUND["cp.async"]
_PIPELINED, _REGISTERS = SOUND["one group in flight"], SOUND["A in registers"]
_MOVED = SOUND["registers moved"]
_STAGE_IN_USE = {"write after read", "write before wait"}
_EARLY = {"read before wait", "read after write"}
# A kernel, what is replaced in it and by what, and the kinds of findings that tell.
BUGS: dict[str, tuple[str, str, str, set[str]]] = {
    "no proxy fence after stores": (_STORES, "proxy_fence();\n", "", {"missing proxy fence"}),
    "no proxy fence after cp.async": (_COPIES, "proxy_fence();\n", "", {"missing proxy fence"}),
    "proxy fence of one warp only": (
        _STORES, "proxy_fence();\n", "if (thread < 32) proxy_fence();\n",
        {"missing proxy fence"}),
    "arrival before cp.async is done": (
        _COPIES, "copies_done();\n", "", {"read before wait"}),
    "stage released before the wait": (
        _BULK, f"wait_groups<0>();\n      {_RELEASE}", f"{_RELEASE}\n      wait_groups<0>();",
        _STAGE_IN_USE),
    "stage released before the wait, stores": (
        _STORES, f"wait_groups<0>();\n      {_RELEASE}", f"{_RELEASE}\n      wait_groups<0>();",
        _STAGE_IN_USE),
    "stage of the group in flight released": (
        _PIPELINED, "if (i > 0) arrive(at(&empty[(i - 1) % STAGES]));", _RELEASE, _STAGE_IN_USE),
    "one group too many left in flight": (
        _PIPELINED, "wait_groups<1>();", "wait_groups<2>();", _STAGE_IN_USE),
    "full barrier not waited for": (
        _BULK, "wait(at(&full[s]), i / STAGES & 1);", "", _EARLY | {"uninitialized"}),
    "full barrier of another stage": (
        _BULK, "wait(at(&full[s])", "wait(at(&full[(s + 1) % STAGES])",
        _EARLY | {"deadlock", "uninitialized"}),
    "no wait at the end": (
        _PIPELINED, "    wait_groups<0>();\n    keep(d);", "", {"accumulator in flight"}),
    "wait that leaves the last group": (
        _PIPELINED, "    wait_groups<0>();\n    keep(d);", "    wait_groups<1>();\n    keep(d);",
        {"accumulator in flight"}),
    "no commit": (_BULK, "      commit();\n", "", {"accumulator in flight"}),
    "wait of one warp only": (
        _BULK, "wait_groups<0>();", "if (threadIdx.x < 32) wait_groups<0>();",
        {"accumulator in flight"}),
    "accumulator scaled too early": (
        _BULK, "      wait_groups<0>();", "      d[3] *= 2.0f;\n      wait_groups<0>();",
        {"accumulator in flight"}),
    "accumulator cleared too early": (
        _BULK, "      wait_groups<0>();", "      d[3] = 0.0f; keep(d);\n      wait_groups<0>();",
        {"accumulator in flight"}),
    "A overwritten in flight": (
        _REGISTERS, "wait_groups<0>();", "wait_groups<1>();", {"operand in flight"}),
    "no fence": (_BULK, "      fence();\n", "", {"missing wgmma.fence"}),
    "A written after the fence": (
        _REGISTERS.replace("      fence();\n", ""), "unsigned held[",
        "fence();\n      unsigned held[", {"missing wgmma.fence"}),
    "accumulator written after the fence": (
        _BULK, "      fence();\n", "      fence();\n      d[5] += 1.0f;\n",
        {"missing wgmma.fence"}),
    "another shape in flight": (
        _BULK.replace(HELPERS, HELPERS + _wrapper(16)), "      commit();\n",
        "      float (&e)[8] = *(float (*)[8])&d; multiply(e, left, right, 1);\n"
        "      commit();\n", {"accumulator of another shape"}),
    "descriptor past the end": (
        _BULK, "multiply(d, left + 2 * k,", "multiply(d, left + 2 * k + (i == 3 ? 4096 : 0),",
        {"out of bounds"}),
    "bits of a descriptor that must be zero": (
        _BULK, "1ull << 62", "1ull << 62 | 1ull << 46", {"invalid descriptor"}),
    "descriptors of one warp differ": (
        _BULK, "right + 2 * k,", "right + 2 * (k ^ threadIdx.x / 32 == 2),", {"warps disagree"}),
    "one warp does not multiply": (
        _BULK, _MULTIPLY, f"if (k || threadIdx.x / 32 != 3) {_MULTIPLY}",
        {"incomplete warpgroup", "warps disagree"}),
    "one thread does not multiply": (
        _BULK, _MULTIPLY, f"if (k || threadIdx.x != 77) {_MULTIPLY}", {"incomplete warpgroup"}),
    "no barrier before the next stage": (
        _BARRIERS, "    }\n    __syncthreads();\n", "    }\n", {"write before wait"}),
    "no barrier after the stores": (
        _BARRIERS, "proxy_fence();\n    __syncthreads();", "proxy_fence();",
        {"read after write", "write before wait"}),
    "more registers than the block has": (
        _MOVED, "inc.sync.aligned.u32 232", "inc.sync.aligned.u32 240", {"register file exceeded"}),
    "registers are not released": (
        _MOVED, 'asm volatile("setmaxnreg.dec.sync.aligned.u32 104;");', "",
        {"register file exceeded"}),
    "registers are released after a wait for the consumers": (
        _MOVED.replace('asm volatile("setmaxnreg.dec.sync.aligned.u32 104;");\n', ""),
        "      proxy_fence();\n",
        '      if (i == 3) asm volatile("setmaxnreg.dec.sync.aligned.u32 104;");\n'
        "      proxy_fence();\n", {"register deadlock"}),
    "registers of one warp": (
        _MOVED, 'asm volatile("setmaxnreg.dec',
        'if (threadIdx.x < 160) asm volatile("setmaxnreg.dec', {"incomplete warpgroup"}),
    "registers of two numbers": (
        _MOVED, 'asm volatile("setmaxnreg.dec.sync.aligned.u32 104;");',
        'if (threadIdx.x < 160) asm volatile("setmaxnreg.dec.sync.aligned.u32 104;");\n'
        'else asm volatile("setmaxnreg.dec.sync.aligned.u32 96;");', {"warps disagree"}),
    "registers increased to fewer": (
        _MOVED, "inc.sync.aligned.u32 232", "inc.sync.aligned.u32 160", {"invalid register count"}),
    "half of B is never written": (
        _STORES, "c < BN * BK / 8", "c < BN * BK / 16", {"uninitialized"}),
}  # fmt: skip


def with_bug(name: str) -> str:
    """The source of a kernel with a bug."""
    source, old, new, _ = BUGS[name]
    assert source.count(old) == 1, f"{name}: the text to replace must occur once"
    return source.replace(old, new)


@cache
def compiled(source: str) -> str:
    """The PTX of a kernel."""
    file = SourceFile(source, "k.cu", "cuda", ("",), ("--minimal",))
    return compile_source(file, "k", "sm_90a", assemble=False).ptx


def packed(matrix: NDArray[np.uint16], rows: int) -> NDArray[np.uint16]:
    """A matrix (rows, k) as tiles of so many rows and 64 numbers along k, swizzled."""
    count, depth = matrix.shape
    tiles = matrix.reshape(count // rows, rows, depth // BK, 8, 8).transpose(0, 2, 1, 3, 4)
    line = np.arange(rows)[:, None] % 8
    return np.ascontiguousarray(tiles[:, :, np.arange(rows)[:, None], np.arange(8) ^ line])


def bf16(numbers: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Numbers that bf16 represents, as bits."""
    return (numbers.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def run(
    source: str,
    sizes: tuple[int, int, int] = (64, 64, 256),
    *,
    tile: tuple[int, int] = (64, 32),
    stages: int = 3,
    seed: int = 0,
    sanitize: bool = False,
    by_oracle: bool = False,
    **options: Any,
) -> tuple[Execution, NDArray[np.float32], NDArray[np.float32]]:
    """Run a kernel on small integers; returns its product and what that should be."""
    m, n, k = sizes
    rng = np.random.default_rng(3)
    a = rng.integers(-4, 5, (m, k)).astype(np.float32)
    b = rng.integers(-4, 5, (n, k)).astype(np.float32)
    memory, parameters = DeviceMemory(), b""
    for name, value, rows in (("A", a, tile[0]), ("B", b, tile[1])):
        bits = packed(bf16(value), rows)
        held = memory.allocate(bits.nbytes, name)
        memory.view(held.address, held.nbytes)[:] = bits.view(np.uint8).reshape(-1)
        parameters += held.address.to_bytes(8, "little")
    c = memory.allocate(4 * m * n, "C", initialized=False)
    parameters += c.address.to_bytes(8, "little") + np.array([m, n, k], np.int32).tobytes()
    threads = tile[0] // 64 * 128 + 128
    request = LaunchRequest(
        (n // tile[1], m // tile[0], 1),
        (threads, 1, 1),
        parameters,
        stages * 2 * BK * sum(tile),
        registers=168,
    )
    if by_oracle:
        execution = oracle.run(parsed(compiled(source))[1], request, memory, **options)
    else:
        execution = load(compiled(source), "k", sanitize=sanitize).run(
            request, memory, warp_seed=seed, sanitize=sanitize, max_steps=20_000_000, **options
        )
    return execution, memory.view(c.address, c.nbytes).view(np.float32).reshape(m, n), a @ b.T
