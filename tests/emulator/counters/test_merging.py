"""Which shared accesses ptxas merges: the rule against ptxas's machine code."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from gemmkit.emulator.counters.merging import Merging, merged_accesses
from gemmkit.emulator.isa.matrix_access import has_rows, is_matrix, pieces
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.parser import parse
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_kernel, compile_plan
from gemmkit.jit.sass import disassemble, disassembler
from gemmkit.kernels.catalog import LADDER
from gemmkit.kernels.fitting import fitting, in_types_of
from gemmkit.problem import GemmProblem

needs_disassembler = pytest.mark.skipif(disassembler() is None, reason="needs nvdisasm")
H100 = find_board("h100")
# The ladder's other configurations, a few of them.
OTHERS = {
    "shared_tiling": {"BM": 16, "BN": 16, "BK": 16},
    "coarsening_1d": {"BM": 64, "BN": 64, "BK": 8, "TM": 16},
    "coarsening_2d": {"BM": 128, "BN": 64, "BK": 8, "TM": 8, "TN": 4},
    "warp_tiled": {"BM": 64, "BN": 64, "BK": 8, "WM": 32, "WN": 32, "TM": 8, "TN": 4},
}
# Bits of an access, by its suffix; 32 without one.
WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128}


# ptxas unrolls their short loops of single loads, which merge with nothing.
UNROLLED_BY_PTXAS = ("warp_reduce",)


def foreseen(flow: ControlFlow) -> Counter[str]:
    """Shared-memory instructions of the machine code by name and width, predicted by the rule;
    ldmatrix and stmatrix, which never merge, are not among them."""
    merging, found = Merging.of(flow), Counter()
    for number, form in enumerate(flow.forms):
        shared = form.modifiers.get("S", "").startswith("shared")
        if is_matrix(form):
            if shared and not has_rows(form):
                name = "LDS" if form.operation == "load" else "STS"
                found.update(f"{name}.{8 * piece.nbytes}" for piece in pieces(form))
        elif form.operation in ("load", "store") and shared and number not in merging.silent:
            elements = int(form.modifiers.get("V", "").removeprefix("v") or 1)
            width = merging.width.get(number, form.type.bytes * elements)
            name = "LDS" if form.operation == "load" else "STS"
            found[f"{name}.{8 * width}"] += 1
    return found


def flow_of(ptx: str, entry: str) -> ControlFlow:
    return ControlFlow.of(parse(ptx).kernels[entry])


def in_machine_code(sass: str) -> dict[str, Counter[str]]:
    """The same from a disassembly, by kernel, without unreachable instructions."""
    found: dict[str, Counter[str]] = {}
    kernel = ""
    for line in sass.splitlines():
        section = re.match(r"\s*\.section\s+\.text\.(\w+)", line)
        if section:
            kernel = section[1]
            found[kernel] = Counter()
        access = re.search(r"\*/\s+(@!?U?P\w+ )?\s*(LDS|STS)((?:\.\w+)*)\s", line)
        if access and access[1] != "@!PT ":
            widths = [WIDTHS[word] for word in access[3].split(".") if word in WIDTHS]
            found[kernel][f"{access[2]}.{widths[0] if widths else 32}"] += 1
    return found


# --- the ladder -------------------------------------------------------------------------------


@needs_disassembler
@pytest.mark.parametrize("shape", ["512", "255x257x129"], ids=["vector", "scalar"])
@pytest.mark.parametrize("kernel", LADDER, ids=lambda kernel: kernel.name)
@pytest.mark.sample(22)
def test_every_rung(kernel, shape):
    check(kernel, kernel.default, "sm_90a", shape)


@needs_disassembler
@pytest.mark.parametrize("arch", ["sm_80", "sm_100", "sm_120"])
@pytest.mark.parametrize("kernel", LADDER[2:4], ids=lambda kernel: kernel.name)
@pytest.mark.sample
def test_other_architectures(kernel, arch):
    check(kernel, kernel.default, arch)


@needs_disassembler
@pytest.mark.parametrize("kernel", [each for each in LADDER if each.name in OTHERS],
                         ids=lambda kernel: kernel.name)  # fmt: skip
@pytest.mark.sample(2)
def test_other_configurations(kernel):
    check(kernel, kernel.configure(OTHERS[kernel.name]), "sm_86")


def check(kernel, config, arch, shape="512"):
    problem = in_types_of(kernel, GemmProblem.from_shape(shape))
    problem = fitting(kernel, problem, H100, config)
    binary = compile_plan(kernel.plan(problem, config, H100), arch)
    (made,) = in_machine_code(disassemble(binary.cubin)).values()
    said = foreseen(flow_of(binary.ptx, binary.entry))
    if kernel.name in UNROLLED_BY_PTXAS:
        assert made.pop("LDS.32") >= said.pop("LDS.32")
    assert said == made


def test_the_tiled_kernels_loads():
    kernel = LADDER[2]
    plan = kernel.plan(GemmProblem(512, 512, 512), kernel.default, H100)
    binary = compile_plan(plan, "sm_90", assemble=False)
    assert foreseen(flow_of(binary.ptx, binary.entry)) == {
        "LDS.32": 32,
        "LDS.128": 8,
        "STS.32": 2,
    }


# --- probes -----------------------------------------------------------------------------------


def loads(*words: int) -> str:
    return "".join(f"a = fmaf(a, {word + 2}.f, s[r + {word}]);" for word in words)


def stores(*words: int) -> str:
    return "a = in[r];" + "".join(f"s[r + {word}] = a + {word};" for word in words)


def between(text: str) -> str:
    return loads(0, 1) + text + loads(2, 3)


def around(text: str) -> str:
    return stores(0, 1) + text + "s[r + 2] = a + 2; s[r + 3] = a + 3;"


# The body of a kernel with r = 8 * threadIdx.x, `s` and `t` in shared memory, `in` and `out`.
PROBES = {
    **{f"loads_{mask:02x}": loads(*(word for word in range(8) if mask >> word & 1))
       for mask in (*range(1, 16), 0x1E, 0x2F, 0x3F, 0x5A, 0x7E, 0xBB, 0xCC, 0xF0, 0xFF)},
    **{f"stores_{mask:02x}": stores(*(word for word in range(8) if mask >> word & 1))
       for mask in (*range(1, 16), 0x1E, 0x3F, 0xBB, 0xF0, 0xFF)},
    "order": loads(2, 0, 3, 1),
    "far_apart": loads(0, 1, 2, 3) + loads(100, 101, 102),
    "interleaved": loads(0, 100, 1, 101, 2, 102, 3, 103),
    "store_other": between("t[threadIdx.x * 4] = a;"),
    "store_same": between("s[r + 100] = a;"),
    "store_global": between("out[n] = a;"),
    "load_other": between("a += t[n];"),
    "atomic_global": between("atomicAdd(out + n, a);"),
    "fence": between("__threadfence_block();"),
    "warp_barrier": between("__syncwarp();"),
    "barrier": between("__syncthreads();"),
    "shuffle": between("a += __shfl_xor_sync(~0u, a, 1);"),
    "vote": between("a += __ballot_sync(~0u, a > 0);"),
    "volatile_store": between("*(volatile float*)&t[n] = a;"),
    "volatile_load": between("a += *(volatile float*)&s[n];"),
    "copy": between('asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: '
                    '"r"(at + n * 4), "l"(in + n) : "memory");'),
    "commit": between('asm volatile("cp.async.commit_group;" ::: "memory");'),
    "wait": between('asm volatile("cp.async.wait_group 0;" ::: "memory");'),
    "stores_load": around("a += s[n];"),
    "stores_store": around("t[n] = a;"),
    "stores_global": around("out[n] = a; a += in[n];"),
    "stores_barrier": around("__syncwarp();"),
    "stores_gap": "a = in[r]; s[r] = a; s[r + 4] = a; s[r + 1] = a; s[r + 5] = a;",
    "stores_order": stores(2, 1, 3, 0),
    "pitch_5": "int q = threadIdx.x * 5; for (int i = 0; i < 5; ++i) a = a * 3 + s[q + i];",
    "pitch_6": "int q = threadIdx.x * 6; for (int i = 0; i < 6; ++i) a = a * 3 + s[q + i];",
    "unknown": "for (int i = 0; i < 4; ++i) a = a * 3 + s[n + i];",
    "masked": "int q = (threadIdx.x + n) & ~3; for (int i = 0; i < 4; ++i) a = a * 3 + s[q + i];",
    "chosen": "int q = n > 3 ? r : r + 2; for (int i = 0; i < 4; ++i) a = a * 3 + s[q + i];",
    "product": "int q = threadIdx.x * 2 * (n * 2); "
               "for (int i = 0; i < 4; ++i) a = a * 3 + s[q + i];",
    "or_1": "int q = r | 1; a = s[q]; a = a * 3 + s[q + 1]; a = a * 3 + s[q + 2];",
    "pointer": "for (float* p = s + r; p < s + n; p += 4) { a += p[0]; a = a * a + p[1]; }",
    "unrolled": "\n#pragma unroll 4\nfor (int i = 0; i < n; ++i) a += s[r + i];",
}  # fmt: skip


def probe(name: str, body: str) -> str:
    return f"""
