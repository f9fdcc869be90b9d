"""PTX through ptxas: the very figures of NVRTC, and what happens where ptxas is missing or old."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmkit.errors import CompileError, CompilerMissing
from gemmkit.gpu import find_board
from gemmkit.jit import ptxas
from gemmkit.jit.compiler import assemble_kernel, compile_plan
from gemmkit.jit.nvrtc import compiler_version
from gemmkit.jit.resources import registers_from_cubin
from gemmkit.kernels.catalog import LADDER
from gemmkit.kernels.fitting import fitting, in_types_of
from gemmkit.problem import GemmProblem
from rung_boards import board_for

PTX = """//
.version 7.0
.target sm_80
.address_size 64

.visible .entry twice(.param .u64 x)
{
\t.reg .b64 %rd<3>;
\t.reg .f32 %f<3>;
\tld.param.u64 %rd1, [x];
\tld.global.f32 %f1, [%rd1];
\tadd.f32 %f2, %f1, %f1;
\tst.global.f32 [%rd1], %f2;
\tret;
}
"""

needs_ptxas = pytest.mark.skipif(ptxas.assembler() is None, reason="needs ptxas")


@needs_ptxas
def test_a_kernel_gets_cubin_and_figures(cache_dir):
    binary = assemble_kernel(PTX, "twice", "sm_86", cache_dir=cache_dir)
    assert (binary.entry, binary.arch, binary.ptx) == ("twice", "sm_86", PTX)
    assert binary.compiler.startswith("ptxas ")
    assert binary.resources.registers == registers_from_cubin(binary.cubin, "twice")
    assert binary.resources.shared_bytes == binary.resources.spill_bytes == 0


@needs_ptxas
@pytest.mark.parametrize("kernel", LADDER, ids=lambda kernel: kernel.name)
@pytest.mark.sample(6)
def test_ptxas_and_nvrtc_of_one_version_agree(kernel):
    if ptxas.assembler_version() != f"ptxas {compiler_version()}":
        pytest.skip(f"NVRTC {compiler_version()} beside {ptxas.assembler_version()}")
    gpu = board_for(kernel, find_board("rtx3090"))
    problem = fitting(kernel, in_types_of(kernel, GemmProblem(256, 256, 256)), gpu)
    plan = kernel.plan(problem, kernel.default, gpu)
    compiled = compile_plan(plan, gpu.arch)
    assembled = assemble_kernel(compiled.ptx, compiled.entry, gpu.arch)
    assert assembled.resources == compiled.resources


@needs_ptxas
def test_the_cache_knows_what_was_assembled(cache_dir, monkeypatch):
    first = assemble_kernel(PTX, "twice", "sm_86", cache_dir=cache_dir)

    def fail(*arguments):
        raise AssertionError("this should have been in the cache")

    monkeypatch.setattr(ptxas, "assemble", fail)
    assert assemble_kernel(PTX, "twice", "sm_86", cache_dir=cache_dir) == first


@needs_ptxas
def test_refused_ptx_is_shown_with_its_lines(cache_dir):
    with pytest.raises(CompileError) as caught:
        assemble_kernel(
            PTX.replace("add.f32", "add.f33"),
            "twice",
            "sm_86",
            file_name="twice.ptx",
            cache_dir=cache_dir,
        )
    message = str(caught.value)
    assert message.startswith("twice.ptx does not assemble for sm_86:")
    assert "error: Unknown modifier '.f33'" in message
    assert "in PTX: add.f33 %f2, %f1, %f1;" in message


def test_without_ptxas_the_figures_are_unknown_but_the_ptx_is_there(cache_dir, monkeypatch):
    monkeypatch.setattr(ptxas, "assembler_version", lambda: None)
    monkeypatch.setattr(ptxas, "assembler", lambda: None)
    binary = assemble_kernel(PTX, "twice", "sm_86", cache_dir=cache_dir)
    assert binary.resources is None
    assert binary.cubin == b""
    assert binary.ptx == PTX
    assert "pip install 'gemmkit[ptx]'" in binary.log


def test_a_ptxas_that_is_too_old_counts_as_none(tmp_path, monkeypatch):
    tool = tmp_path / "ptxas"
    tool.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "release 12.0, V12.0.1"; exit 0; fi\n'
        "echo \"ptxas k.ptx, line 1; fatal   : Unsupported .version 9.5; current version is '8.0'\""
        " >&2\nexit 255\n"
    )
    tool.chmod(0o755)
    monkeypatch.setattr(ptxas, "assembler", lambda: Path(tool))
    with pytest.raises(CompilerMissing, match=r"ptxas 12\.0\.1 reads PTX up to version 8\.0"):
        ptxas.assemble(PTX, "sm_86", "k.ptx")
    assert assemble_kernel(PTX, "twice", "sm_86", cache_dir=tmp_path).resources is None
