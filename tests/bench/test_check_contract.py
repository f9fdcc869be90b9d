"""What `check` holds kernels to: pairs of scales, inputs kept, NaN, roundings, padding."""

from __future__ import annotations

import re

import pytest

from gemmkit import Kernel, check
from gemmkit.bench.edge_cases import ALPHA, BETA, NON_FINITE, edge_cases
from gemmkit.errors import UnsupportedProblem, UnsupportedType, UsageError
from gemmkit.frontends.tiles import Tiles
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import merged_refusals
from gemmkit.problem import GemmProblem
from gemmkit.report.findings import check_table, sizes_hint

LAUNCH = {"grid": "(N+31)/32,M", "block": 32}
HALF = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
HEAD = """typedef TYPE T;
__global__ void gemm(QUALIFIED T *A, const T *B, T *C, int M, int N, int K, S alpha, S beta) {
  int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y;
  if (c >= N) return;
  SUM s = 0;
  for (int i = 0; i < K; ++i) s += (SUM)A[r * K + i] * (SUM)B[i * N + c];
"""
PLAIN = (
    "  C[r * N + c] = (T)((SUM)alpha * s + ((SUM)beta != 0 ? (SUM)beta * (SUM)C[r * N + c] : 0));\n"
)


def text(tail=PLAIN, *, of="float", scale=None, sums=None, qualified="const"):
    words = {"TYPE": of, "SUM": sums or ("double" if of == "double" else "float")}
    found = HEAD.replace("QUALIFIED", qualified).replace(
        "S alpha, S", f"{scale or of} alpha, {scale or of}"
    )
    found = (found + tail + "}\n").replace("TYPE", words["TYPE"]).replace("SUM", words["SUM"])
    # Their headers take longer to compile than the kernel.
    return HALF * ("half" in found or "bf" in found) + found


@pytest.fixture
def made(tmp_path):
    def kernel(source, **options):
        path = tmp_path / "own.cu"
        path.write_text(source)
        return Kernel.from_file(path, **{**LAUNCH, **options})

    return kernel


def wrong(records):
    return {each.case: each for each in records if not each.clean}


def test_the_scales_of_edge_cases_are_all_pairs_of_special_values():
    def kind(value):
        return value if value in (0, 1) else "other"

    cases = edge_cases(Tiles(32, 32, 16, 2), fusing=False)
    pairs = {(kind(each.alpha), kind(each.beta)) for each in cases.values() if each.k and each.m}
    assert pairs == {(a, b) for a in (0, 1, "other") for b in (0, 1, "other")}


SPECIAL = {
    "beta 1, alpha ignored": (
        "if (beta == 1) { C[r * N + c] += s; return; }",
        {"alpha, beta 1", "alpha 0, beta 1"},
    ),
    "alpha 1, beta ignored": (
        "if (alpha == 1 && K) { C[r * N + c] = s; return; }",
        {"negative beta", "beta 1"},
    ),
    "alpha 0, C cleared": (
        "if (alpha == 0) { C[r * N + c] = 0; return; }",
        {"alpha 0", "alpha 0, beta 1"},
    ),
}


@pytest.mark.parametrize("special", SPECIAL)
def test_fast_paths_for_special_scales(made, special):
    line, cases = SPECIAL[special]
    assert wrong(check(made(text(f"  {line}\n{PLAIN}")))).keys() == cases


# What a line at the end gets wrong at some sizes alone, and the problems that show it.
SIZES = {
    "pairs of columns": ("if (N % 4 == 2 && c == N - 1) s = 0;", {"two more"}),
    "pairs of rows": ("if (M % 4 == 2 && r == M - 1) s = 0;", {"two more"}),
    "a rest of two along k": ("if (K % 4 == 2) s -= A[0];", {"two more"}),
    "a single step": ("if (K == 32) s = 0;", {"one step"}),
    "columns in 8 bits": ("if (c > 255) s = 0;", {"many columns"}),
}


@pytest.mark.parametrize("case", SIZES)
@pytest.mark.sample(3)
def test_sizes_that_only_one_of_the_default_problems_has(made, case):
    line, cases = SIZES[case]
    assert wrong(check(made(text(f"  {line}\n{PLAIN}")))).keys() == cases