extern "C" __global__ void {name}(float* out, const float* in, int n) {{
  __shared__ float s[4096], t[1024];
  for (int i = threadIdx.x; i < 4096; i += blockDim.x) s[i] = in[i];
  t[threadIdx.x] = in[n];
  __syncthreads();
  float a = 0;
  int r = threadIdx.x * 8;
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(s));
  {body}
  out[threadIdx.x] = a + at;
  __syncthreads();
  out[n] = t[n] + s[n];
}}
"""


@needs_disassembler
@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_100"])
@pytest.mark.sample(3)
def test_probes(arch):
    bodies = {name: body for name, body in PROBES.items() if "cp.async" not in body
              or arch != "sm_75"}  # fmt: skip
    source = "".join(probe(name, body) for name, body in bodies.items())
    binary = compile_kernel(source, "order", arch)
    made, kernels = in_machine_code(disassemble(binary.cubin)), parse(binary.ptx).kernels
    assert set(bodies) <= set(made)
    # ptxas unrolls two loops further.
    looped = {"pointer", "unrolled"}
    for name in bodies.keys() - looped:
        assert foreseen(ControlFlow.of(kernels[name])) == made[name], name
    for name in looped & bodies.keys():
        assert foreseen(ControlFlow.of(kernels[name])).keys() <= made[name].keys(), name


@needs_disassembler
@pytest.mark.parametrize("first", [1, 2, 3, 4, 12, 33])
@pytest.mark.sample(3)
def test_a_variable_is_aligned_as_it_lies(first):
    """The alignment of an array after others is only known from the powers of two that divide its
    offset."""
    body = f"""
