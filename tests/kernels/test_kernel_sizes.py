"""Which sizes a kernel of a file takes, where no parameter is called M, N or K."""

from __future__ import annotations

import msgspec
import pytest

from gemmkit import Kernel, check
from gemmkit.bench.coverage import right_multiples
from gemmkit.check_record import CheckRecord
from gemmkit.errors import UsageError
from gemmkit.findings import AccessSite, Finding
from gemmkit.record import DeviceRecord, ProblemRecord

BODY = """{
  int row = blockIdx.y * 8 + threadIdx.y, col = blockIdx.x * 8 + threadIdx.x;
  float sum = 0;
  for (int p = 0; p < INNER; ++p) sum += A[row * INNER + p] * B[p * ALONG + col];
  C[row * ALONG + col] = sum;
}
"""


def source(parameters, inner, along):
    body = BODY.replace("INNER", inner).replace("ALONG", along)
    return f"__global__ void own({parameters}){body}"


@pytest.fixture
def kernel(tmp_path):
    def make(text, **given):
        path = tmp_path / "own.cu"
        path.write_text(text)
        return Kernel.from_file(path, **({"block": "8,8"} | given))

    return make


@pytest.mark.parametrize("name", ["order", "matrixSize", "rank", "ld", "num_elems"])
def test_the_only_integer_is_the_size_of_square_matrices(kernel, name):
    parameters = f"const float *A, const float *B, float *C, int {name}"
    made = kernel(source(parameters, name, name), grid=f"{name}/8,{name}/8")
    assert made.signature == ("A", "B", "C", "N")
    assert made.sizes.only == "N"


@pytest.mark.parametrize("name", ["unknown", "alphaBits"])
def test_an_integer_beside_a_size_is_not_guessed(kernel, name):
    parameters = f"const float *A, const float *B, float *C, int n, int {name}"
    with pytest.raises(UsageError, match="give --args"):
        kernel(source(parameters, "n", "n"), grid="n/8,n/8")


MATRICES = "const float *A, const float *B, float *C"


def test_constants_name_the_sizes_in_code_and_grid(kernel, tmp_path):
    (tmp_path / "sizes.h").write_text(
        "static const int MM = 16;\nenum { N_SIZE = 24 };\nconstexpr int GEMM_K = 40;\n"
    )
    text = '#include "sizes.h"\n' + source(MATRICES, "GEMM_K", "N_SIZE")
    made = kernel(text, grid="N_SIZE/8,MM/8")
    assert made.sizes.fixed == {"M": 16, "N": 24, "K": 40}
    records = check(made)
    assert {each.problem.shape for each in records} == {"16x24x40"}
    assert [each.environment["inputs"] for each in records] == ["normal", "non-finite"]


def test_sizes_that_nothing_names_are_asked_for(kernel):
    text = "#define HOW_MANY 24\n" + source(MATRICES, "HOW_MANY", "HOW_MANY")
    made = kernel(text, grid="3,3")
    with pytest.raises(UsageError, match="by --shape MxNxK"):
        check(made)
    assert [each.verdict for each in check(made, [24])] == ["ok"]


def test_vector_types_are_structs_and_nested_types_are_not(kernel, tmp_path):
    pair = kernel(
        source(f"{MATRICES}, int3 sizes", "sizes.z", "sizes.y"), grid="1,1", args="A,B,C,{M,N,K}"
    )
    assert pair.signature == ("A", "B", "C", "M", "N", "K")
    text = "template <class T> struct wrap { using type = T; };\n" + source(
        "const wrap<float>::type *A, const wrap<float>::type *B, wrap<float>::type *C, int n",
        "n",
        "n",
    )
    (record,) = check(kernel(text, grid="n/8,n/8"), [16])
    assert record.verdict == "ok"


def test_sizes_are_not_blamed_for_paddings():
    def record(m, n, k, verdict, lda):
        scales = {"alpha": 1.0, "beta": 0.0, "epilogue": "none"}
        return CheckRecord(
            kernel="own",
            case="",
            problem=ProblemRecord(m=m, n=n, k=k, lda=lda, ldb=n, ldc=n, **scales),
            config={},
            device=DeviceRecord(kind="emulator", gpu="RTX 3090"),
            seed=0,
            verdict=verdict,
        )

    whole = [record(size, size, 32, "ok", 32) for size in (16, 32)]
    broken = [record(size, size, 31, "wrong result", 34) for size in (15, 17)]
    assert right_multiples([*whole, *broken], (16, 16, 16)) is not None
    tight = [record(17, 17, 31, "ok", 31)]
    assert right_multiples([*whole, *broken, *tight], (16, 16, 16)) is None
    # One failure alone, and failures that are larger than all that is clean.
    assert right_multiples([*whole, *broken[:1]], (16, 16, 16)) is None
    large = [record(size, size, 31, "wrong result", 31) for size in (65, 81)]
    assert right_multiples([*whole, *large], (16, 16, 16)) is None
    # Two of four other sizes are clean: a short k, say, tells those that failed from them.
    short = [record(size, size, 7, "wrong result", 7) for size in (15, 17)]
    others = [record(size, size, 31, "ok", 31) for size in (18, 27)]
    assert right_multiples([*whole, *short, *others[:1]], (16, 16, 16)) is not None
    assert right_multiples([*whole, *short, *others], (16, 16, 16)) is None
    race = Finding(
        check="racecheck",
        kind="read after write",
        message="",
        block=(0, 0, 0),
        here=AccessSite(file="a.cu", line=1, instruction="ld.shared", thread=None),
        array="As",
    )
    raced = [msgspec.structs.replace(each, findings=(race,)) for each in broken]
    assert right_multiples([*whole, *raced], (16, 16, 16)) is None