@pytest.mark.parametrize("tile", [(1, 1, 1), (16, 16, 16), (17, 18, 19), (128, 66, 10)])
def test_one_edge_case_has_pairs_but_no_vectors_of_four_along_each_side(tile):
    for stages in (1, 3):
        pairs = edge_cases(Tiles(*tile, stages), fusing=False)["two more"]
        assert {pairs.m % 4, pairs.n % 4, pairs.k % 4} == {2}
        assert (pairs.m, pairs.n) > tile[:2]


def test_a_scale_narrowed_on_its_way(made):
    records = check(made(text(PLAIN.replace("(SUM)alpha", "(float)alpha"), of="double")))
    assert "alpha alone" in wrong(records)
    hypotheses = {each.diagnosis.hypothesis for each in wrong(records).values()}
    assert hypotheses == {"scales rounded"}
    assert check(made(text(of="double")), ["17x18x19"], alpha=0.1, beta=1 / 3)[0].clean


@pytest.mark.parametrize(
    ("of", "scale"),
    [
        ("half", "half"), ("__nv_bfloat16", "__nv_bfloat16"), ("half", "float"), ("half", "double"),
        ("double", "float"), ("float", "double"), ("float", "half"), ("double", "__nv_bfloat16"),
    ],
)  # fmt: skip
@pytest.mark.sample(3)
def test_scales_are_passed_in_the_type_of_their_parameter(made, of, scale):
    """The reference uses what arrives: 1/3 in bfloat16 differs from 1/3 in the third digit."""
    (record,) = check(made(text(of=of, scale=scale)), ["17x18x19"], alpha=ALPHA, beta=BETA)
    assert record.verdict == "ok", record.detail


def test_scales_in_a_struct(made):
    struct = text(of="half").replace("half alpha, half beta", "Scales scales")
    for name in ("alpha", "beta"):
        struct = struct.replace(f"(float){name}", f"(float)scales.{name}")
    declared = "struct Scales { __half alpha, beta; };"
    kernel = made(struct.replace("__global__", f"{declared}\n__global__", 1))
    (record,) = check(kernel, ["17x18x19"], alpha=ALPHA, beta=BETA)
    assert record.verdict == "ok", record.detail


CLOBBERED = {
    "A": ("if (c == 0) A[1] *= 2;", r"A\[0, 1\] was"),
    "the last of B": ("if (c == 0) ((T *)B)[K * N - 1] = 7;", r"B\[6, 31\] was .* and is now 7 \("),
}  # fmt: skip


@pytest.mark.parametrize("name", CLOBBERED)
def test_inputs_that_are_overwritten(made, name):
    line, words = CLOBBERED[name]
    (record,) = check(
        made(text(f"{PLAIN}  __syncthreads();\n  {line}\n", qualified="")), ["1x32x7"]
    )
    assert record.verdict == "wrong result"
    assert record.detail.startswith("the kernel overwrites its inputs: ")
    assert re.search(words, record.detail), record.detail
    assert "C[" not in record.detail, "C itself is right"


def test_later_kernels_get_the_inputs_as_they_were(made):
    bad = made(text(f"{PLAIN}  __syncthreads();\n  if (c == 0) A[0] = 5;\n", qualified=""))
    records = check(bad, ["1x32x7", "1x32x7"])
    assert records[0].detail == records[1].detail


@pytest.mark.parametrize(
    ("tail", "of", "hypothesis"),
    [
        ("  C[r * N + c] = fmaxf(s, -3.4e38f);\n", "float", "NaN hidden"),
        (
            "  if (c == 0 && K) s += 0 * A[min(r + 1, M - 1) * K]; C[r * N + c] = s;\n",
            "float",
            "contaminated",
        ),
        ("  C[r * N + c] = K ? s + 0 * A[r * K + K - 1] : 0;\n", "float", "infinity times zero"),
        ("  C[r * N + c] = s;\n", "float", None),
        ("  C[r * N + c] = s;\n", "double", None),
        ("  C[r * N + c] = s;\n", "half", None),
    ],
)  # fmt: skip
@pytest.mark.sample(4)
def test_nan_and_infinities_appear_where_they_must(made, tail, of, hypothesis):
    source = text(tail, of=of).replace(f", {of} alpha, {of} beta", "")
    found = wrong(check(made(source)))
    if hypothesis is None:
        assert not found
        return
    assert found.keys() == {NON_FINITE}
    diagnosis = found[NON_FINITE].diagnosis
    names = {"NaN hidden": "not NaN", "contaminated": "from elsewhere"}
    assert diagnosis.hypothesis == hypothesis or names[hypothesis] in diagnosis.summary


