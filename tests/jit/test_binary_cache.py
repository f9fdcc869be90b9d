"""The cache of compiled kernels: what is found again, by whom, and after what damage."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import platformdirs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gemmkit
from gemmkit.errors import CompilerMissing
from gemmkit.jit import compiler
from gemmkit.jit.cache import BinaryCache, Request, included_headers
from gemmkit.jit.compiler import compile_kernel


def compile_sample(sample, cache_dir, **changes):
    sample = replace(sample, **{k: v for k, v in changes.items() if k in ("source", "headers")})
    rest = {k: v for k, v in changes.items() if k not in ("source", "headers")}
    return compile_kernel(
        sample.source,
        rest.pop("entry", sample.entry),
        rest.pop("arch", "sm_86"),
        headers=sample.headers,
        file_name=sample.file_name,
        cache_dir=cache_dir,
        **rest,
    )


@pytest.fixture
def compilations(monkeypatch) -> list[str]:
    """The entry of every compilation that really took place."""
    seen = []
    really_compile = compiler.compile_program

    def watched(source, entry, *arguments, **rest):
        seen.append(entry)
        return really_compile(source, entry, *arguments, **rest)

    monkeypatch.setattr(compiler, "compile_program", watched)
    return seen


def test_compiles_once(sample, cache_dir, compilations) -> None:
    first = compile_sample(sample, cache_dir)
    assert compile_sample(sample, cache_dir) == first
    assert compilations == [sample.entry]
    assert first.entry == "_Z6scaledILi32EEvPf"
    assert first.arch == "sm_86"
    assert first.resources.shared_bytes == 128
    assert first.cubin.startswith(b"\x7fELF")
    assert "registers" in first.log


def test_every_input_is_part_of_the_key(sample, cache_dir, compilations, monkeypatch) -> None:
    def with_header(name: str) -> dict[str, str]:
        return {**sample.headers, name: sample.headers[name] + "// changed\n"}

    keys = [
        compile_sample(sample, cache_dir, **changes).key
        for changes in (
            {},
            {"source": sample.source + "// changed\n"},
            {"headers": with_header("scale.cuh")},
            {"headers": with_header("square.cuh")},
            {"options": ["--maxrregcount=32"]},
            {"arch": "sm_80"},
            {"entry": "scaled<64>"},
            {"entry": "plain"},
        )
    ]
    monkeypatch.setattr(compiler, "compiler_version", lambda: "12.9")
    keys.append(compile_sample(sample, cache_dir).key)
    monkeypatch.setattr(compiler, "DEFAULT_OPTIONS", (*compiler.DEFAULT_OPTIONS, "--fmad=false"))
    keys.append(compile_sample(sample, cache_dir).key)
    assert len(set(keys)) == len(keys)
    assert len(compilations) == len(keys)


def test_a_header_that_is_not_included_does_not_count(sample, cache_dir, compilations) -> None:
    compile_sample(sample, cache_dir)
    compile_sample(sample, cache_dir, headers={**sample.headers, "unused.cuh": "#error again\n"})
    assert len(compilations) == 1


TEXTS = st.text(alphabet="ab0:", max_size=3)
REQUESTS = st.builds(
    Request,
    source=TEXTS,
    entry=TEXTS,
    arch=TEXTS,
    headers=st.dictionaries(TEXTS, TEXTS, max_size=2),
    file_name=TEXTS,
    options=st.lists(TEXTS, max_size=2).map(tuple),
)


@given(one=REQUESTS, other=REQUESTS, versions=st.tuples(TEXTS, TEXTS))
def test_equal_keys_mean_equal_requests(one, other, versions) -> None:
    same = one == other and versions[0] == versions[1]
    assert (one.key(versions[0]) == other.key(versions[1])) == same


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('#include "a.cuh"\n', {"a.cuh", "b.cuh"}),
        ("  #  include <b.cuh> // why\n", {"b.cuh"}),
        ('int x;\n#include "c.cuh"\n', {"c.cuh"}),
        ('#include "elsewhere.cuh"\n// #includes "a.cuh"\n', set()),
    ],
)
def test_finds_included_headers(source, found) -> None:
    headers = {"a.cuh": '#include "b.cuh"\n', "b.cuh": '#include "a.cuh"\n', "c.cuh": ""}
    expected = found | ({"a.cuh"} if "b.cuh" in found else set())
    assert set(included_headers(source, headers)) == expected


def test_own_files_from_disk_are_never_cached(sample, cache_dir, tmp_path, compilations) -> None:
    header = tmp_path / "own.cuh"
    source = '#include "own.cuh"\nextern "C" __global__ void k(int* x) { *x = OWN; }\n'
    for value in ("1234", "5678"):
        header.write_text(f"#define OWN {value}\n")
        binary = compile_kernel(
            source, "k", "sm_86", options=[f"-I{tmp_path}"], cache_dir=cache_dir
        )
        assert f", {value};" in binary.ptx
    assert not cache_dir.exists()


@pytest.fixture(scope="module")
def filled(sample, tmp_path_factory) -> Path:
    """A folder with what compiling the sample leaves."""
    folder = tmp_path_factory.mktemp("filled")
    compile_sample(sample, folder)
    return folder


@settings(max_examples=20)
@given(data=st.data())
def test_damaged_files_are_rebuilt(sample, filled, data) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache_dir = Path(shutil.copytree(filled, Path(folder, "cache")))
        right = compile_sample(sample, cache_dir)
        for path in sorted(cache_dir.rglob("*.entry")):
            whole = bytearray(path.read_bytes())
            if data.draw(st.booleans()):
                place = data.draw(st.integers(0, len(whole) - 1))
                whole[place] ^= data.draw(st.integers(1, 255))
            else:
                del whole[data.draw(st.integers(0, len(whole) - 1)) :]
            path.write_bytes(whole)
        assert compile_sample(sample, cache_dir) == right
        assert BinaryCache(cache_dir).disk.get(right.key) is not None


def test_binaries_beyond_the_limit_are_dropped(sample, cache_dir) -> None:
    first = compile_sample(sample, cache_dir)
    disk = BinaryCache(cache_dir).disk
    cache = BinaryCache(cache_dir, limit_bytes=2 * disk.size())
    for number in range(4):
        request = Request("", str(number), "sm_86", {}, "k.cu", ())
        made = msgspec.structs.replace(first, key=request.key("1"))
        assert cache.get_or_compile(request, "1", lambda made=made: made) == made
    assert disk.get(first.key) is None
    assert disk.get(made.key) is not None
    assert disk.size() <= cache.disk.limit_bytes


def test_without_a_folder_to_write_it_compiles_each_time(sample, tmp_path, compilations) -> None:
    (tmp_path / "file").touch()
    with pytest.warns(RuntimeWarning, match="is not writable"):
        first = compile_sample(sample, tmp_path / "file")
    with pytest.warns(RuntimeWarning, match="is not writable"):
        assert compile_sample(sample, tmp_path / "file") == first
    assert len(compilations) == 2


COMPILE = """
import pathlib, sys
from gemmkit.jit import compiler
source, headers, entry, name, cache, log = sys.argv[1:]
{before}
binary = compiler.compile_kernel(
    source, entry, "sm_86", headers=eval(headers), file_name=name, cache_dir=pathlib.Path(cache)
)
import hashlib
print(hashlib.sha256(binary.cubin).hexdigest(), "cuda" in sys.modules)
"""


def arguments(sample, cache_dir, log="") -> list[str]:
    headers = repr(dict(sample.headers))
    return [sample.source, headers, sample.entry, sample.file_name, str(cache_dir), str(log)]


def fingerprint(binary) -> str:
    return hashlib.sha256(binary.cubin).hexdigest()


def test_a_hit_does_not_load_the_compiler(sample, cache_dir, start_python) -> None:
    binary = compile_sample(sample, cache_dir)
    child = start_python(COMPILE.format(before=""), *arguments(sample, cache_dir))
    assert child.communicate() == (f"{fingerprint(binary)} False\n", "")


def test_two_processes_at_once_compile_once(sample, cache_dir, tmp_path, start_python) -> None:
    before = """
