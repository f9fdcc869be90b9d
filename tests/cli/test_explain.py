"""`gemmkit explain` and `gemmkit counters`."""

from __future__ import annotations

import json
import sys

import pytest

SMALL = ("--shape", "64x64x32", "--gpu", "rtx3090")
REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"


def test_a_rung_alone(call):
    result = call("explain", "naive", *SMALL)
    assert result.exit_code == 0, result.output
    text = result.output
    assert text.startswith("naive, 64x64x32 on RTX 3090, with no GPU\n")
    for title in (
        "GPU Speed Of Light (predicted)",
        "Memory Workload Analysis",
        "Occupancy",
        "Launch Statistics",
        "Source Counters",
        "Summary of naive",
    ):
        assert f"\n{title}\n" in text
    assert "sum += *element(A, lda, row, k)" in text


def test_a_rung_against_another(call):
    result = call("explain", "naive", "--against", "naive_uncoalesced", *SMALL)
    assert result.exit_code == 0, result.output
    assert "naive vs. naive_uncoalesced, 64x64x32 on RTX 3090" in result.output
    _, _, comparison = result.output.partition("\nAdvantages of naive\n")
    assert "Its global loads access 6.6 times fewer 32-byte sectors" in comparison
    assert f"{REQUESTS}:" not in comparison, "both make equally many"


def test_another_configuration_of_the_same_kernel_as_json(call):
    result = call("explain", "coarsening_1d", "--against", ":stride=1", "--json", *SMALL)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["kernel"], found["against"]["kernel"]) == (
        "coarsening_1d:TM=8",
        "coarsening_1d:TM=1",
    )
    assert found["metrics"][REQUESTS] == found["against"]["metrics"][REQUESTS]
    assert all(sentence["evidence"] for sentence in found["comparison"])


# A block has `WIDE` columns of one row.
OWN = """
__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  const int row = blockIdx.y, col = blockIdx.x * WIDE + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + col];
  C[row * N + col] = sum;
}
"""


def test_files_against_each_other(call, tmp_path):
    """What is not said of the other file is as for the first, and kernels of one name are told
    apart."""
    new, old = (tmp_path / name for name in ("new.cu", "old.cu"))
    new.write_text(OWN)
    old.write_text(OWN.replace("sum += ", "sum = sum + "))
    words = ("explain", new, "--grid", "N/64,M", "--block", "64", "--option=-DWIDE=64", "--json")
    names = []
    for other in (f"'{old}'", f"{old} --grid N/32,M --block 32 --option=-DWIDE=32", new):
        result = call(*words, "--against", other, *SMALL)
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        assert not found["against"]["wrong"]
        names.append(found["against"]["kernel"])
        threads = found["against"]["metrics"]["launch__block_size"]
        assert threads == (32 if "--block 32" in str(other) else 64)
    assert names == ["gemm of old.cu", "gemm of old.cu", "gemm (again)"]


def test_a_rung_against_a_file(call, tmp_path):
    path = tmp_path / "own.cu"
    path.write_text(OWN.replace("WIDE", "32"))
    other = f"{path} --grid N/32,M --block 32"
    result = call("explain", "naive", "--against", other, *SMALL)
    assert result.exit_code == 0, result.output
    assert "naive vs. gemm, 64x64x32 on RTX 3090" in result.output


