"""Nsight Compute's exports, and the table that lays them beside emulated metrics."""

from __future__ import annotations

import pytest

from gemmkit.analysis.ncu_report import read_report
from gemmkit.errors import UsageError
from gemmkit.report.measured import measured_table

REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
DURATION = "gpu__time_duration.sum"
CACHE = "lts__t_sector_hit_rate.pct"

HEAD = ("ID", "Process ID", "Kernel Name", "Block Size", DURATION, REQUESTS, SECTORS, CACHE)
ROWS = (
    HEAD,
    ("", "", "", "", "ms", "", "", "%"),
    ("0", "71", "void naive<32, 32>(int, int)", "(32, 32, 1)", "1.5", "67,108,864", "167772160",
     "99.5"),
    ("1", "71", "other", "(32, 32, 1)", "0.5", "8", "n/a", "12"),
)  # fmt: skip
EXPORT = "\n".join(
    ["==PROF== Connected to process 71"]
    + [",".join(f'"{cell}"' for cell in row) for row in ROWS]
    + ["==PROF== Disconnected from process 71", ""]
)


@pytest.fixture
def export(tmp_path):
    path = tmp_path / "report.csv"
    path.write_text(EXPORT)
    return path


def test_launches_with_their_metrics(export):
    naive, other = read_report(export)
    assert naive.kernel == "void naive<32, 32>(int, int)"
    assert naive.metrics == {
        DURATION: 1500.0,
        REQUESTS: 67108864.0,
        SECTORS: 167772160.0,
        CACHE: 99.5,
    }
    assert SECTORS not in other.metrics


def test_beside_the_emulated_ones(export):
    naive, other = read_report(export)
    text = measured_table(naive, {REQUESTS: 67108864.0, SECTORS: 151e6}, "naive").to_text().plain
    rows = {row.split()[0]: row.split()[1:] for row in text.splitlines() if "l1tex" in row}
    assert rows[REQUESTS] == ["67,108,864", "67,108,864", "equal"]
    assert rows[SECTORS] == ["167,772,160", "151,000,000", "-10.00", "%"]
    assert "Not emulated: gpu__time_duration.sum, lts__t_sector_hit_rate.pct." in text
    nothing = measured_table(other, {}, "naive").to_text().plain
    assert "None of the measured metrics is emulated" in nothing


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no table of raw metrics"),
        ("a,b\n1,2\n", "has no table of raw metrics"),
        ('"ID","Kernel Name"\n"",""\n', "has no launch below"),
        ('"ID","Kernel Name"\n', "has no launch below"),
    ],
)
def test_files_that_are_no_export(tmp_path, text, reason):
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=reason):
        read_report(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="cannot read"):
        read_report(tmp_path / "none.csv")


@pytest.mark.parametrize(
    "table",
    [
        '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n"0","naive","x","","1"\n',
        '"Kernel Name","#","Address","Source"\n"naive","0","0","MOV"\n',
        '"ID","Kernel Name","sm__cycles"\n"0","naive","12"\n"1","naive","13"\n',
    ],
    ids=["details", "source", "no units"],
)
def test_other_pages_of_a_report_are_refused(tmp_path, table):
    path = tmp_path / "page.csv"
    path.write_text(table)
    with pytest.raises(UsageError, match="ncu --csv --page raw"):
        read_report(path)
