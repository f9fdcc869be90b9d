"""Compiled objects on disk, and hosts that cannot run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from launching import kernel_ptx

from gemmkit.diskcache import DiskCache
from gemmkit.emulator import DeviceMemory, LaunchRequest, load
from gemmkit.emulator import program as programs
from gemmkit.emulator.codegen import compile as compiling
from gemmkit.emulator.codegen import kernel, native
from gemmkit.emulator.codegen.compiled import KernelText
from gemmkit.emulator.codegen.kernel import load_kernel
from gemmkit.emulator.ptx import parsed as texts
from gemmkit.emulator.ptx import parser
from gemmkit.emulator.ptx.module import Module
from gemmkit.errors import DeviceError, UnsupportedInstruction

PTX = kernel_ptx("add.u32 %r1, %tid, 7;\nst.global.u32 [%at], %r1;")


def runs(cache_dir: Path) -> bool:
    memory = DeviceMemory()
    piece = memory.allocate(128)
    packed = piece.address.to_bytes(8, "little")
    program = load(PTX, "k", cache_dir=cache_dir)
    program.run(LaunchRequest((1, 1, 1), (32, 1, 1), packed), memory)
    return memory.view(piece.address, 128).view(np.uint32).tolist() == [*range(7, 39)]


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> bytes:
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiling, "compile_ir", refuse)


def test_the_second_load_compiles_nothing(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs(cache_dir)
    forbid(monkeypatch)
    assert runs(cache_dir)


def test_a_kernel_from_the_cache_is_parsed_for_its_counts_alone(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert runs(cache_dir)
    parsed = []

    def counted(*arguments: str) -> Module:
        parsed.append(arguments)
        return parse(*arguments)

    parse = parser.parse
    monkeypatch.setattr(parser, "parse", counted)
    # As in a new process.
    KernelText.of.cache_clear()
    texts.parsed.cache_clear()
    memory = DeviceMemory()
    piece = memory.allocate(128)
    request = LaunchRequest((1, 1, 1), (32, 1, 1), piece.address.to_bytes(8, "little"))
    program = load(PTX, "k", cache_dir=cache_dir)
    program.execute(request, memory)
    assert memory.view(piece.address, 128).view(np.uint32).tolist() == [*range(7, 39)]
    assert not parsed
    assert program.run(request, memory).tally.executed.sum() == len(program.flow.forms)
    assert len(parsed) == 1


def test_code_is_combined_where_that_makes_it_faster(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    combined = []

    def noted(text: str, *, quick: bool, combine: bool) -> bytes:
        combined.append(combine)
        return compile_ir(text, quick=quick, combine=combine)

    compile_ir = compiling.compile_ir
    monkeypatch.setattr(compiling, "compile_ir", noted)
    for sanitize in (False, True):
        load(PTX, "k", cache_dir=cache_dir, sanitize=sanitize)
    monkeypatch.setattr(compiling, "COMBINED_INSTRUCTIONS", 1)
    load(PTX, "k", cache_dir=cache_dir / "other")
    assert combined == [True, False, False]


def test_a_kernel_that_has_run_for_long_is_compiled_for_speed(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []

    def noted(text: str, *, quick: bool, combine: bool) -> bytes:
        compiled.append("quick" if quick else "fast")
        return compile_ir(text, quick=quick, combine=combine)

    compile_ir = compiling.compile_ir
    monkeypatch.setattr(compiling, "compile_ir", noted)
    memory = DeviceMemory()
    piece = memory.allocate(128)
    request = LaunchRequest((1, 1, 1), (32, 1, 1), piece.address.to_bytes(8, "little"))
    program = load(PTX, "k", cache_dir=cache_dir)
    for run in (program.run, program.execute, program.run):
        run(request, memory)
        assert compiled == ["quick"]
    monkeypatch.setattr(programs, "QUICK_SECONDS", 0.0)
    for run in (program.run, program.execute):
        memory.view(piece.address, 128)[:] = 0
        run(request, memory)
        assert memory.view(piece.address, 128).view(np.uint32).tolist() == [*range(7, 39)]
        assert compiled == ["quick", "fast"]
    # Where it has been compiled for speed, that is the code from the start.
    monkeypatch.undo()
    cached = load_kernel(KernelText(PTX, "k"), DiskCache(cache_dir / programs.CACHE_KIND))
    again = load_kernel(
        KernelText(PTX, "k"), DiskCache(cache_dir / programs.CACHE_KIND), quick=True
    )
    assert again.compiled.code == cached.compiled.code
    forbid(monkeypatch)
    assert runs(cache_dir)


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_object_is_made_again(cache_dir: Path, damage: bytes | None) -> None:
    assert runs(cache_dir)
    entries = [path for path in cache_dir.rglob("*") if path.is_file()]
    assert entries
    for path in entries:
        data = path.read_bytes()
        path.write_bytes(data[:-1] if damage is None else damage)
    assert runs(cache_dir)


@pytest.mark.parametrize("part", ["generator_digest", "host"])
def test_another_generator_or_host_has_objects_of_its_own(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    assert runs(cache_dir)
    if part == "generator_digest":
        monkeypatch.setattr(native, "generator_digest", lambda: "another")
    else:
        here = native.host()
        other = native.Host(here.cpu, here.features + ",-prfchw", here.permutes, here.llvm)
        monkeypatch.setattr(kernel, "host", lambda: other)
    forbid(monkeypatch)
    with pytest.raises(AssertionError, match="compiled again"):
        runs(cache_dir)


def test_a_host_without_vector_instructions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    features["avx2"] = False
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: features)
    monkeypatch.setattr(llvm, "get_default_triple", lambda: "x86_64-unknown-linux-gnu")
    native.host.cache_clear()
    try:
        with pytest.raises(DeviceError, match=r"needs a processor with AVX2 and FMA"):
            native.host()
    finally:
        native.host.cache_clear()


def test_loads_without_avx2s_permutation() -> None:
    """As on ARM: what AVX2 would read as one vector is assembled from words."""
    body = """
        ld.global.u32 %r1, [%at];
        ld.global.u32 %r2, [%rd0+8];
        ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%rd0+16];
        shl.b32 %r7, %tid, 2;
        st.shared.u32 [%r7], %r1;
        xor.b32 %r7, %r7, 124;
        ld.shared.u32 %r8, [%r7];
        mad.lo.u32 %r1, %r8, 100, %r2;
        mad.lo.u32 %r1, %r6, 10000, %r1;
        st.global.u32 [%at], %r1;
    """
    text = kernel_ptx(body, declarations=".shared .align 16 .b8 tile[128];")
    program = f"""
