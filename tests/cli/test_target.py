"""TARGET and its options: rungs and files, and what is refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from gemmkit.cli.target import find_target, target_options
from gemmkit.errors import UsageError
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.kernel import Kernel

SOURCE = """template <int T>
__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my.cu"
    path.write_text(SOURCE)
    return path


def test_a_rung() -> None:
    assert find_target("Shared-Tiling") is find_kernel("shared_tiling")


def test_the_words_of_the_command_line(file: Path) -> None:
    found: list[Kernel] = []

    @click.command()
    @target_options
    def verb(**target: object) -> None:
        found.append(find_target(**target))  # type: ignore[arg-type]

    folders = [str(file.parent / name) for name in "ab"]
    for each in folders:
        Path(each).mkdir()
    words = [str(file), "--entry", "gemm<8>", "--grid", "(N+T-1)/T,M/2", "--block", "T,4"]
    words += ["--shared", "K*4", "--args", "M,N,K,A,B,C", "-I", folders[0], "--include", folders[1]]
    words += ["--option=-DX=3", "--option=-DY"]
    result = CliRunner().invoke(verb, words)
    assert result.exception is None
    (kernel,) = found
    source = kernel.file
    assert source is not None
    assert source.include_dirs == (str(file.parent), *folders)
    assert source.options == ("-DX=3", "-DY")
    assert (kernel.entry, kernel.signature) == ("gemm<8>", ("M", "N", "K", "A", "B", "C"))


@pytest.mark.parametrize(
    ("target", "given", "reason"),
    [
        (
            "nave",
            {},
            r"unknown kernel 'nave': did you mean naive\? \(files .* end in \.cu or \.ptx\)",
        ),
        ("naive", {"grid": "1"}, r"'naive' is not a file, .* leave out --grid"),
        ("naive", {"include_dirs": ("a",), "block": "1"}, "leave out --block, --include"),
        ("gone.cu", {}, r"cannot read gone\.cu: No such file"),
        ("a/b", {}, "cannot read a/b"),
        (".", {}, r"cannot read \.: "),
    ],
)
def test_targets_that_are_none(target: str, given: dict[str, object], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        find_target(target, **given)  # type: ignore[arg-type]


def test_show_takes_a_file(call: Callable[..., Result], file: Path) -> None:
    words = ("--entry", "gemm<8>", "--grid", "N/T,1", "--block", "T")
    result = call("show", file, *words, "--shape", "5x64x3", "--gpu", "rtx3090")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "gemm<8>"
    assert {"entry      gemm<8>", "arguments  M, N, K, A, B, C"} <= set(lines)
    assert "grid       8 × 1 × 1 = 8 blocks" in lines
    assert result.stdout.endswith(SOURCE)
    ptx = call("show", file, *words, "--ptx").stdout
    assert ".entry _Z4gemmILi8EEviiiPKfS1_Pf" in ptx


@pytest.mark.parametrize("verb", ["bench", "check", "show"])
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--entry gemm<8> --block 8", "give --grid"),
        ("--entry gemm --grid 1 --block 8", "'gemm' in my.cu is a template"),
        ("--entry nothing --grid 1 --block 8", "my.cu has no kernel 'nothing'; it has: gemm<T>"),
        ("--entry gemm<8> --grid Q --block 8", "'Q' uses Q"),
        ("--entry gemm<8> --args M --grid 1 --block 8", "takes 6 arguments"),
    ],
)
def test_bad_usage_exits_with_2(
    call: Callable[..., Result], file: Path, verb: str, words: str, reason: str
) -> None:
    result = call(verb, file, *words.split())
    assert result.exit_code == 2
    assert reason in result.stderr
    assert "Traceback" not in result.stderr
