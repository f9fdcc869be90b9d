"""The host as a compilation target: its requirements, compiling IR, and loading object code."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from gemmkit.decoding import from_msgpack
from gemmkit.diskcache import DiskCache
from gemmkit.errors import DeviceError
from gemmkit.loading import first_use, load

# The major version of LLVM whose DAG combiner can be switched off. Another may lack the switch, and
# LLVM ends the process at an option that it does not know.
_SWITCHES_COMBINER = 22

# LLVM's objects belong to one thread at a time. A signal handler may also reach this code.
_lock = threading.RLock()


@contextmanager
def _llvm() -> Iterator[None]:
    """Give LLVM to this thread alone."""
    with first_use(), _lock:
        yield


@dataclass(frozen=True)
class Host:
    """The processor that code is compiled for. `permutes`: it has AVX2's permutation of words."""

    cpu: str
    features: str
    permutes: bool
    llvm: str

    @property
    def key(self) -> str:
        """What compiled code depends on."""
        return f"{generator_digest()}/{self.llvm}/{self.cpu}/{self.features}"


@cache
def generator_digest() -> str:
    """A digest of the code generator's source: a change invalidates older objects."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for folder in ("codegen", "codegen/runtime", "counters", "isa", "numerics", "ptx"):
        for file in sorted(package.joinpath(folder).glob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


@cache
def host() -> Host:
    """This host.

    Raises:
        DeviceError: it lacks the vector instructions that the emulator needs.
    """
    load("llvmlite", "llvmlite.binding")
    import llvmlite
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features: Mapping[str, bool] = llvm.get_host_cpu_features()
    triple = _triple()
    permutes = triple.startswith("x86_64") and features.get("avx2", False)
    arm = triple.startswith(("aarch64", "arm64"))
    if not arm and not (permutes and features.get("fma", False)):
        raise DeviceError(
            "the emulator needs a processor with AVX2 and FMA (x86-64 since 2013) or NEON "
            f"(64-bit ARM); this one is '{llvm.get_host_cpu_name()}'"
        )
    version = ".".join(map(str, llvm.llvm_version_info))
    return Host(
        llvm.get_host_cpu_name(),
        features.flatten(),  # type: ignore[attr-defined]
        permutes,
        f"{llvmlite.__version__}/{version}/{triple}",
    )


def _triple() -> str:
    """LLVM's name of this platform; its in-memory loader reads ELF on Windows too."""
    import llvmlite.binding as llvm

    triple: str = llvm.get_default_triple()
    return f"{triple}-elf" if sys.platform == "win32" else triple


def _machine(level: int, features: str) -> Any:
    import llvmlite.binding as llvm

    here, triple = host(), _triple()
    # The loader allocates each section separately, and aborts the process if a relocation overflows
    # its field, so all are 64 bits wide. (On ARM it allocates the sections contiguously.)
    far = triple.startswith("x86_64")
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=here.cpu,
        features=features,
        opt=level,
        reloc="static" if far else "pic",
        codemodel="large" if far else "small",
        jit=True,
    )


def compile_ir(
    text: str, *, clean: bool = False, quick: bool = False, combine: bool = True
) -> bytes:
    """Compile a module to object code.

    `clean` first promotes stack variables to registers. `quick` takes a third of the time, for code
    that takes up to half as long again; without `combine` it takes a sixth, for code that takes up
    to twice as long as fast code.
    """
    combine = combine or not quick
    with _llvm(), nullcontext() if combine else _without_combiner():
        # LLVM's objects are freed when the function returns, while the lock is held.
        return _emitted(text, clean, quick, combine=combine)


@contextmanager
def _without_combiner() -> Iterator[None]:
    """Leave out LLVM's DAG combiner, which takes half the time of quick code.

    The switch is the process's: while it is set, what others compile with LLVM is right too.
    """
    import llvmlite.binding as llvm

    if llvm.llvm_version_info[0] != _SWITCHES_COMBINER:
        yield
        return
    llvm.set_option("gemmkit", "-combiner-disabled=true")
    try:
        yield
    finally:
        llvm.set_option("gemmkit", "-combiner-disabled=false")


def _emitted(text: str, clean: bool, quick: bool, *, combine: bool) -> bytes:
    import llvmlite.binding as llvm

    features = host().features
    if not combine:
        # Without its combiner LLVM meets comparisons that it cannot select for AVX-512, and then it
        # ends the process.
        features = features.replace("+avx512", "-avx512")
    machine = _machine(0 if quick else 1, features)
    layout, triple = machine.target_data, machine.triple
    head = f'target datalayout = "{layout}"\ntarget triple = "{triple}"\n'
    module = llvm.parse_assembly(head + text)
    if clean:
        passes = llvm.create_new_module_pass_manager()
        passes.add_sroa_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
        passes.run(module, builder)
    code: bytes = machine.emit_object(module)
    return code


class LoadedCode:
    """Object code in memory; the addresses of its functions are valid while this object lives."""

    def __init__(self, code: bytes, functions: Iterable[str]) -> None:
        import llvmlite.binding as llvm

        with _llvm():
            empty = llvm.parse_assembly("")
            self._engine = llvm.create_mcjit_compiler(empty, _machine(1, host().features))
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            self._engine.finalize_object()
            self.addresses = {
                name: int(self._engine.get_function_address(name)) for name in functions
            }


class RuntimeModule(msgspec.Struct, frozen=True):
    """What the cache holds for a runtime module: object code, and the names of its functions."""

    code: bytes
    functions: tuple[str, ...]


class Runtime:
    """The runtime modules that are loaded in this process."""

    def __init__(self) -> None:
        self._modules: set[str] = set()
        self._kept: list[LoadedCode] = []
        self.addresses: dict[str, int] = {}

    def require(self, modules: Iterable[str], functions: Iterable[str], cache: DiskCache) -> None:
        """Load these modules, in order, for code that calls the functions."""
        with _llvm():
            for module in modules:
                if module not in self._modules:
                    self._load(module, cache)
        missing = [name for name in functions if name not in self.addresses]
        # A call to an unknown function would jump to address 0.
        assert not missing, f"the runtime lacks {', '.join(missing)}"

    def _load(self, name: str, cache: DiskCache) -> None:
        import llvmlite.binding as llvm

        data = cache.get_or_create(f"runtime/{name}/{host().key}", lambda: _compiled_module(name))
        stored = from_msgpack(data, RuntimeModule)
        loaded = LoadedCode(stored.code, stored.functions)
        # A signal handler may load the same module in between. Both copies are kept, so code linked
        # to either stays valid.
        self._kept.append(loaded)
        for function, address in loaded.addresses.items():
            llvm.add_symbol(function, address)
        self.addresses |= loaded.addresses
        self._modules.add(name)


def _compiled_module(name: str) -> bytes:
    load("gemmkit.emulator.codegen.runtime.modules")
    from gemmkit.emulator.codegen.runtime.modules import build_module

    module = build_module(name, permutes=host().permutes)
    code = compile_ir(str(module), clean=True)
    return msgspec.msgpack.encode(RuntimeModule(code, tuple(module.functions)))


@cache
def runtime() -> Runtime:
    """The process's runtime, empty at first."""
    return Runtime()
