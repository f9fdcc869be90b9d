"""Plans of the ladder through the compiler: one, many at once, all ahead of time."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gemmkit.epilogue import Epilogue
from gemmkit.errors import CompileError, CompilerMissing
from gemmkit.gpu import find_board
from gemmkit.jit import compiler
from gemmkit.jit.compiler import build_all, compile_kernel, compile_many, compile_plan
from gemmkit.kernels.catalog import LADDER, find_kernel
from gemmkit.kernels.fitting import in_types_of
from gemmkit.kernels.plan import SourceFile
from gemmkit.problem import GemmProblem

GPU = find_board("rtx3090")


def plan_of(name, epilogue="none", size=64, **config):
    kernel = find_kernel(name)
    problem = GemmProblem(size, size, size, epilogue=Epilogue.parse(epilogue))
    return kernel.plan(problem, kernel.configure(config), GPU)


def test_a_plan_compiles_with_the_ladder_s_headers() -> None:
    binary = compile_plan(plan_of("naive", "bias+relu"), "sm_86")
    assert "naive" in binary.entry
    assert "Relu" in binary.entry
    assert f".entry {binary.entry}(" in binary.ptx
    names = set(re.findall(r'^\s*\.file\s+\d+\s+"(.*)"', binary.ptx, re.MULTILINE))
    assert "naive.cu" in names
    assert "epilogue.cuh" in names


def test_static_shared_memory_is_that_of_the_tiles() -> None:
    plan = plan_of("shared_tiling", BM=16, BN=16, BK=16)
    assert compile_plan(plan, "sm_86").resources.shared_bytes == 2 * 16 * 16 * 4


def test_ptx_alone_is_that_of_the_whole_binary(tmp_path) -> None:
    plan = plan_of("shared_tiling")
    alone = compile_plan(plan, "sm_90a", assemble=False, cache_dir=tmp_path)
    assert (alone.cubin, alone.resources) == (b"", None)
    whole = compile_plan(plan, "sm_90a", cache_dir=tmp_path)
    assert whole.cubin
    assert whole.resources is not None
    assert (alone.ptx, alone.arch) == (whole.ptx, whole.arch)
    assert alone.key != whole.key
    assert compile_plan(plan, "sm_90a", assemble=False, cache_dir=tmp_path) == alone


@pytest.mark.parametrize("version", ["of this machine", None])
def test_ptx_of_a_whole_binary_is_not_compiled_again(tmp_path, monkeypatch, version) -> None:
    """After `gemmkit build` the emulator runs the kernels, also where there is no compiler."""
    plan = plan_of("naive")
    whole = compile_plan(plan, "sm_86", cache_dir=tmp_path)

    def missing(*_, **__):
        raise CompilerMissing("no compiler")

    monkeypatch.setattr(compiler, "compile_program", missing)
    if version is None:
        monkeypatch.setattr(compiler, "compiler_version", lambda: None)
    alone = compile_plan(plan, "sm_86", assemble=False, cache_dir=tmp_path)
    assert (alone.ptx, alone.entry) == (whole.ptx, whole.entry)
    assert (alone.cubin, alone.resources) == (b"", None)
    with pytest.raises(CompilerMissing):
        compile_plan(plan_of("naive", BM=16), "sm_86", assemble=False, cache_dir=tmp_path)


# What NVRTC leaves to chance seldom shows in two compilations.
TIMES = 4


def texts_of(kernel, shape, folder) -> set[str]:
    """The PTX of one launch, compiled `TIMES` times."""
    problem = in_types_of(kernel, GemmProblem.from_shape(shape))
    plan = kernel.plan(problem, kernel.default, find_board("h100"))
    folders = [folder / str(time) for time in range(TIMES)]
    return {compile_plan(plan, "sm_90a", cache_dir=each).ptx for each in folders}


# With its loads of shared memory in plain C++ this came out in ten ways.
@pytest.mark.parametrize("shape", ["16x512x512", "8x511x511"])
@pytest.mark.sample(2)
def test_a_skinny_product_compiles_to_the_same_code_each_time(tmp_path, shape) -> None:
    assert len(texts_of(find_kernel("warp_reduce"), shape, tmp_path)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kernel", LADDER, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("shape", ["16x512x512", "512x16x512", "512x512x512", "255x257x129"])
def test_each_rung_compiles_to_the_same_code_each_time(tmp_path, kernel, shape) -> None:
    problem = in_types_of(kernel, GemmProblem.from_shape(shape))
    if reason := kernel.supports(problem, kernel.default, find_board("h100")):
        pytest.skip(reason)
    assert len(texts_of(kernel, shape, tmp_path)) == 1


def test_many_come_back_in_their_order_with_progress(cache_dir) -> None:
    plans = [plan_of("naive", epilogue) for epilogue in ("none", "bias", "relu", "none")]
    seen = []
    binaries = compile_many(
        plans, "sm_86", cache_dir=cache_dir, progress=lambda *step: seen.append(step)
    )
    assert binaries == [compile_plan(plan, "sm_86", cache_dir=cache_dir) for plan in plans]
    assert seen == [(1, 4, "naive"), (2, 4, "naive"), (3, 4, "naive"), (4, 4, "naive")]
    assert compile_many([], "sm_86") == []


def test_one_broken_source_among_many_is_an_error(cache_dir) -> None:
    plans = [
        plan_of("naive"),
        replace(plan_of("naive"), source=SourceFile("not C++", "broken.cu"), kernel="broken"),
    ]
    with pytest.raises(CompileError, match=r"broken\.cu does not compile for sm_86"):
        compile_many(plans, "sm_86", cache_dir=cache_dir)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interruption_drops_what_has_not_begun(cache_dir, monkeypatch, interruption) -> None:
    begun = []
    really_compile = compiler.compile_program

    def watched(source, *arguments, **rest):
        begun.append(source)
        return really_compile(source, *arguments, **rest)

    def interrupt(done: int, total: int, name: str) -> None:
        raise interruption

    monkeypatch.setattr(compiler, "compile_program", watched)
    monkeypatch.setattr(compiler, "usable_cores", lambda: 1)
    plan = plan_of("naive")
    plans = [
        replace(plan, source=replace(plan.source, text=f"{plan.source.text}// {number}\n"))
        for number in range(20)
    ]
    with pytest.raises(interruption):
        compile_many(plans, "sm_86", cache_dir=cache_dir, progress=interrupt)
    assert len(begun) < 20


def test_build_all_makes_every_default_of_a_kernel(cache_dir, monkeypatch) -> None:
    # A small tile: the kernel is compiled for each epilogue, with and without vectors.
    tile, vectorized = {"BM": 32, "BN": 32, "BK": 8, "TM": 4, "TN": 4}, find_kernel("vectorized")
    small = replace(vectorized, default=vectorized.configure(tile))
    kernels = [find_kernel("naive_uncoalesced"), small]
    names = []
    build_all(GPU, kernels, cache_dir=cache_dir, progress=lambda *step: names.append(step[2]))
    assert set(names) == {"naive_uncoalesced", "vectorized"}

    def fail(*arguments, **rest):
        raise AssertionError("this should have been in the cache")

    monkeypatch.setattr(compiler, "compile_program", fail)
    compile_plan(plan_of("naive_uncoalesced"), GPU.arch, cache_dir=cache_dir)
    for epilogue in ("none", "bias", "relu", "bias+relu"):
        for size in (256, 257):
            plan = plan_of("vectorized", epilogue, size, **tile)
            compile_plan(plan, GPU.arch, cache_dir=cache_dir)


def test_build_all_leaves_out_what_the_board_refuses(cache_dir) -> None:
    refused = replace(find_kernel("naive"), rule=lambda *_: "too large")
    assert build_all(GPU, [refused], cache_dir=cache_dir) == []


def test_no_headers_are_needed_for_a_source_of_its_own(cache_dir) -> None:
    source = 'extern "C" __global__ void mine(float* x) { *x = 1.0f; }'
    binary = compile_kernel(source, "mine", "sm_90a", cache_dir=cache_dir)
    assert (binary.entry, binary.arch) == ("mine", "sm_90a")
    assert '.file\t1 "kernel.cu"' in binary.ptx