ATOMIC = """#include <cuda_fp16.h>
__global__ void split(const half *A, const half *B, half *C, int M, int N, int K) {
  int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y, h = (K + 1) / 2;
  if (c >= N) return;
  float s = 0;
  for (int i = blockIdx.z * h; i < min(K, (int)(blockIdx.z + 1) * h) - SHORT; ++i)
    s += __half2float(A[r * K + i]) * __half2float(B[i * N + c]);
  atomicAdd(&C[r * N + c], __float2half(s));
}
"""


@pytest.mark.parametrize(("short", "verdict"), [(0, "ok"), (1, "wrong result")])
def test_atomic_additions_in_half_round(made, short, verdict):
    kernel = made(ATOMIC.replace("SHORT", str(short)), grid="(N+31)/32,M,2")
    (record,) = check(kernel, ["33x40x64"], beta=1.0)
    assert record.verdict == verdict, record.detail
    assert "sums rounded to float16 (atom.add" in record.arithmetic


@pytest.mark.parametrize("mode", ["rz", "ru", "rd"])
@pytest.mark.parametrize("of", ["float", "double"])
@pytest.mark.sample(3)
def test_directed_rounding_has_twice_the_unit_roundoff(made, mode, of):
    fused = f"s = __fma{'f' * (of == 'float')}_{mode}(A[r * K + i], B[i * N + c], s);"
    source = text("  C[r * N + c] = s;\n", of=of).replace(
        f"s += ({of})A[r * K + i] * ({of})B[i * N + c];", fused
    )
    assert fused in source
    source = source.replace(f", {of} alpha, {of} beta", "")
    records = [check(made(source), ["1x1x1", "8x8x1"], seed=seed) for seed in range(4)]
    assert {each.verdict for pair in records for each in pair} == {"ok"}
    assert "rounding in one direction (fma." in records[0][0].arithmetic
    assert max(each.error_ratio for pair in records for each in pair) <= 1
    plain = source.replace("s = __fma", "s = fma").replace(f"_{mode}", "")
    assert "direction" not in check(made(plain), ["1x1x1"])[0].arithmetic


def test_a_formula_is_not_given_for_errors_of_rounding(made):
    """Truncated bits, which the instructions do not show, are errors near the bound."""
    tail = "  C[r * N + c] = __uint_as_float((__float_as_uint(s) + 24) & ~31u);\n"
    source = text(tail).replace(", float alpha, float beta", "")
    (record,) = check(made(source), ["33x40x1"])
    assert record.verdict == "wrong result"
    assert record.diagnosis.hypothesis in ("imprecise", "")


VECTORS = """__global__ void vectors(const float *A, const float *B, float *C, int M, int N, int K,
                        int lda, int ldb, int ldc) {
  int c = (blockIdx.x * blockDim.x + threadIdx.x) * 4, r = blockIdx.y;
  if (c >= N) return;
  float4 s = make_float4(0, 0, 0, 0);
  for (int k = 0; k < K; ++k) {
    float a = A[r * lda + k];
    float4 b = *(const float4 *)(B + k * ldb + c);
    s.x += a * b.x; s.y += a * b.y; s.z += a * b.z; s.w += a * b.w;
  }
  *(float4 *)(C + r * ldc + c) = s;
}
"""


BY_VECTORS = {"grid": "(N+63)/64,M", "block": 16}


def test_padding_that_a_kernel_cannot_read_is_told_with_what_it_needs(made):
    records = check(made(VECTORS, **BY_VECTORS))
    assert {"odd padding", "one more"} <= wrong(records).keys()
    assert "--multiple-of 4,4,4" in sizes_hint(records, made(VECTORS, **BY_VECTORS))


# It is right wherever `ldc` is N.
DENSE = """
__global__ void dense(int M, int N, int K, const float *A, int lda, const float *B, int ldb,
                      float *C, int ldc) {
  int r = blockIdx.y, c = blockIdx.x * 32 + threadIdx.x;
  if (c >= N) return;
  float sum = 0;
  for (int k = 0; k < K; ++k) sum += A[r * lda + k] * B[k * ldb + c];
  C[r * N + c] = sum;
}
"""


