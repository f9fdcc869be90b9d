"""NVRTC's output for several architectures, and what it says when there is none."""

from __future__ import annotations

import re

import pytest

from gemmkit.errors import CompileError
from gemmkit.jit.nvrtc import compile_program, compiler_version, supported_architectures

ARCHITECTURES = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120a"]


def compile_sample(sample, entry=None, arch="sm_86", **rest):
    return compile_program(
        sample.source,
        entry or sample.entry,
        arch,
        headers=sample.headers,
        file_name=sample.file_name,
        **rest,
    )


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_compiles_for_every_architecture(sample, arch) -> None:
    program = compile_sample(sample, arch=arch)
    assert re.search(rf"^\.target {arch}\b", program.ptx, re.MULTILINE)
    assert f".entry {program.entry}(" in program.ptx
    assert program.cubin.startswith(b"\x7fELF")
    assert program.entry.encode() in program.cubin
    assert program.compiler.startswith("NVRTC 13.")


def test_finds_a_template_instance_and_an_extern_c_kernel(sample) -> None:
    assert compile_sample(sample).entry == "_Z6scaledILi32EEvPf"
    assert compile_sample(sample, "plain").entry == "plain"


def test_line_tables_name_the_files_as_given(sample) -> None:
    ptx = compile_sample(sample).ptx
    names = set(re.findall(r'^\s*\.file\s+\d+\s+"(.*)"', ptx, re.MULTILINE))
    assert names == {"scaled.cu", "scale.cuh", "square.cuh"}
    assert re.search(r"\.loc\s+\d+ 6 ", ptx), "the line of the first statement in the kernel"


def test_output_is_the_same_in_every_working_directory(sample, tmp_path, monkeypatch) -> None:
    here = compile_sample(sample)
    monkeypatch.chdir(tmp_path)
    assert compile_sample(sample) == here


def test_files_of_the_working_directory_are_not_included(sample, tmp_path, monkeypatch) -> None:
    (tmp_path / "stray.cuh").write_text("// found by accident\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompileError, match=r"stray\.cuh"):
        compile_program(
            '#include "stray.cuh"\n' + sample.source,
            sample.entry,
            "sm_86",
            headers=sample.headers,
            file_name=sample.file_name,
        )


def test_arithmetic_is_ieee_with_fused_multiply_add() -> None:
    source = """extern "C" __global__ void k(float* x) {
      x[0] = x[0] * x[1] + x[2] / x[3];
      x[4] = sqrtf(x[5]);
    }"""
    ptx = compile_program(source, "k", "sm_80", headers={}, file_name="k.cu").ptx
    for instruction in ("fma.rn.f32", "div.rn.f32", "sqrt.rn.f32"):
        assert instruction in ptx
    assert ".ftz" not in ptx
    assert ".approx" not in ptx


@pytest.mark.parametrize(
    ("arch", "message"),
    [
        ("sm_35", "does not compile for sm_35; it knows .*sm_86"),
        ("sm_999a", "does not compile for sm_999a; it knows .*sm_86"),
        ("compute_86", "'compute_86' is not an architecture"),
        ("rtx3090", "'rtx3090' is not an architecture"),
    ],
)
def test_unknown_architectures_are_refused(sample, arch, message) -> None:
    with pytest.raises(CompileError, match=message):
        compile_sample(sample, arch=arch)


def test_unknown_options_are_refused(sample) -> None:
    with pytest.raises(CompileError, match="--no-such-option"):
        compile_sample(sample, options=["--no-such-option"])


def test_an_architecture_s_own_instructions_need_its_suffix() -> None:
    source = 'extern "C" __global__ void k() { asm("setmaxnreg.inc.sync.aligned.u32 240;"); }'
    with pytest.raises(CompileError, match="setmaxnreg"):
        compile_program(source, "k", "sm_90", headers={}, file_name="k.cu")
    compile_program(source, "k", "sm_90a", headers={}, file_name="k.cu")


def test_knows_the_architectures_of_all_boards() -> None:
    from gemmkit.gpu import BOARDS

    known = supported_architectures()
    assert {board.arch.rstrip("a") for board in BOARDS.values()} <= set(known)


def test_version_is_that_of_the_library(sample) -> None:
    assert compile_sample(sample).compiler == f"NVRTC {compiler_version()}"


def test_the_version_does_not_need_the_library(start_python) -> None:
    script = """
import sys
from gemmkit.jit.nvrtc import compiler_version
assert compiler_version() is not None
print([name for name in sys.modules if name.startswith("cuda")])
"""
    assert start_python(script).communicate() == ("[]\n", "")


WITHOUT_NVRTC = """
import sys
{sabotage}
from gemmkit.errors import CompilerMissing
from gemmkit.jit.nvrtc import compile_program
try:
    compile_program("", "k", "sm_86", headers={{}}, file_name="k.cu")
except CompilerMissing as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("sabotage", "words"),
    [
        ("sys.modules['cuda.pathfinder'] = None", ["cannot be loaded", "pip install"]),
        ("sys.platform = 'darwin'", ["macOS"]),
        (
            # The package is there, the shared library is not.
            "import cuda.pathfinder as p\n"
            "def fail(name): raise p.DynamicLibNotFoundError(f'no {name} here')\n"
            "p.load_nvidia_dynamic_lib = fail",
            ["cannot be loaded", "no nvrtc here", "pip install"],
        ),
    ],
)
def test_without_nvrtc_the_message_says_what_to_do(start_python, sabotage, words) -> None:
    output, errors = start_python(WITHOUT_NVRTC.format(sabotage=sabotage)).communicate()
    assert errors == ""
    for word in [*words, "gemmkit build --gpu NAME"]:
        assert word in output


def test_names_and_sources_may_hold_anything() -> None:
    name = 'odd "name" \\ here.cu'
    source = '// ümläut \r\nextern "C" __global__ void k() {}\r\n'
    assert compile_program(source, "k", "sm_86", headers={}, file_name=name).entry == "k"
    with pytest.raises(CompileError):
        compile_program("\x00\x01 \ufffd ` @", "k", "sm_86", headers={}, file_name=name)