def test_a_wrong_result_comes_first_and_ends_with_1(call, tmp_path):
    path = tmp_path / "own.cu"
    path.write_text(
        "__constant__ float scale;\n"
        "__global__ void own(int M, int N, int K, const float* A, const float* B, float* C) {\n"
        "  int row = blockIdx.y, col = blockIdx.x * 32 + threadIdx.x;\n"
        "  float sum = 0;\n"
        "  for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + col];\n"
        "  C[row * N + col] = scale * sum;\n"
        "}\n"
    )
    words = ("explain", path, "--grid", "N/32,M", "--block", "32", *SMALL)
    unset = call(*words)
    assert unset.exit_code == 2
    assert "'scale' (__constant__) was never set, and 'own' reads it at own.cu:6" in unset.stderr
    wrong = call(*words, "--constant", "scale=2")
    assert wrong.exit_code == 1
    assert wrong.stdout.splitlines()[2].startswith("WRONG RESULT of own at 64x64x32: All 4,096")
    assert call(*words, "--constant", "scale=alpha", "--json").exit_code == 0
    assert call(*words, "--constant", "scale=2", "--tolerance", "1.5", "--json").exit_code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--constant", "scale"), "'scale' is not NAME=VALUE"),
        (("--constant", "x=1"), "no __constant__ or __device__ variable 'x'"),
        (("--compute-dtype", "fp12"), "unknown compute type 'fp12'"),
        (("--tolerance", "-1"), "give a finite number of 0 or more"),
    ],
)
def test_options_that_cannot_be_meant(call, words, message):
    result = call("explain", "naive", *SMALL, *words)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_file_of_ones_own(call, tmp_path):
    path = tmp_path / "mine.cu"
    path.write_text(
        "__global__ void mine(int M, int N, int K, const float* A, const float* B, float* C) {\n"
        "  int row = blockIdx.y, col = blockIdx.x * 32 + threadIdx.x;\n"
        "  float sum = 0;\n"
        "  for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + col];\n"
        "  C[row * N + col] = sum;\n"
        "}\n"
    )
    result = call("explain", path, "--grid", "N/32,M", "--block", "32", *SMALL)
    assert result.exit_code == 0, result.output
    assert "mine.cu:4" in result.output
    assert "for (int k = 0; k < K; ++k) sum += A[row * K" in result.output


def test_pictures_and_maps(call, tmp_path):
    words = ("--pictures", tmp_path / "drawn", "--maps", "--format", "png", "--config", "BM=4")
    result = call("explain", "naive", *words, *SMALL)
    assert result.exit_code == 0, result.output
    assert "load of B: ld.global.f32 at naive.cu:" in result.output
    names = {path.name for path in (tmp_path / "drawn").iterdir()}
    assert names == {
        f"naive-BM=4-{picture}.png" for picture in ("addresses", "tiles", "occupancy", "roofline")
    }
    assert f"wrote {tmp_path / 'drawn' / 'naive-BM=4-tiles.png'}" in result.output


def test_a_page(call, tmp_path):
    page = tmp_path / "page.html"
    result = call("explain", "naive", "--html", page, *SMALL)
    assert result.exit_code == 0, result.output
    assert f"wrote {page}" in result.output
    text = page.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert "for (int k = 0; k &lt; K; ++k)" in text


def test_a_timeline_is_written_as_a_trace(call, tmp_path):
    path = tmp_path / "timeline.json"
    words = ("--against", "naive", "--timeline", path)
    result = call("explain", "shared_tiling", *words, *SMALL)
    assert result.exit_code == 0, result.output
    assert "Timeline of a block, predicted" in result.output
    assert f"wrote {path}" in result.output
    events = json.loads(path.read_text("utf-8"))["traceEvents"]
    assert {each["args"]["name"] for each in events if each["name"] == "process_name"} == {
        "shared_tiling on RTX 3090, one block, predicted",
        "naive on RTX 3090, one block, predicted",
    }
    multiplied = [each for each in events if each["name"].startswith("multiply tile")]
    assert {each["pid"] for each in multiplied} == {1, 2}


def test_a_timeline_of_nothing_is_not_written(call, tmp_path):
    path = tmp_path / "timeline.json"
    result = call("explain", "naive", "--timeline", path, "--shape", "0x8x8")
    assert result.exit_code == 0, result.output
    assert "No timeline: nothing is launched" in result.output
    assert not path.exists()
    result = call("explain", "naive", "--timeline", tmp_path / "nowhere" / "timeline.json")
    assert result.exit_code == 2
    assert "there is no folder" in result.stderr


@pytest.mark.parametrize("verb", ["explain", "check", "bench", "ladder"])
def test_a_page_that_cannot_be_written_is_refused_at_once(call, tmp_path, verb):
    for name, reason in (
        (tmp_path / "nowhere" / "page.html", "there is no folder"),
        ("", "--html takes the name of a file"),
        ("-", "--html takes the name of a file"),
        (tmp_path, "is a directory"),
    ):
        words = [] if verb == "ladder" else ["naive"]
        result = call(verb, *words, "--html", name)
        assert result.exit_code == 2, name
        assert reason in result.stderr