def test_where_only_padded_rows_fail_a_leading_dimension_is_ignored(made):
    kernel = made(DENSE, grid="(N+31)/32,M", block=32)
    records = check(kernel)
    assert wrong(records).keys() == {"padded rows", "odd padding"}
    assert sizes_hint(records, kernel).endswith(
        "padded: lda, ldb or ldc seems to be ignored, or exchanged for another size."
    )
    tight = [each for each in records if not each.problem.padded]
    assert sizes_hint(tight, kernel) == ""
    assert sizes_hint([*tight[:1], *(each for each in records if each not in tight)], kernel) == ""


@pytest.mark.parametrize("multiples", ["1,4,1", "4,4,4", "64,64,16"])
@pytest.mark.sample(3)
def test_padding_is_in_the_multiples_that_a_kernel_needs(made, multiples):
    records = check(made(VECTORS, multiple_of=multiples, **BY_VECTORS))
    assert not wrong(records)
    padded = [each.problem for each in records if each.problem.ldb > each.problem.n]
    assert len(padded) >= 2
    unit = int(multiples.split(",")[1])
    assert all(each.ldb % unit == each.ldc % unit == 0 for each in padded)


def test_refusals_that_differ_in_numbers_alone_are_told_once(made):
    with pytest.raises(UnsupportedProblem) as caught:
        check(made(text(), grid="(N+255)/0,M"))
    assert str(caught.value).count("divides by zero") == 1
    assert "and likewise for" in str(caught.value)


@pytest.mark.parametrize("kernel", ["gemm_wgmma", "grouped_fp8", "ragged_fp8"])
def test_a_board_that_has_no_such_instructions_is_told_once(kernel):
    """With kernels that take all problems: some take those with an 8-bit result, say, alone."""
    with pytest.raises(UnsupportedProblem) as caught:
        check(kernel, gpu="a100")
    told = str(caught.value)
    assert told.count("compute capability") == 1
    assert told.count(f"{kernel} (") == 1
    assert re.search(r"; '\w+'( and '\w+')* takes? it$", told)


def test_refusals_name_kernels_that_take_all_problems():
    reasons = ["a 1; 'x' and 'y' take it", "a 1; 'z' and 'y' take it", "a 2; 'y' takes it", "b"]
    assert merged_refusals(reasons) == "a 1; 'y' takes it (and likewise for 1 other); b"
    assert merged_refusals(["a; 'x' takes it", "a; 'y' takes it", "a"]) == "a; 'x' takes it"


def test_ptx_takes_types(made):
    own = made(text(of="half"))
    plan = own.plan(GemmProblem(8, 8, 8, dtype="float16"), own.default, find_board("rtx3090"))
    ptx = compile_plan(plan, "sm_86").ptx
    launch = {**LAUNCH, "args": "A,B,C,M,N,K,alpha,beta"}
    told = Kernel.from_ptx(ptx, dtype="half", **launch)
    assert (told.dtypes, told.result_dtypes) == (("float16",), ("float16",))
    asked = Kernel.from_ptx(ptx, **launch)
    assert asked.assumes_type
    assert not told.assumes_type
    for records in (check(told, ["9x8x7"], alpha=ALPHA), check(asked, ["9x8x7"], dtype="fp16")):
        assert [each.verdict for each in records] == ["ok"]
        assert records[0].problem.dtype == records[0].problem.out_dtype == "float16"
    assert check(asked, ["9x8x7"])[0].verdict != "ok", "as fp32"
    mixed = Kernel.from_ptx(ptx, dtype="bf16", out_dtype="fp32", **launch)
    assert (mixed.dtypes, mixed.result_dtypes) == (("bfloat16",), ("float32",))
    with pytest.raises(UnsupportedType, match="unknown dtype 'fp17'"):
        Kernel.from_ptx(ptx, dtype="fp17", **launch)
    with pytest.raises(UsageError, match="choose one with --entry; it has: f, g"):
        Kernel.from_ptx(".target sm_80\n.entry f() { ret; }\n.entry g() { ret; }\n", **launch)


OVERLOAD = """__global__ void gemm(const T *A, const T *B, T *C, int M, int N, int K) {
  int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y;
  if (c >= N) return;
  T s = 0;
  for (int i = 0; i < K; ++i) s += A[r * K + i] * B[i * N + c];
  C[r * N + c] = s;
}
"""


def overloaded():
    return "".join(OVERLOAD.replace("T ", f"{of} ") for of in ("float", "double"))


