"""Compiles kernels through the cache: one, many at once, or all of the ladder ahead of time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gemmkit.cores import usable_cores
from gemmkit.epilogue import Epilogue
from gemmkit.errors import CompileError, CompilerMissing, UnsupportedProblem
from gemmkit.gpu import GpuSpec
from gemmkit.jit.binary import Binary
from gemmkit.jit.cache import BinaryCache, Request, included_headers
from gemmkit.jit.nvrtc import DEFAULT_OPTIONS, compile_program, compiler_version
from gemmkit.jit.resources import resources_from_log
from gemmkit.kernels import include_files
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import EXPRESSION_FILE, LaunchPlan, SourceFile
from gemmkit.loading import load
from gemmkit.problem import GemmProblem

if TYPE_CHECKING:
    from gemmkit.cxx.element_types import Refused

Progress = Callable[[int, int, str], None]

# Without textures, dynamic parallelism and the runtime's types, which gemmkit's own kernels do not
# use, NVRTC (12.4 and later) takes some 15 ms less for the same code.
_WITHOUT_UNUSED = "--minimal"

# Sizes that do and do not divide into 128-bit vectors: each alignment of a matrix's rows may
# have a template instance of its own.
_REPRESENTATIVE_SIZES = (1024, 1023)


def compile_kernel(
    source: str,
    entry: str,
    arch: str,
    *,
    headers: Mapping[str, str] | None = None,
    file_name: str = "kernel.cu",
    options: Sequence[str] = (),
    assemble: bool = True,
    cache_dir: Path | None = None,
) -> Binary:
    """Compile one kernel, or take it from the cache.

    Args:
        source: CUDA C++. Files that it includes in angle brackets are CUDA's headers.
        entry: a C++ name expression (`naive<32, 32>`) or the name of an `extern "C"` kernel.
        arch: such as `sm_86`, `sm_90a`.
        headers: text of each file that the source may include, by the name it is included by.
        file_name: how messages and the PTX's line table call the source.
        options: NVRTC options beside `DEFAULT_OPTIONS`. A source that includes, in quotes, files
            that are not in `headers` (found through `-I`) is compiled anew each time.
        assemble: have ptxas make a cubin, which all but the emulator needs; without, the binary has
            none, its resources are unknown, and it takes half the time.
        cache_dir: root of the cache folders; by default the user's cache folder.

    Raises:
        CompileError: the compiler refused; the text holds its messages and the source lines.
        CompilerMissing: no NVRTC on this machine, and no such binary in the cache.
    """
    request = Request(
        source,
        entry,
        arch,
        included_headers(source, headers or {}),
        file_name,
        _with_defaults(options),
        assemble,
    )
    return _compile(request, cache_dir, with_cuda_headers=request.includes_cuda)


def compile_source(
    source: SourceFile,
    entry: str,
    arch: str,
    *,
    assemble: bool = True,
    cache_dir: Path | None = None,
) -> Binary:
    """Compile a kernel of a user's file, or take it from the cache.

    Host code in it is left out; the files that it includes are part of what the cache knows it by.
    `assemble` is as in `compile_kernel`.

    Raises:
        CompileError: the compiler refused, or an included file is missing.
        CompilerMissing: as `compile_kernel`.
        UnsupportedProblem: the kernel's matrices have elements of other types than the problem's.
    """
    load("gemmkit.cxx.element_types", "gemmkit.jit.translation")
    from gemmkit.cxx.element_types import refused_elements
    from gemmkit.jit.translation import translate

    unit = translate(source, include_files())
    request = Request(
        unit.text + source.assertions,
        entry,
        arch,
        unit.headers,
        source.name,
        _with_defaults(unit.options),
        assemble,
    )
    try:
        return _compile(request, cache_dir, with_cuda_headers=bool(unit.cuda_headers))
    except CompileError as error:
        refused = refused_elements(str(error)) if source.assertions else None
        if refused is None:
            error.args = (unit.as_written(str(error)),)
            raise
        raise UnsupportedProblem(_other_elements(entry, refused)) from error


def _with_defaults(options: Sequence[str]) -> tuple[str, ...]:
    """The options after those of every compilation, whose C++ standard gives way to their own."""
    standard = any(option.startswith(("--std", "-std")) for option in options)
    defaults = (each for each in DEFAULT_OPTIONS if not (standard and each.startswith("--std")))
    return (*defaults, *options)


def _other_elements(entry: str, refused: Refused) -> str:
    if not refused.matrix:
        return (
            f"the element types of '{entry}' cannot be determined: declare its matrices as float *"
        )
    if refused.dtype is None:
        return (
            f"{refused.matrix} of '{entry}' has elements of a type that is not supported: use "
            "float, double, half or __nv_bfloat16"
        )
    option = "--dtype" if refused.matrix in ("A", "B") else "--out-dtype"
    return (
        f"{refused.matrix} of '{entry}' has {refused.dtype} elements, which its declaration does "
        f"not show: give {option} {refused.dtype}"
    )


def _compile(
    request: Request, cache_dir: Path | None, *, with_cuda_headers: bool = False
) -> Binary:
    """Through the cache, where all that the request depends on is in it."""
    version, cache = compiler_version(), BinaryCache(cache_dir)

    def compile_it() -> Binary:
        if not request.assembled and request.self_contained:
            whole = cache.stored(replace(request, assembled=True), version)
            if whole is not None:
                return msgspec.structs.replace(whole, cubin=b"", resources=None)
        folders: tuple[str, ...] = ()
        if with_cuda_headers:
            load("gemmkit.jit.cuda_headers")
            from gemmkit.jit.cuda_headers import cuda_include_dirs

            # Where they lie does not matter, and the compiler's version tells which they are.
            folders = cuda_include_dirs(cache_dir)
        # They include each other by names relative to where they lie.
        left_out = {"--no-source-include"} if with_cuda_headers else set()
        program = compile_program(
            request.source,
            request.entry,
            request.arch,
            headers=request.headers,
            file_name=request.file_name,
            options=[option for option in request.options if option not in left_out],
            include_dirs=folders,
            assemble=request.assembled,
        )
        resources = resources_from_log(program.log, program.entry) if request.assembled else None
        return Binary(
            entry=program.entry,
            arch=request.arch,
            ptx=program.ptx,
            cubin=program.cubin,
            resources=resources,
            compiler=program.compiler,
            key=request.key(version),
            log=program.log,
        )

    if not request.self_contained:
        return compile_it()
    return cache.get_or_compile(request, version, compile_it)


def assemble_kernel(
    ptx: str,
    entry: str,
    arch: str,
    *,
    file_name: str = "kernel.ptx",
    cache_dir: Path | None = None,
) -> Binary:
    """The binary of a kernel that is PTX already, from ptxas or from the cache.

    Without a ptxas that can read it, the binary has no cubin and its resources are unknown: the
    emulator runs it all the same, and a GPU's driver assembles it.

    Raises:
        CompileError: ptxas refuses the PTX, or it has no kernel `entry`.
    """
    load("gemmkit.jit.ptxas")
    from gemmkit.jit.ptxas import assemble, assembler_version

    request = Request(ptx, entry, arch, {}, file_name, ("ptx",))
    version = assembler_version()

    def assemble_it() -> Binary:
        assembled = assemble(ptx, arch, file_name)
        return Binary(
            entry=entry,
            arch=arch,
            ptx=ptx,
            cubin=assembled.cubin,
            resources=resources_from_log(assembled.log, entry),
            compiler=version or "",
            key=request.key(version),
            log=assembled.log,
        )

    try:
        return BinaryCache(cache_dir).get_or_compile(request, version, assemble_it)
    except CompilerMissing as missing:
        return Binary(
            entry=entry,
            arch=arch,
            ptx=ptx,
            cubin=b"",
            resources=None,
            compiler="none",
            key=request.key(None),
            log=str(missing),
        )


def compile_plan(
    plan: LaunchPlan, arch: str, *, assemble: bool = True, cache_dir: Path | None = None
) -> Binary:
    """Compile what a plan launches, with the headers that come with the ladder.

    A source that names folders to search is a user's file: see `compile_source`. `assemble` is as
    in `compile_kernel`; PTX is assembled in any case.

    Raises:
        CompileError, CompilerMissing: as `compile_kernel`, or as `assemble_kernel` for PTX.
            Where the epilogue is a user's own expression, the text quotes it.
    """
    if plan.before is not None or plan.prepared:
        binary, *others = (
            compile_plan(each, arch, assemble=assemble, cache_dir=cache_dir)
            for each in (
                replace(plan, before=None, prepared=()),
                *(each.maker for each in plan.prepared),
                *(() if plan.before is None else (plan.before,)),
            )
        )
        first = None if plan.before is None else others.pop()
        return msgspec.structs.replace(binary, before=first, prepared=tuple(others))
    if plan.source.language == "ptx":
        return assemble_kernel(
            plan.source.text,
            plan.entry,
            arch,
            file_name=plan.source.name,
            cache_dir=cache_dir,
        )
    if plan.source.include_dirs:
        return compile_source(plan.source, plan.entry, arch, assemble=assemble, cache_dir=cache_dir)
    headers, own = include_files(), plan.source.expression
    if own:
        # The semicolon is where the compiler sees that something is missing.
        headers[EXPRESSION_FILE] = f"{own.rstrip()};\n"
    try:
        return compile_kernel(
            plan.source.text,
            plan.entry,
            arch,
            headers=headers,
            file_name=plan.source.name,
            options=(*plan.source.options, _WITHOUT_UNUSED),
            assemble=assemble,
            cache_dir=cache_dir,
        )
    except CompilerMissing:
        raise
    except CompileError as error:
        if not own:
            raise
        details = str(error).partition("\n\n")[2] or error
        raise CompileError(f"the custom epilogue '{own}' does not compile:\n\n{details}") from error


def compile_many(
    plans: Sequence[LaunchPlan],
    arch: str,
    *,
    assemble: bool = True,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> list[Binary]:
    """Compile plans on all cores (NVRTC runs in parallel in threads); binaries in their order.

    `assemble` is as in `compile_kernel`. `progress(done, total, name)` is called in the caller's
    thread after each. An error or Ctrl-C drops what has not begun.

    Raises:
        CompileError, CompilerMissing: as `compile_kernel`, of the first that failed.
    """
    from concurrent.futures import ThreadPoolExecutor, as_completed

    executor = ThreadPoolExecutor(max_workers=usable_cores())
    try:
        compiled = partial(compile_plan, arch=arch, assemble=assemble, cache_dir=cache_dir)
        futures = [executor.submit(compiled, plan) for plan in plans]
        names = {future: plan.kernel for future, plan in zip(futures, plans, strict=True)}
        for done, future in enumerate(as_completed(futures), 1):
            future.result()
            if progress is not None:
                progress(done, len(plans), names[future])
        return [future.result() for future in futures]
    finally:
        executor.shutdown(cancel_futures=True)


def build_all(
    gpu: GpuSpec,
    kernels: Sequence[Kernel] | None = None,
    *,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    left_out: list[tuple[str, str]] | None = None,
) -> list[Binary]:
    """Fill the cache with what `kernels` (by default the ladder) need on one board.

    That is each kernel's default configuration for each type that it multiplies, with each epilogue
    that it fuses, for aligned and unaligned rows. Configurations that the board refuses are left
    out: the kernels of which there is nothing to build are added to `left_out`, with the reason.

    Raises:
        CompileError, CompilerMissing: as `compile_kernel`.
    """
    if kernels is None:
        from gemmkit.kernels.catalog import LADDER

        kernels = LADDER
    plans: dict[tuple[tuple[SourceFile, str], ...], LaunchPlan] = {}
    for kernel in kernels:
        found = _default_plans(kernel, gpu)
        plans |= {plan.instances: plan for plan in found}
        if not found and left_out is not None:
            size = _REPRESENTATIVE_SIZES[0]
            problem = GemmProblem(size, size, size, **kernel.types(None, None))
            problem = kernel.lay_out(problem)
            reason = kernel.supports(problem, kernel.default, gpu)
            left_out.append((kernel.name, reason or "it takes none of the usual problems"))
    return compile_many(list(plans.values()), gpu.arch, cache_dir=cache_dir, progress=progress)


def _default_plans(kernel: Kernel, gpu: GpuSpec) -> list[LaunchPlan]:
    plans = []
    for dtype, (m, n, k) in product(kernel.dtypes, product(_REPRESENTATIVE_SIZES, repeat=3)):
        problem = GemmProblem(m, n, k, **kernel.types(dtype, None))
        for words in ("none", "bias", "relu", "bias+relu"):
            problem = replace(problem, epilogue=Epilogue.parse(words))
            if kernel.supports(problem, kernel.default, gpu) is None:
                plans.append(kernel.plan(problem, kernel.default, gpu))
    return plans