extern "C" __global__ void k(float* out, int n) {{
  __shared__ float t[{first}], s[1024];
  t[threadIdx.x % {first}] = n, s[threadIdx.x] = n;
  __syncthreads();
  float a = t[n];
  for (int i = 0; i < 4; ++i) a = a * 3 + s[threadIdx.x * 8 + i];
  out[threadIdx.x] = a;
}}
"""
    binary = compile_kernel(body, "k", "sm_90")
    made = in_machine_code(disassemble(binary.cubin))["k"]
    assert foreseen(flow_of(binary.ptx, "k")) == made
    assert ("LDS.128" in made) == (first % 4 == 0)


# --- without a compiler -----------------------------------------------------------------------

PTX = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u32 n)
{{
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    .reg .f32 %f<16>;
    .reg .f64 %fd<4>;
    .reg .pred %p<2>;
    .shared .align 16 .b8 tile[4096];
    mov.u32 %r1, %tid.x;
    shl.b32 %r2, %r1, 5;
    mov.u32 %r3, tile;
    add.s32 %r4, %r3, %r2;
    setp.eq.u32 %p1, %r1, 0;
{body}
    ret;
}}
"""
START = 5


def groups(*lines: str) -> list[tuple[tuple[int, ...], int]]:
    """Groups by the numbers of these lines, from 0."""
    flow = flow_of(PTX.format(body="\n".join(lines)), "k")
    return [
        (tuple(number - START for number in group.numbers), group.nbytes)
        for group in merged_accesses(flow)
    ]


def test_vectors_and_scalars_join():
    assert groups("ld.shared.v2.f32 {%f1, %f2}, [%r4];", "ld.shared.f32 %f3, [%r4+8];") == [
        ((0, 1), 16)
    ]
    assert groups("ld.shared.f64 %fd1, [%r4+8];", "ld.shared.f64 %fd2, [%r4];") == [((1, 0), 16)]
    assert groups("ld.shared.v2.f32 {%f1, %f2}, [%r4+8];", "ld.shared.f32 %f3, [%r4+16];") == []


def test_the_same_word_twice_is_loaded_once():
    assert groups("ld.shared.f32 %f1, [%r4];", "ld.shared.f32 %f2, [%r4];") == [((0, 1), 4)]


def test_guarded_and_volatile_accesses_stay_as_they_are():
    assert groups("@%p1 ld.shared.f32 %f1, [%r4];", "@%p1 ld.shared.f32 %f2, [%r4+4];") == []
    assert groups(
        "ld.volatile.shared.f32 %f1, [%r4];", "ld.volatile.shared.f32 %f2, [%r4+4];"
    ) == []  # fmt: skip


def test_another_register_a_constant_away():
    assert groups(
        "add.s32 %r5, %r4, 8;",
        "ld.shared.f32 %f1, [%r4+4];",
        "ld.shared.f32 %f2, [%r5];",
        "ld.shared.f32 %f3, [%r5+4];",
    ) == [((1, 2, 3), 16)]


def test_a_register_that_changes_between():
    assert groups(
        "mov.u32 %r6, %r4;",
        "ld.shared.f32 %f1, [%r6];",
        "add.s32 %r6, %r6, 8;",
        "ld.shared.f32 %f2, [%r6+4];",
    ) == []  # fmt: skip


def test_blocks_are_apart():
    assert groups(
        "ld.shared.f32 %f1, [%r4];", "@%p1 bra L;", "L:", "ld.shared.f32 %f2, [%r4+4];"
    ) == []  # fmt: skip