import time
really_compile = compiler.compile_program
def slowly(*arguments, **rest):
    with open(log, "a") as file:
        file.write("compiled\\n")
    time.sleep(0.5)
    return really_compile(*arguments, **rest)
compiler.compile_program = slowly
print("ready", flush=True)
sys.stdin.readline()
"""
    log = tmp_path / "log"
    children = [
        start_python(COMPILE.format(before=before), *arguments(sample, cache_dir, log))
        for _ in range(2)
    ]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    outputs = [child.communicate() for child in children]
    assert [errors for _, errors in outputs] == ["", ""]
    right = fingerprint(compile_sample(sample, tmp_path / "alone"))
    assert [output.split()[0] for output, _ in outputs] == [right, right]
    assert log.read_text() == "compiled\n"


# Thousands of instances: some seconds of work inside NVRTC.
SLOW_SOURCE = """
template <int N> __device__ float step(float x) {
  return step<N - 1>(x * x + N) + step<N - 2>(x - N);
}
template <> __device__ float step<0>(float x) { return x; }
template <> __device__ float step<1>(float x) { return x + 1.0f; }
extern "C" __global__ void slow(float* x) { *x = step<17>(*x); }
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize("delay", [0.0, 0.1, 0.4])
@pytest.mark.sample(3)
@pytest.mark.usefixtures("handles_interrupts")
def test_ctrl_c_while_compiling(cache_dir, start_python, delay) -> None:
    script = """
import pathlib, sys
from gemmkit.jit.compiler import compile_kernel
from gemmkit.jit.nvrtc import supported_architectures
supported_architectures()
print("compiling", flush=True)
compile_kernel(sys.argv[1], "slow", "sm_86", cache_dir=pathlib.Path(sys.argv[2]))
print("compiled", flush=True)
sys.stdin.readline()
"""
    child = start_python(script, SLOW_SOURCE, str(cache_dir))
    assert child.stdout.readline() == "compiling\n"
    time.sleep(delay)
    child.send_signal(signal.SIGINT)
    output, errors = child.communicate()
    assert "KeyboardInterrupt" in errors
    assert "compiled" not in output
    assert list(cache_dir.rglob("*")) in ([], [cache_dir / "binaries"])
    small = 'extern "C" __global__ void k() {}'
    assert compile_kernel(small, "k", "sm_86", cache_dir=cache_dir).entry == "k"