def test_a_page_of_a_kernel_with_a_barrier_before_its_loads(call, tmp_path):
    path, page = tmp_path / "mine.cu", tmp_path / "page.html"
    path.write_text(
        "__global__ void mine(int M, int N, int K, const float* A, const float* B, float* C) {\n"
        "  __shared__ float zeros[32];\n"
        "  zeros[threadIdx.x] = 0.0f;\n"
        "  __syncthreads();\n"
        "  int row = blockIdx.y, col = blockIdx.x * 32 + threadIdx.x;\n"
        "  float sum = zeros[31 - threadIdx.x];\n"
        "  for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + col];\n"
        "  C[row * N + col] = sum;\n"
        "}\n"
    )
    words = ("--grid", "N/32,M", "--block", "32", "--html", page, "--maps")
    result = call("explain", path, *words, *SMALL)
    assert result.exit_code == 0, result.output
    assert "Accesses of a warp" in page.read_text("utf-8")


def test_a_page_of_a_kernel_that_launches_nothing(call, tmp_path):
    page = tmp_path / "page.html"
    config = "BM=32,BN=64,BK=8,WM=16,WN=32,TM=4,TN=4"
    call("explain", "gemm_tiled", "--config", config, "--html", page, "--shape", "8x8x0")
    assert "Tiles of a block" not in page.read_text("utf-8")
    result = call("explain", "naive", "--html", page, "--shape", "0x8x8")
    assert result.exit_code == 0, result.output
    assert '<h1><span lang="en">naive, 0x8x8' in page.read_text("utf-8")


def test_pictures_without_matplotlib_are_refused_at_once(call, tmp_path, monkeypatch):
    def gather(*arguments, **settings):
        raise AssertionError("began to explain")

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("gemmkit.analysis.explain.gather", gather)
    result = call("explain", "naive", "--pictures", tmp_path / "drawn", *SMALL)
    assert result.exit_code == 2
    assert "pictures need Matplotlib: run `pip install 'gemmkit[plots]'`" in result.stderr
    assert not (tmp_path / "drawn").exists()


@pytest.mark.slow
def test_pictures_of_two_configurations_do_not_replace_each_other(call, tmp_path):
    words = ("--against", ":TM=1", "--pictures", tmp_path)
    result = call("explain", "coarsening_1d", *words, *SMALL)
    assert result.exit_code == 0, result.output
    names = {path.name for path in tmp_path.iterdir()}
    assert {"coarsening_1d-banks.svg", "coarsening_1d-TM=1-banks.svg"} <= names
    assert {"coarsening_1d-occupancy.svg", "coarsening_1d-TM=1-occupancy.svg"} <= names
    assert {name for name in names if "roofline" in name} == {"coarsening_1d-roofline.svg"}
    drawn = (tmp_path / "coarsening_1d-roofline.svg").read_text("utf-8")
    assert drawn.count(">coarsening_1d:TM=1<") == 3, "one point for each level of memory"


def test_what_if_it_took_more_or_less(call):
    result = call("explain", "coarsening_1d", "--config", "TM=1", "--what-if", *SMALL)
    assert result.exit_code == 0, result.output
    text = result.output.partition("Occupancy of coarsening_1d:TM=1 with more or fewer resources")[
        2
    ]
    assert "RTX 3090: 100 % occupancy, 48 warps and 6 blocks per SM, limited by warps" in text
    assert "^ here: 40 registers, 100 %\n  at 41 registers or more: 83.33 %" in text
    assert {line.split("  ")[0] for line in text.splitlines()} >= {"T4", "RTX 3090", "H100", "B200"}


def test_beside_what_ncu_measured(call, tmp_path):
    path = tmp_path / "report.csv"
    path.write_text(f'"ID","Kernel Name","{REQUESTS}"\n"","",""\n"0","naive","8,192"\n')
    result = call("explain", "naive", "--ncu", path, *SMALL)
    assert result.exit_code == 0, result.output
    measured = result.output.partition("Measured by Nsight Compute, naive, beside naive")[2]
    assert f"{REQUESTS}     8,192     8,192       equal" in measured


