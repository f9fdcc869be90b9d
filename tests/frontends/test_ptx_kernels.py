"""Kernels from PTX: a rung's own PTX is the rung again; bad PTX and bad use are told plainly."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmkit.bench.check import check
from gemmkit.bench.run import run_kernel
from gemmkit.bench.workload import Workload
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.errors import CompileError, UnsupportedProblem, UsageError
from gemmkit.frontends.ptx import entries_in, readable_name
from gemmkit.gpu import find_board
from gemmkit.jit import ptxas
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import SGEMM_SIGNATURE
from gemmkit.problem import GemmProblem
from gemmkit.record import Record
from gemmkit.report.findings import findings_text

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "naive.ptx"
GPU = find_board("rtx3090")
PROBLEM = GemmProblem(70, 50, 33, alpha=1.5, beta=0.5, lda=36, ldb=51, ldc=56)
ARGS = "M,N,K,alpha,A,lda,B,ldb,beta,C,ldc,0"
LAUNCH = {"args": ARGS, "grid": "(N+31)/32,(M+31)/32", "block": "32,32"}

LOADS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
HEAD = ".version 7.0\n.target sm_80\n.address_size 64\n"
ZERO = ".visible .entry {}(.param .u64 c)\n{{ ret; }}\n"
FLOAT = HEAD + ".entry f(.param .f32 c)\n{ ret; }\n"
STRUCT = HEAD + ".entry f(.param .align 4 .b8 c[8])\n{ ret; }\n"


@pytest.fixture(scope="module")
def naive():
    """The PTX that NVRTC makes of the naive rung."""
    kernel = find_kernel("naive")
    return compile_plan(kernel.plan(PROBLEM, kernel.default, GPU), GPU.arch)


@pytest.fixture
def device():
    return EmulatedDevice(GPU)


@pytest.mark.parametrize(
    "name", ["naive", pytest.param("vectorized", marks=pytest.mark.slow), "async_copy"]
)
def test_a_rung_s_own_ptx_is_the_same_kernel(name, device):
    rung = find_kernel(name)
    plan = rung.plan(PROBLEM, rung.default, GPU)
    kernel = Kernel.from_ptx(
        compile_plan(plan, GPU.arch).ptx,
        # A single product: the strides of a batch do not matter.
        args=[*ARGS.split(","), *["0"] * (len(plan.signature) - len(SGEMM_SIGNATURE))],
        grid=plan.grid,
        block=plan.block,
        shared=plan.shared_bytes,
    )
    mine, its = (run_kernel(each, PROBLEM, device) for each in (kernel, rung))
    assert mine.correct
    assert mine.kernel == name
    assert mine.counters == its.counters
    if ptxas.assembler() is not None:
        assert (mine.resources, mine.occupancy) == (its.resources, its.occupancy)


def test_a_file_and_its_text_are_the_same(naive, tmp_path, device):
    path = tmp_path / "mine.ptx"
    path.write_text(naive.ptx)
    for ptx in (path, str(path), naive.ptx):
        kernel = Kernel.from_ptx(ptx, entry="naive", name="mine", **LAUNCH)
        assert (kernel.name, kernel.rung, kernel.source) == ("mine", None, naive.ptx)
        assert run_kernel(kernel, GemmProblem(40, 40, 8), device).correct


def test_without_ptxas_it_runs_and_its_resources_are_unknown(naive, device, monkeypatch, cache_dir):
    monkeypatch.setattr(ptxas, "assembler", lambda: None)
    monkeypatch.setattr(ptxas, "assembler_version", lambda: None)
    kernel = Kernel.from_ptx(naive.ptx, **LAUNCH)
    record = run_kernel(kernel, PROBLEM, device, cache_dir=cache_dir)
    assert record.correct
    assert record.counters
    assert record.resources is record.occupancy is None
    assert Record.from_json(record.to_json()) == record


def test_lines_are_those_of_the_ptx_where_it_has_no_line_information(device):
    text = EXAMPLE.read_text("utf-8")
    kernel = Kernel.from_ptx(EXAMPLE, args="M,N,K,A,B,C", grid="N/32,M/8", block="32,8")
    problem = GemmProblem(8, 32, 4)
    plan = kernel.plan(problem, kernel.default, GPU)
    launch, _ = Workload(problem, device).run(compile_plan(plan, GPU.arch), plan)
    loads = [where for where, counts in launch.line_counters.items() if counts[LOADS]]
    assert {name for name, _ in loads} == {"naive.ptx"}
    lines = [text.split("\n")[line - 1].strip() for _, line in loads]
    assert lines == ["ld.global.f32 %x, [%a];", "ld.global.f32 %y, [%b];"]


def test_findings_quote_the_line_of_the_ptx(tmp_path):
    text = EXAMPLE.read_text("utf-8").replace(
        "setp.ge.s32 %outside, %row", "setp.gt.s32 %outside, %row"
    )
    path = tmp_path / "broken.ptx"
    path.write_text(text)
    kernel = Kernel.from_ptx(path, args="M,N,K,A,B,C", grid="(N+31)/32,(M+7)/8", block="32,8")
    (record,) = check(kernel, ["9x9x9"])
    (line,) = [n for n, each in enumerate(text.split("\n"), 1) if "st.global.f32" in each]
    report = findings_text([record], kernel).plain
    assert f"--> broken.ptx:{line}" in report
    assert f">{line:5} |   st.global.f32 [%c], %total;" in report


@pytest.mark.parametrize("shared", [1024, 512])
def test_what_triton_made_runs_with_all_checks(shared):
    kernel = Kernel.from_ptx(
        Path(__file__).with_name("triton_matmul.ptx"),
        args="A,B,C,M,N,K,0,0",
        grid="(N+15)/16,(M+15)/16",
        block=64,
        shared=shared,
    )
    (record,) = check(kernel, ["17x33x40"])
    if shared == 1024:
        assert record.verdict == "ok", record.detail
    else:
        assert any(
            each.check == "memcheck"
            and each.kind == "out of bounds"
            and each.here.file == "matmul.py"
            for each in record.findings
        )


@pytest.mark.gpu
@pytest.mark.parametrize("assembled", [True, False])
def test_on_a_gpu_with_and_without_ptxas(assembled, monkeypatch, cache_dir):
    from gemmkit.devices.cuda import CudaDevice

    if not assembled:
        monkeypatch.setattr(ptxas, "assembler", lambda: None)
        monkeypatch.setattr(ptxas, "assembler_version", lambda: None)
    kernel = Kernel.from_ptx(
        EXAMPLE, args="M,N,K,A,B,C", grid="(N+31)/32,(M+7)/8", block="32,8", name="by hand"
    )
    record = run_kernel(kernel, GemmProblem(70, 50, 33), CudaDevice(), cache_dir=cache_dir)
    assert record.correct
    assert record.time_us is not None
    assert (record.resources is None) == (not assembled or ptxas.assembler() is None)


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_ZN3foo5sgemmILi3EEEvildPKf1Pb6__halff", "sgemm"),
        ("_Z5sgemmiiifPKf", "sgemm"),
        ("_ZN12_GLOBAL__N_15naiveEv", "naive"),
        ("_ZN8__main__6matmulB2v1B94cw51cXTLSUwv1sDUaKthoaNgamdcpqE5ArrayIfLi2E", "matmul"),
        ("sgemm", "sgemm"),
        ("_Z", "_Z"),
    ],
)
def test_symbols_as_they_were_written(symbol, name):
    assert readable_name(symbol) == name


def test_entries_are_found_among_comments_and_device_functions():
    text = HEAD + "/* .entry no(.param .u32 a) */ // .entry nor(\n.func helper(.param .b32 a) { }\n"
    text += ZERO.format("first") + ".visible .entry second\n.maxntid 32\n{ ret; }\n"
    text += ".entry third(.param .u64 .ptr .align 1 a, .param .align 4 .b8 p[8], .param .f32 x) { }"
    assert entries_in(text) == {
        "first": ("u64",),
        "second": (),
        "third": ("u64", "b8[8]", "f32"),
    }


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("not PTX\n", {}, r"kernel\.ptx contains no PTX kernel: it has no \.entry"),
        (ZERO.format("f"), {"args": "C"}, r"no '\.target sm_…' directive"),
        (
            HEAD + ZERO.format("f") + ZERO.format("g"),
            {},
            "several kernels: .* --entry; it has: f, g",
        ),
        (HEAD + ZERO.format("f"), {"entry": "g"}, "has no kernel 'g'; it has: f"),
        (
            HEAD + ZERO.format("_Z1fi") + ZERO.format("_Z1ff"),
            {"entry": "f"},
            "has several kernels 'f'; it has: _Z1fi, _Z1ff",
        ),
        (HEAD + ZERO.format("f"), {"args": "A,C"}, r"'f' has 1 parameters .*\(u64\).*: A,C"),
        (HEAD + ZERO.format("f"), {"args": "alpha"}, r"'alpha' .* number, .* parameter is \.u64"),
        (FLOAT, {"args": "A"}, r"'A' of 'f' is a pointer, but its parameter is \.f32"),
        (FLOAT, {"args": "K"}, r"'K' of 'f' is an integer, but its parameter is \.f32"),
        (STRUCT, {"args": "4"}, r"'4' of 'f' is a number, but its parameter is \.b8\[8\]"),
        (HEAD + ZERO.format("f"), {"args": "D"}, "argument 'D' uses D"),
        (HEAD + ZERO.format("f"), {"args": "C", "grid": "N//0,"}, "empty part"),
    ],
)
def test_bad_use_is_told(text, options, message):
    with pytest.raises(UsageError, match=message):
        Kernel.from_ptx(text, **(LAUNCH | options))


def test_a_file_that_is_not_there():
    with pytest.raises(UsageError, match=r"cannot read absent\.ptx: No such file"):
        Kernel.from_ptx("absent.ptx", **LAUNCH)


@pytest.mark.parametrize(
    ("target", "board", "runs"),
    [
        ("sm_80", "rtx3090", True),
        ("sm_86", "a100", False),
        ("sm_80", "h100", True),
        ("sm_90a", "h100", True),
        ("sm_80a", "rtx3090", False),
        ("sm_100f", "h100", False),
    ],
)
def test_boards_that_the_target_is_not_for_are_refused(target, board, runs):
    text = HEAD.replace("sm_80", target) + ZERO.format("f")
    kernel = Kernel.from_ptx(text, args="C", grid=1, block=32, name="f")
    gpu = find_board(board)
    problem = GemmProblem(8, 8, 8)
    if runs:
        assert kernel.plan(problem, kernel.default, gpu).source.language == "ptx"
    else:
        reason = rf"kernel\.ptx is compiled for {target}, but {gpu.name}"
        with pytest.raises(UnsupportedProblem, match=reason):
            kernel.plan(problem, kernel.default, gpu)


@pytest.mark.skipif(ptxas.assembler() is None, reason="needs ptxas")
def test_ptx_that_ptxas_refuses_is_a_compile_error(device):
    text = HEAD + ZERO.format("f").replace("ret;", "add.f33 %f1, %f1, %f1; ret;")
    kernel = Kernel.from_ptx(text, args="C", grid=1, block=32)
    with pytest.raises(CompileError, match=r"Unknown modifier '\.f33'"):
        run_kernel(kernel, GemmProblem(8, 8, 8), device)
