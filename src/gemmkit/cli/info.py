"""`gemmkit info`: GPU, compiler, caches, limits of a board, and missing components."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

import click

from gemmkit.cli.files import Verb
from gemmkit.cli.options import debug_option, gpu_option

if TYPE_CHECKING:
    from gemmkit.emulator.numerics.rules import Rules
    from gemmkit.gpu import GpuSpec
    from gemmkit.report.layout import Row, Table

KIB = 1024
MIB = 1024 * KIB

# Import name, what it is for, and how to get it.
_OPTIONAL = (
    ("matplotlib", "pictures and plots", "pip install 'gemmkit[plots]'"),
    ("nvmath", "cuBLAS, for comparison", "pip install 'gemmkit[baseline]'"),
    ("torch", "cuBLAS through PyTorch, for comparison", "pip install 'gemmkit[torch]'"),
    ("numba_cuda", "kernels in Python", "pip install 'gemmkit[numba]'"),
)


_Instruction = Literal["mma", "wgmma"]
_INSTRUCTIONS: tuple[_Instruction, ...] = ("mma", "wgmma")
# What the emulator's results of tensor cores rest on.
_EVIDENCE = {
    "measured": "exact: equal to an H100's",
    "parts": "exact in its parts, which equal an H100's",
    "published": "a published model, not confirmed",
    "defined": "exact",
}


@click.command("info", cls=Verb)
@gpu_option
@debug_option
def command(gpu: str | None) -> None:
    """Show GPU, compiler, boards, caches, the board's limits, and missing components.

    Limits are those of --gpu; by default those of this machine's GPU, or an RTX 3090 without one.
    """
    from gemmkit.cli.output import Printer
    from gemmkit.gpu import DEFAULT_BOARD, find_board

    named = find_board(gpu) if gpu else None
    here, facts = _gpu()
    board = named or here or DEFAULT_BOARD
    out = Printer()
    for title, lines in (
        ("This machine", {**facts, **_tools()}),
        ("Caches", _caches()),
    ):
        out.print(title, style="bold")
        out.print("".join(f"  {name:14} {text}\n" for name, text in lines.items()))
    out.print(_threads(board))
    out.print(_memories(board))
    for instruction in _INSTRUCTIONS:
        table = _tensor_cores(board, instruction)
        if table is not None:
            out.print(table)
    out.print(_boards(), end="")


def _gpu() -> tuple[GpuSpec | None, dict[str, str]]:
    from gemmkit.devices.choose import gpu_problem, open_device
    from gemmkit.errors import DeviceError

    problem = gpu_problem()
    if problem is None:
        try:
            device = open_device("cuda")
        except DeviceError as error:
            problem = str(error)
        else:
            spec = device.spec
            lines = {
                "GPU": f"{spec.name}, compute capability {spec.capability}, {spec.sm_count} SMs, "
                f"{spec.peak_tflops:.1f} TFLOP/s fp32"
            }
            driver = device.environment().get("driver")
            return spec, lines | ({"driver": str(driver)} if driver else {})
    return None, {"GPU": f"none: {problem}; kernels run on the emulator, without times"}


def _tools() -> dict[str, str]:
    from importlib.util import find_spec

    from gemmkit.cores import usable_cores
    from gemmkit.devices.gpu_packages import PACKAGES, packages_problem
    from gemmkit.devices.host import cpu_model, package_version
    from gemmkit.errors import CompilerMissing
    from gemmkit.jit.nvrtc import compiler_version, supported_architectures
    from gemmkit.jit.ptxas import assembler, assembler_version
    from gemmkit.jit.sass import disassembler

    try:
        compiler = f"NVRTC {compiler_version()}: {' '.join(supported_architectures())}"
    except CompilerMissing as error:
        compiler = f"missing: {error}"
    tool, ptxas = disassembler(), assembler()
    packages = " and ".join(f"{name} {package_version(name)}" for name in PACKAGES.values())
    # There are none for macOS.
    gpu = {} if sys.platform == "darwin" else {"GPU packages": packages_problem() or packages}
    lines = {
        **gpu,
        "CPU": f"{cpu_model()}, {usable_cores()} cores for the emulator",
        "compiler": compiler,
        "emulator": f"LLVM, llvmlite {package_version('llvmlite')}",
        "disassembler": str(tool) if tool else "missing: pip install 'gemmkit[sass]'",
        "assembler": f"{assembler_version()}, {ptxas}"
        if ptxas
        else "missing; for register counts of PTX kernels: pip install 'gemmkit[ptx]'",
    }
    for module, purpose, remedy in _OPTIONAL:
        found = find_spec(module) is not None
        lines[module] = f"{purpose}: " + ("installed" if found else f"missing, {remedy}")
    return lines


def _caches() -> dict[str, str]:
    from gemmkit.diskcache import DiskCache, default_cache_directory
    from gemmkit.trials.store import default_store_path

    root, store = default_cache_directory(""), default_store_path()
    folders = sorted(folder for folder in root.glob("*") if folder.is_dir())
    lines = {}
    for folder in folders:
        if folder == store.parent:
            continue
        cache = DiskCache(folder)
        lines[folder.name] = f"{cache.size() / MIB:.1f} MiB in {len(cache)} entries, {folder}"
    if store.exists():
        lines[store.parent.name] = f"{store.stat().st_size / MIB:.1f} MiB of trials, {store}"
    return lines or {"none yet": f"will be in {root}"}


def _threads(board: GpuSpec) -> Table:
    from gemmkit.gpu import WARP_SIZE
    from gemmkit.report.layout import Column, Table

    limits = board.capability
    clusters = "8 blocks everywhere, 16 on request" if limits.major >= 9 else "none on this board"
    return Table(
        f"Thread hierarchy of {board.name}",
        (Column("level", "left"), Column("at most", "left"), Column("shared resources", "left")),
        _rows(
            ("grid", "2³¹ - 1 × 65,535 × 65,535 blocks", "global memory, the L2 cache"),
            ("cluster", clusters, "its blocks' shared memory"),
            (
                "block",
                f"{limits.max_threads_per_block} threads; {limits.max_blocks_per_sm} blocks per SM",
                "shared memory, barriers; runs on one SM",
            ),
            (
                "warp",
                f"{WARP_SIZE} threads; {limits.max_warps_per_sm} warps per SM",
                "one instruction at a time; memory requests",
            ),
            (
                "thread",
                f"{limits.max_threads_per_sm} per SM, "
                f"{limits.max_threads_per_sm * board.sm_count:,} on the board",
                "none: registers are private",
            ),
        ),
    )


def _memories(board: GpuSpec) -> Table:
    from gemmkit.report.layout import Column, Table

    limits = board.capability
    return Table(
        f"Memory hierarchy of {board.name}",
        (Column("level", "left"), Column("size", "left"), Column("seen by", "left")),
        _rows(
            (
                "registers",
                f"{limits.registers_per_sm:,} 32-bit registers per SM; "
                f"{limits.max_registers_per_thread} per thread",
                "one thread",
            ),
            (
                "shared memory",
                f"{limits.shared_per_sm // KIB} KiB per SM; "
                f"{limits.max_shared_per_block // KIB} KiB per block; 32 banks of 4 bytes",
                "one block",
            ),
            ("L2 cache", f"{board.l2_bytes / MIB:g} MiB", "all blocks"),
            ("DRAM", f"{board.dram_gb_per_s:,.0f} GB/s", "all blocks, and the host through copies"),
        ),
    )


def _tensor_cores(board: GpuSpec, instruction: _Instruction) -> Table | None:
    """How an instruction adds on a board; None if that has no such instruction."""
    from gemmkit.emulator.numerics.rules import Kind, kinds_of
    from gemmkit.report.layout import Column, Table

    capability = board.capability.major, board.capability.minor
    found: dict[Rules, list[Kind]] = {}
    for kind, rules in kinds_of(instruction, capability):
        found.setdefault(rules, []).append(kind)
    if not found:
        return None
    name = "mma.sync" if instruction == "mma" else instruction
    return Table(
        f"{name} on {board.name}, as the emulator computes it",
        (Column("types", "left"), Column("sum", "left"), Column("results", "left")),
        _rows(
            *(
                (
                    ", ".join(f"{kind.a} → {kind.result}" for kind in kinds),
                    _sum_in_words(rules),
                    _EVIDENCE[rules.evidence],
                )
                for rules, kinds in found.items()
            )
        ),
    )


def _sum_in_words(rules: Rules) -> str:
    if rules.method == "integer":
        return "exact"
    if rules.method == "chain":
        return "a fused multiply-add per k"
    fused = f"{rules.products} products at once, cut at {rules.fraction_bits} bits"
    return f"widened to f16: {fused}" if rules.method == "widened" else fused


def _boards() -> Table:
    from gemmkit.gpu import BOARDS
    from gemmkit.report.layout import Column, Table

    return Table(
        "Known boards, for --gpu",
        (
            Column("name", "left"),
            Column("--gpu", "left"),
            Column("arch", "left", drop=1),
            Column("SMs"),
            Column("MHz", drop=2),
            Column("TFLOP/s"),
            Column("GB/s"),
        ),
        _rows(
            *(
                (
                    board.name,
                    key,
                    board.arch,
                    str(board.sm_count),
                    f"{board.clock_mhz:.0f}",
                    f"{board.peak_tflops:.1f}",
                    f"{board.dram_gb_per_s:,.0f}",
                )
                for key, board in BOARDS.items()
            )
        ),
    )


def _rows(*rows: tuple[str, ...]) -> tuple[Row, ...]:
    from gemmkit.report.layout import Cell, Row

    return tuple(Row(tuple(map(Cell, row))) for row in rows)