def test_of_a_report_the_launches_of_the_kernel_are_shown_with_the_predicted_time(call, tmp_path):
    path = tmp_path / "report.csv"
    path.write_text(
        f'"ID","Kernel Name","gpu__time_duration.sum","{REQUESTS}"\n"","","ns",""\n'
        '"0","other(int)","1000","1"\n"1","void naive<32, 32>(int)","2000","8192"\n'
    )
    result = call("explain", "naive", "--ncu", path, *SMALL)
    assert result.exit_code == 0, result.output
    assert "Measured by Nsight Compute, other" not in result.output
    assert "gpu__time_duration.sum (predicted)" in result.output
    result = call("explain", "shared_tiling", "--ncu", path, *SMALL)
    assert "The report has no launch of 'shared_tiling'." in result.output
    assert "Measured by Nsight Compute, other(int), beside shared_tiling" in result.output


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("naive", "--against", ":"), "--against takes a rung, a file"),
        (("naive", "--against", "gone.cu"), "cannot read gone.cu"),
        (("naive", "--against", "own.cu --grd 1"), "'own.cu --grd 1': No such option '--grd'"),
        (("naive", "--against", "own.cu 'x"), "no closing quotation"),
        (("naive", "--json", "--what-if"), "--json excludes --ncu"),
        (("naife",), "did you mean naive"),
        (("naive", "--against", "vektorized"), "did you mean vectorized"),
        (("naive", "--against", "naive:BM"), "'BM' is not KEY=VALUE"),
        (("naive", "--against", ":TM=4"), "has no key 'TM'"),
        (("naive", "--config", "BM=64"), "threads per block are more than"),
        (("naive", "--ncu", "/nowhere.csv", "--shape", "32"), "cannot read /nowhere.csv"),
    ],
)
def test_what_cannot_be_explained(call, words, reason):
    result = call("explain", *words)
    assert result.exit_code == 2
    assert reason in result.output
    assert "Traceback" not in result.output


def test_counters_by_how_they_are_obtained(call):
    text = call("counters").output
    assert "Exact: what the hardware counts\n" in text
    assert "Predicted by a model of the board" in text
    assert f"\n  {REQUESTS}\n" in text
    listed = json.loads(call("counters", "--json").stdout)
    assert {"name", "description", "basis"} == set(listed[0])
    assert all(f"  {each['name']}\n" in text for each in listed)


@pytest.mark.parametrize("shape", ["0x128x16", "128x0x16", "0x0x0"])
@pytest.mark.parametrize("more", [(), ("--against", "warp_tiled", "--maps", "--what-if")])
@pytest.mark.sample
def test_an_empty_product_is_said_in_one_sentence(call, shape, more):
    result = call("explain", "naive", "--shape", shape, "--gpu", "h100", *more)
    assert result.exit_code == 0, result.stderr
    m, n, _ = shape.split("x")
    said = f"The product is empty: C is {m}x{n}, so nothing is launched."
    assert result.stdout.splitlines()[1:] == ["", said]


def test_an_empty_product_is_said_in_json_too(call):
    found = json.loads(call("explain", "naive", "--shape", "0x128x16", "--json").stdout)
    assert [each["text"] for each in found["sentences"]] == [
        "The product is empty: C is 0x128, so nothing is launched."
    ]


def test_an_access_out_of_bounds_is_quoted_and_says_what_to_run(call, tmp_path):
    path = tmp_path / "past.cu"
    path.write_text(
        "__global__ void past(int M, int N, int K, const float *A, const float *B, float *C) {\n"
        "  C[0] = A[M * K] * B[0];\n}\n"
    )
    done = call("explain", path, "--grid", 1, "--block", 1, "--shape", 8)
    assert done.exit_code == 2
    assert "load of 4 bytes out of bounds, 0 bytes past the end of 'A'" in done.stderr
    assert ">    2 |   C[0] = A[M * K] * B[0];" in done.stderr
    assert "`gemmkit check`" in done.stderr
    assert "0x" not in done.stderr
