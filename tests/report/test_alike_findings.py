"""Many findings that differ in line and offset only, as text and as a page."""

from __future__ import annotations

import pytest
from rich.text import Text

from gemmkit.bench.check import check
from gemmkit.bench.edge_cases import NON_FINITE
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import GemmProblem
from gemmkit.report.causes import causes
from gemmkit.report.check_page import check_document
from gemmkit.report.findings import SHOWN_ALIKE, check_table, findings_text
from gemmkit.report.layout import Table, fitted

LINES = 9
HEAD = "__global__ void many(int M, int N, int K, const float *A, const float *B, float *C) {"


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A kernel with an invalid load on each of nine lines, and the records of its check."""
    path = tmp_path_factory.mktemp("many") / "many.cu"
    loads = "".join(f"  s += A[M * K + {n}];\n" for n in range(LINES))
    path.write_text(f"{HEAD}\n  float s = 0;\n{loads}  C[0] = s + B[0];\n}}\n")
    kernel = Kernel.from_file(path, grid=1, block=1)
    return kernel, list(check(kernel, ["4x4x4"], gpu="t4"))


def test_findings_come_by_line(many):
    _, records = many
    lines = [each.finding.here.line for each in causes(records)]
    assert lines == [3 + n for n in range(LINES)]


def test_the_first_are_shown_in_full_and_the_rest_by_line(many):
    kernel, records = many
    text = findings_text(records, kernel).plain
    assert text.count("memcheck: out of bounds: load") == SHOWN_ALIKE
    assert f"{LINES - SHOWN_ALIKE} more findings of this kind: memcheck, out of bounds, 'A'" in text
    for n in range(SHOWN_ALIKE, LINES):
        assert f"{n + 1}. many.cu:{3 + n}" in text
        assert f"  s += A[M * K + {n}];" in text
    assert "--json lists" not in text


def test_the_page_has_an_index_by_line(many):
    kernel, records = many
    section = check_document(records, kernel).sections[0]
    index = section.blocks[0]
    assert isinstance(index, Table)
    rows = [[cell.text for cell in row.cells] for row in index.rows]
    assert rows == [[f"many.cu:{3 + n}", str(n + 1), "memcheck"] for n in range(LINES)]


def test_a_diagnosis_is_given_once(tmp_path):
    path = tmp_path / "zero.cu"
    path.write_text(f"{HEAD}\n  C[blockIdx.y * N + blockIdx.x] = 7;\n}}\n")
    kernel = Kernel.from_file(path, grid="N,M", block=1)
    notes = [row.note for row in check_table([*check(kernel, ["4", "8", "9"], gpu="t4")]).rows]
    assert notes[0].startswith("All 16 elements are wrong: ")
    assert len(notes[0]) > 60
    assert notes[1:] == [f"All {n} elements are wrong: as above." for n in (64, 81)]


def test_as_above_stands_for_the_reason_given_last(tmp_path):
    """The kernel takes B with rows and columns exchanged, and ignores beta where it is not 1."""
    path = tmp_path / "two.cu"
    head = HEAD.replace("const float *A", "float beta, const float *A")
    body = """  float s = 0;
  for (int k = 0; k < K; ++k) s += A[blockIdx.y * K + k] * B[blockIdx.x * K + k];
  if (beta != 0) s = 0, C[blockIdx.y * N + blockIdx.x] = 7;
  else C[blockIdx.y * N + blockIdx.x] = s;"""
    path.write_text(f"{head}\n{body}\n}}\n")
    kernel = Kernel.from_file(path, grid="N,M", block=1)
    problems = [GemmProblem(n, n, n, beta=beta) for n, beta in ((4, 0), (5, 0.5), (6, 0), (7, 0))]
    notes = [row.note for row in check_table([*check(kernel, problems, gpu="t4")]).rows]
    why = "C = A·Bᵀ: B is taken with rows and columns exchanged."
    assert notes[0].startswith(f"All 16 elements are wrong: {why} Try --layout NT. For example, ")
    assert notes[1].startswith("All 25 elements are wrong: ")
    assert why not in notes[1]
    assert notes[2] == f"All 36 elements are wrong: {why}"
    assert notes[3] == "All 49 elements are wrong: as above."


def test_nan_and_infinities_show_nothing_new_where_finite_inputs_are_wrong(tmp_path):
    path = tmp_path / "transposed.cu"
    body = """  float s = 0;
  for (int k = 0; k < K; ++k) s += A[blockIdx.y * K + k] * B[blockIdx.x * K + k];
  C[blockIdx.y * N + blockIdx.x] = s;"""
    path.write_text(f"{HEAD}\n{body}\n}}\n")
    kernel = Kernel.from_file(path, grid="N,M", block=1)
    records = [*check(kernel, gpu="t4")]
    notes = [row.note for row in check_table([*records, records[1]]).rows]
    number = [each.case for each in records].index(NON_FINITE)
    assert notes[number].endswith(": without NaN and infinities, results are wrong too.")
    assert notes[-1].endswith(": as above.")
    (alone,) = check_table(records[number : number + 1]).rows
    assert "results are wrong too" not in alone.note
    assert "For example, " in alone.note


def test_sums_by_atomics_into_c_need_zeros(tmp_path):
    path = tmp_path / "sums.cu"
    body = "atomicAdd(&C[blockIdx.y * N + blockIdx.x], A[0] * B[0]);"
    path.write_text(f"{HEAD}\n  {body}\n}}\n")
    kernel = Kernel.from_file(path, grid="N,M", block=1)
    text = findings_text([*check(kernel, ["4x4x1"], gpu="t4")], kernel).plain
    assert "the host must zero C before each launch" in text
    assert "--beta 1" in text


def test_a_long_source_line_stays_beside_its_number():
    code = "C[" + "blockIdx.x*" * 8 + "1] = 0;"
    lines = fitted(Text(f"    >    6 |     {code}"), 60).plain.splitlines()
    assert lines[0].startswith("    >    6 |     C[blockIdx.x*")
    assert " ".join(lines[1].split()) == "= 0;"