@pytest.fixture
def bare_environment(tmp_path) -> dict[str, str]:
    """An environment whose Python has what the cache needs, but neither CUDA nor NVRTC."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for package in (gemmkit, msgspec, platformdirs):
        (folder / package.__name__).symlink_to(Path(package.__file__).parent)
    return {**os.environ, "PYTHONPATH": str(folder)}


NO_SITE = ("-S",)


def test_without_nvrtc_a_filled_cache_serves(
    sample, cache_dir, start_python, bare_environment
) -> None:
    binary = compile_sample(sample, cache_dir)
    before = "assert compiler.compiler_version() is None"
    child = start_python(
        COMPILE.format(before=before),
        *arguments(sample, cache_dir),
        flags=NO_SITE,
        env=bare_environment,
    )
    assert child.communicate() == (f"{fingerprint(binary)} False\n", "")


def test_without_nvrtc_and_entry_the_message_says_what_to_do(
    sample, cache_dir, start_python, bare_environment
) -> None:
    child = start_python(
        COMPILE.format(before=""),
        *arguments(sample, cache_dir),
        flags=NO_SITE,
        env=bare_environment,
    )
    output, errors = child.communicate()
    assert output == ""
    assert "gemmkit.errors.CompilerMissing: the CUDA compiler NVRTC cannot be loaded" in errors
    assert "gemmkit build --gpu NAME" in errors


def missing(*arguments, **rest):
    raise CompilerMissing("none here")


def test_a_version_without_its_library_takes_what_was_made_last(
    sample, cache_dir, monkeypatch
) -> None:
    for version in ("13.0", "13.1"):
        monkeypatch.setattr(compiler, "compiler_version", lambda version=version: version)
        last = compile_sample(sample, cache_dir)
    monkeypatch.setattr(compiler, "compile_program", missing)
    monkeypatch.setattr(compiler, "compiler_version", lambda: "13.9")
    assert compile_sample(sample, cache_dir) == last
    with pytest.raises(CompilerMissing, match="none here"):
        compile_sample(sample, cache_dir, entry="plain")


def test_a_damaged_note_of_what_was_made_last_is_written_again(
    sample, cache_dir, monkeypatch
) -> None:
    binary = compile_sample(sample, cache_dir)
    note = min(cache_dir.rglob("*.entry"), key=lambda path: path.stat().st_size)
    note.write_bytes(b"")
    assert compile_sample(sample, cache_dir) == binary
    monkeypatch.setattr(compiler, "compile_program", missing)
    monkeypatch.setattr(compiler, "compiler_version", lambda: None)
    assert compile_sample(sample, cache_dir) == binary
