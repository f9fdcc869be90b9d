"""What every verb prints fits terminals of any width and encoding.

Each verb runs once; what it prints is then laid out for each terminal.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from io import BytesIO, TextIOWrapper
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gemmkit.analysis.metric_list import metric_list
from gemmkit.analysis.trace import trace
from gemmkit.cli import VERBS, gemmkit
from gemmkit.cli.encoding import show_any_text
from gemmkit.cli.output import Printer, TableStream
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.report.layout import SPARE, Cell, Column, Row, Table
from gemmkit.report.metrics import metrics_text
from gemmkit.report.pictures.text import text_pictures

WIDTHS = (60, 80, 100, 120)
# Each character of the names of metrics, of configurations and of paths, which are never broken.
_TOKEN = re.compile(r"[\w./:=,<>()\[\]'+*-]{30,}")

RACY = """
extern "C" __global__ void racy(int m, int n, int k, const float* A, const float* B, float* C) {
  __shared__ float a[16][16], b[16][16];
  int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * 16 + ty, col = blockIdx.x * 16 + tx;
  float sum = 0;
  for (int t = 0; t < k; t += 16) {
    a[ty][tx] = A[row * k + t + tx]; b[ty][tx] = B[(t + ty) * n + col];
    for (int i = 0; i < 16; ++i) sum += a[ty][i] * b[i][tx];
    __syncthreads();
  }
  C[row * n + col] = sum;
}
"""
WRONG = """
extern "C" __global__ void wrong(int m, int n, int k, const float* A, const float* B, float* C) {
  int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
  if (row < m && col < n) C[row * n + col] = A[row * k];
}
"""
LAUNCH = "--grid (N+15)/16,(M+15)/16 --block 16,16"

RUNS = {
    "info": "info --gpu h100",
    "ladder": "ladder --size 16 --device emulator --kernels naive,split_k",
    "check": "check naive --shape 17x5x9,0x4x4",
    "check, a race": f"check RACY --shape 32x33x16 {LAUNCH}",
    "check, a wrong result": f"check WRONG --shape 32 {LAUNCH}",
    "check, a limit": "check naive --shape 16 --limit-at 32 --limit bank_conflicts==1",
    "check, refused": "check naive --shape 16 --config BM=64,BN=64",
    "explain": "explain naive --shape 16 --what-if",
    "explain, two": "explain naive --shape 16 --against shared_tiling",
    "explain, a file": f"explain WRONG --shape 16 {LAUNCH}",
    "sweep": "sweep --sizes 16 --kernels naive --device emulator",
    "bench": "bench naive --shape 16 --device emulator",
    "which": "which 512",
    "which, groups": "which --groups 512x512x512*4,128x64x32 --gpu h100",
    "tune": "tune --shape 16 --device model --kernels naive --budget 0.3s",
    "tune, the store": "tune",
    "build": "build --gpu rtx3090 --kernels naive",
    "an unknown kernel": "explain nosuchkernel",
    "an unknown option": "explain naive --shap 16",
    "an unknown shape": "explain naive --shape 16x",
}

Printed = list[Callable[[Printer, TableStream], object]]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Printed]:
    """What a run of the command line hands to its printer, in order."""
    folder = tmp_path_factory.mktemp("sources")
    for name, text in {"racy.cu": RACY, "wrong.cu": WRONG}.items():
        (folder / name).write_text(text)
    events: Printed = []

    def note(self: Printer, *args: Any, **options: Any) -> None:
        if streaming == 0:
            events.append(lambda out, _: out.print(*args, **options))

    streaming = 0

    def streamed(method: str) -> Callable[..., None]:
        original = getattr(TableStream, method)

        def noted(self: TableStream, tables: list[Table]) -> None:
            nonlocal streaming
            if streaming == 0:
                events.append(lambda _, stream: getattr(stream, method)(tables))
            streaming += 1
            original(self, tables)
            streaming -= 1

        return noted

    def run(words: str) -> Printed:
        events.clear()
        paths = {"RACY": str(folder / "racy.cu"), "WRONG": str(folder / "wrong.cu")}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Printer, "print", note)
            for method in ("show", "finish"):
                patch.setattr(TableStream, method, streamed(method))
            result = CliRunner().invoke(gemmkit, [paths.get(each, each) for each in words.split()])
        assert result.exit_code in (0, 1, 2), result.output
        assert events, result.output
        return events

    return run


def laid_out(events: Printed, columns: int, encoding: str, patch: pytest.MonkeyPatch) -> str:
    """The events as a terminal of this width and encoding shows them."""
    patch.setenv("COLUMNS", str(columns))
    written = BytesIO()
    patch.setattr("sys.stdout", TextIOWrapper(written, encoding=encoding))
    show_any_text()
    out = Printer()
    stream = TableStream(out)
    for each in events:
        each(out, stream)
    out.console.file.flush()
    return written.getvalue().decode(encoding)


def see_that_it_fits(text: str, columns: int) -> None:
    for line in text.splitlines():
        # One token that is longer than a line stands alone, with its mark or indentation.
        rest = _TOKEN.sub("", line)
        assert len(line) <= columns - SPARE or (rest != line and len(rest.strip()) < 16), line


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.sample(6)
def test_every_verb_fits_every_terminal(printed, monkeypatch, name):
    events = printed(RUNS[name])
    for columns in WIDTHS:
        for encoding in ("utf-8", "latin-1", "ascii"):
            text = laid_out(events, columns, encoding, monkeypatch)
            see_that_it_fits(text, columns)
            if encoding == "utf-8":
                escapes = text.count("\\u")
            # Characters without a replacement are printed as escapes.
            assert text.count("\\u") == escapes
    monkeypatch.undo()


@pytest.mark.parametrize("verb", ["", *VERBS])
@pytest.mark.parametrize("columns", WIDTHS)
def test_help_fits_every_terminal(verb, columns):
    group = click.Context(gemmkit, info_name="gemmkit", terminal_width=min(columns, 80) - SPARE)
    command = gemmkit.get_command(group, verb) if verb else gemmkit
    context = click.Context(command, info_name=verb, parent=group if verb else None)
    context.terminal_width = group.terminal_width
    see_that_it_fits(command.get_help(context), columns)


@pytest.mark.parametrize("columns", WIDTHS)
def test_the_list_of_metrics_fits_every_terminal(columns):
    see_that_it_fits(metrics_text(metric_list(), columns - SPARE).plain, columns)


def test_pictures_fit_every_terminal():
    kernel = find_kernel("vectorized")
    config = kernel.configure({"BM": 64, "BN": 64})
    seen = trace(kernel, GemmProblem(64, 64, 32, lda=1024), find_board("rtx3090"), config=config)
    whole = text_pictures(seen)
    for columns in WIDTHS:
        pictures = text_pictures(seen, columns - SPARE)
        for picture in pictures:
            see_that_it_fits(picture.plain, columns)
        # Every lane and bank is shown, in more lines; of a tile, there are fewer elements.
        for picture, other in zip(pictures[:-1], whole[:-1], strict=True):
            numbers = (set(re.findall(r"\d+", each.plain)) for each in (picture, other))
            assert next(numbers) == next(numbers)


COLUMNS = (
    Column("name", "left"),
    Column("settings of this kernel", "left"),
    Column("threads per block"),
    Column("source", "left", crop=True),
)
ROWS = (
    Row((Cell("one"), Cell("BM=128,BN=128,BK=16"), Cell("1,234,567,890"), Cell("x" * 30))),
    Row((Cell("two"), Cell("any number of words"), Cell("64"), Cell("short"))),
)


def test_a_heading_takes_lines_where_its_column_is_narrow():
    lines = Table("A table", COLUMNS, ROWS).to_text(59).plain.splitlines()
    assert [line.split() for line in lines[2:4]] == [
        ["settings", "of", "this", "threads", "per"],
        ["name", "kernel", "block", "source"],
    ]
    assert max(map(len, lines)) == 59
    # Numbers are whole, a long line of source is not.
    assert "1,234,567,890" in lines[5]
    assert lines[5].endswith("…")


def test_columns_that_do_not_fit_side_by_side_are_stacked():
    table = Table("A table", COLUMNS, ROWS, ("A note.",))
    assert table.to_text(36).plain.splitlines() == [
        "A table",
        "",
        "─" * 36,
        "one",
        "    settings of this kernel:",
        "    BM=128,BN=128,BK=16",
        "    threads per block: 1,234,567,890",
        "    source:",
        f"    {'x' * 30}",
        "two",
        "    settings of this kernel: any",
        "    number of words",
        "    threads per block: 64",
        "    source: short",
        "",
        "A note.",
    ]


def test_lists_are_broken_after_commas_but_numbers_are_not():
    cell = Cell("a,bb,131,072,ccc,65,536")
    table = Table("", (Column("", "left"),), (Row((cell,)),))
    assert table.to_text(13).plain.split()[1:] == ["a,bb,131,072,", "ccc,65,536"]


@pytest.mark.parametrize(("encoding", "cell"), [("utf-8", "∞"), ("latin-1", "inf")])
def test_replacements_are_aligned_as_what_they_stand_for(monkeypatch, encoding, cell):
    rows = tuple(Row((Cell(each), Cell("bad", "bad"))) for each in ("∞", "12.5", "1"))
    table = Table("Errors", (Column("α"), Column("verdict", "left")), rows)
    text = laid_out([lambda out, _: out.print(table, end="")], 60, encoding, monkeypatch)
    lines = text.splitlines()[-3:]
    assert len({line.index("bad") for line in lines}) == 1
    assert lines[0].split()[0] == cell