import numpy as np
from gemmkit.diskcache import DiskCache
from gemmkit.emulator import DeviceMemory, LaunchRequest, load
from gemmkit.emulator import program as programs
from gemmkit.emulator.codegen import compile as compiling
from gemmkit.emulator.codegen import kernel, native
from gemmkit.emulator.codegen.compiled import KernelText
from gemmkit.emulator.codegen.kernel import load_kernel
from gemmkit.emulator.ptx import parser
from gemmkit.emulator.ptx.module import Module
here = native.host()
other = native.Host(here.cpu, here.features, False, here.llvm + "/no permutation")
native.host = kernel.host = lambda: other
memory = DeviceMemory()
piece = memory.allocate(128)
words = memory.view(piece.address, 128).view(np.uint32)
words[:] = np.arange(32)
asked = LaunchRequest((1, 1, 1), (32, 1, 1), piece.address.to_bytes(8, "little"))
load({text!r}, "k").run(asked, memory)
print(words.tolist() == [70002 + 100 * (31 - lane) for lane in range(32)])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("mov.u32 %r1, 0;\nfrobnicate.u32 %r1, %r1;", r"'frobnicate.u32'.*kernel\.cu:2"),
        ("cp.async.ca.shared.global [0], [%rd0], 12;", r"4, 8 or 16 bytes.*kernel\.cu:1"),
        ("ld.param.u32 %r1, [p0+8];", r"past the end of the kernel's parameters.*kernel\.cu:1"),
        ("mov.u32 %r1, nowhere;", r"'nowhere'.*kernel\.cu:1"),
    ],
)
def test_what_is_unknown_is_named(cache_dir: Path, body: str, words: str) -> None:
    with pytest.raises(UnsupportedInstruction, match=words):
        load(kernel_ptx(body), "k", cache_dir=cache_dir)
    assert not list(cache_dir.rglob("*.entry")), "nothing is stored of what failed"