@pytest.mark.parametrize(
    ("entry", "dtype"),
    [
        ("gemm(const float*, …)", "float32"),
        ("gemm(double const *, ...)", "float64"),
        ("gemm(const double*, const double*, double*, int, int, int)", "float64"),
    ],
)
def test_parameter_types_choose_an_overload(made, entry, dtype):
    (record,) = check(made(overloaded(), entry=entry), ["9x8x7"])
    assert (record.verdict, record.problem.dtype, record.kernel) == ("ok", dtype, "gemm")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("gemm(int)", r"has no kernel 'gemm\(int\)'; it has: gemm\(const float \*, .*; gemm\("),
        ("gemm(…)", r"has several kernels 'gemm\(…\)'"),
        ("other(int)", "has no kernel 'other'; it has: gemm"),
    ],
)
def test_overloads_that_are_not_there(made, entry, message):
    with pytest.raises(UsageError, match=message):
        made(overloaded(), entry=entry)


SPLIT = """#include <cuda_bf16.h>
__device__ float high(float x) { return __bfloat162float(__float2bfloat16(x)); }
__device__ float product(float a, float b) {
  float ah = high(a), bh = high(b), al = high(a - ah), bl = high(b - bh);
  return ah * bh + (ah * bl + al * bh);
}
__global__ void split(const float *A, const float *B, float *C, int M, int N, int K) {
  int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y;
  if (c >= N) return;
  float s = 0;
  for (int i = 0; i < K; ++i) s += product(A[r * K + i], B[i * N + c]);
  TAIL;
}
"""


@pytest.mark.parametrize(
    ("tail", "epilogue", "verdict"),
    [
        ("C[r * N + c] = s", None, "ok"),
        ("C[r * N + c] = fmaxf(s, 0)", "relu", "ok"),
        # One element whose operands are all finite.
        ("C[r * N + c] = c == 0 && r == 0 && K ? s + (s - s) / 0.f : s", None, "wrong result"),
        # Not written where NaN would be accepted.
        ("if (s == s) C[r * N + c] = s", None, "wrong result"),
    ],
)  # fmt: skip
@pytest.mark.sample(4)
def test_nan_of_split_operands_is_noted_where_an_infinity_belongs(made, tail, epilogue, verdict):
    records = check(made(SPLIT.replace("TAIL", tail)), epilogue=epilogue)
    (record,) = (each for each in records if each.case == NON_FINITE)
    assert record.verdict == verdict, record.detail
    if verdict == "ok":
        assert "elements are NaN instead of infinite" in record.note
        assert not any(each.note for each in records if each is not record)
        assert record.note in check_table(records).rows[records.index(record)].note
    else:
        assert not record.note
        assert record.diagnosis.wrong < record.problem.m * record.problem.n / 2


SUMS = {
    "compensated": """float e = 0;
  for (int i = 0; i < K; ++i) {
    float y = __fsub_rn(__fmul_rn(A[r * K + i], B[i * N + c]), e), t = __fadd_rn(s, y);
    e = __fsub_rn(__fsub_rn(t, s), y); s = t;
  }""",
    "Winograd's inner product": """float u = 0, v = 0;
  for (int i = 0; i + 1 < K; i += 2) {
    float a = A[r * K + i], b = A[r * K + i + 1], d = B[i * N + c], e = B[(i + 1) * N + c];
    s += (a + e) * (b + d); u += a * b; v += d * e;
  }
  s -= u + v;
  if (K & 1) s += A[r * K + K - 1] * B[(K - 1) * N + c];""",
    "index kept within the row": """for (int i = 0; i < (K + 7) / 8 * 8; ++i)
    s += A[r * K + min(i, K - 1)] * (i < K ? B[i * N + c] : 0.f);""",
}


@pytest.mark.parametrize("method", SUMS)
@pytest.mark.sample(2)
def test_nan_by_a_method_is_told_from_nan_past_the_end(made, method):
    loop = "for (int i = 0; i < K; ++i) s += product(A[r * K + i], B[i * N + c]);"
    assert loop in SPLIT
    source = SPLIT.replace("TAIL", "C[r * N + c] = s").replace(loop, SUMS[method])
    tolerance = 1e-5 if "Winograd" in method else None
    records = check(made(source), tolerance=tolerance)
    (record,) = (each for each in records if each.case == NON_FINITE)
    if "row" in method:
        assert record.verdict == "wrong result"
        return
    assert record.verdict == "ok", record.detail
    assert "subtracts an infinity from itself" in record.note
