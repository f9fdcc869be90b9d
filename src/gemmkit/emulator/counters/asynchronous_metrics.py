"""The metrics of matrix products, of bulk and tensor copies, of distributed shared memory, and of
mbarriers."""

from __future__ import annotations

from collections.abc import Iterator

from gemmkit.emulator.counters.metric import Basis, Metric
from gemmkit.emulator.counters.rules import SECTOR_BYTES
from gemmkit.emulator.counters.tensor_pipe import PATHS, tensor_work
from gemmkit.emulator.isa.cluster import reaches_peers
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.warpgroup_forms import OPERATION

_PIPES = {"hmma": "fp16, bf16, tf32 and fp8", "imma": "int8", "dmma": "fp64"}
# What the TMA does: Nsight Compute's name of the instructions, the beginning of its name of their
# sectors, the memory that these are in, and what the copies are.
_COPIES = (
    ("tma_ld", "xbar2l1tex_read", "global_op_tma_ld", "copies from global to shared memory"),
    ("tma_st", "l1tex2xbar_write", "global_op_tma_st", "copies from shared to global memory"),
    ("tma_red", "l1tex2xbar_write", "global_op_tma_red", "reductions in global memory"),
    (
        "dshared_tma_st",
        "l1tex2xbar_write",
        "dshared_op_tma_st",
        "copies to distributed shared memory",
    ),
)
# Accesses to distributed shared memory, as Nsight Compute names the instructions and the requests.
_INSTRUCTIONS = {
    "ld": "loads",
    "st": "stores",
    "stas": "st.async",
    "atom": "atomics",
    "redas": "red.async",
}
_REQUESTS = {
    "ld": "loads",
    "st": "stores and st.async",
    "atom": "atomics",
    "redas": "red.async",
}
_ACCESSES = {
    "load": "ld",
    "store": "st",
    **dict.fromkeys(("atomic", "compare_and_swap", "reduction"), "atom"),
}


def work_of(form: Form) -> tuple[str, ...]:
    """The groups of instructions, as in `Metric.of`, of this table that include a form."""
    work, operation = tensor_work(form), form.operation
    if work is not None:
        known = (work.pipe, work.path) if work.pipe else ()
        return ("wgmma", *known) if operation == OPERATION else known
    if operation.startswith("mbarrier"):
        return ("mbarrier",)
    if operation in ("bulk_copy", "bulk_tensor"):
        return _copies(form)
    if operation == "bulk_store":
        return _distributed("redas", "redas") if "O" in form.modifiers else _distributed("stas")
    if operation in _ACCESSES and reaches_peers(form):
        return _distributed(_ACCESSES[operation], _ACCESSES[operation])
    return ()


def _copies(form: Form) -> tuple[str, ...]:
    reduces = "O" in form.modifiers
    if form["D"] == "global":
        return ("tma_red",) if reduces else ("tma_st",)
    if form.modifiers.get("F") != "shared" and not reduces:
        return ("tma_ld",)
    # Reductions in distributed shared memory were not measured.
    return () if reduces else ("dshared_tma_st",)


def _distributed(instruction: str, request: str = "st") -> tuple[str, ...]:
    return f"dshared_{instruction}", f"mem_dshared_op_{request}"


def _of_products() -> Iterator[Metric]:
    yield Metric("sm__inst_executed_pipe_tensor_op_gmma.sum",
                 "wgmma instructions executed by warps, four to a warpgroup", Basis.EXACT,
                 "executed", "wgmma")  # fmt: skip
    for pipe, types in _PIPES.items():
        yield Metric(f"sm__inst_executed_pipe_tensor_op_{pipe}.sum",
                     f"tensor-core instructions of warps for {types}, wgmma included",
                     Basis.TENSOR, "tensor_instructions", pipe)  # fmt: skip
    for path, of in PATHS.items():
        yield Metric(f"sm__ops_path_tensor_{path}.sum",
                     f"operations of tensor cores on {of}, two to a multiply-add",
                     Basis.TENSOR, "tensor_operations", path)  # fmt: skip
    yield Metric("smsp__sass_inst_executed_op_shared_gmma.sum",
                 "instructions of warps by which wgmma reads shared memory", Basis.EXACT,
                 "executed", "wgmma")  # fmt: skip
    yield Metric("l1tex__lsuin_requests_op_gmma.sum",
                 "requests of warps by which wgmma reads shared memory", Basis.EXACT,
                 "executed", "wgmma")  # fmt: skip
    yield Metric("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_gmma.sum",
                 "wavefronts of shared memory for the operands of wgmma", Basis.SWIZZLED,
                 "matrix_wavefronts", "wgmma")  # fmt: skip
    yield Metric("ptx__data_bytes_mem_shared_op_gmma.sum",
                 "bytes of the operands that wgmma has in shared memory", Basis.PTX,
                 "matrix_bytes", "wgmma")  # fmt: skip


def _of_copies() -> Iterator[Metric]:
    for group, direction, memory, what in _COPIES:
        # Only copies between blocks have sectors in distributed shared memory.
        count = "peer_sectors" if group.startswith("dshared") else "sectors"
        yield Metric(f"smsp__sass_inst_executed_op_{group}.sum", f"TMA {what}, executed",
                     Basis.EXACT, "lanes", group)  # fmt: skip
        yield Metric(f"l1tex__m_{direction}_sectors_mem_{memory}.sum",
                     f"32-byte sectors of TMA {what}", Basis.EXACT, count, group)  # fmt: skip
        yield Metric(f"l1tex__m_{direction}_bytes_mem_{memory}.sum",
                     f"bytes of the sectors of TMA {what}", Basis.EXACT, count, group,
                     scale=SECTOR_BYTES)  # fmt: skip


def _of_distributed() -> Iterator[Metric]:
    for name, what in _INSTRUCTIONS.items():
        yield Metric(f"smsp__sass_inst_executed_op_dshared_{name}.sum",
                     f"{what} of warps in distributed shared memory", Basis.EXACT,
                     "peer_requests", f"dshared_{name}")  # fmt: skip
    for name, what in _REQUESTS.items():
        group = f"mem_dshared_op_{name}"
        yield Metric(f"l1tex__t_requests_pipe_lsu_{group}.sum",
                     f"requests of warps to distributed shared memory for {what}", Basis.EXACT,
                     "peer_requests", group)  # fmt: skip
        yield Metric(f"l1tex__t_sectors_pipe_lsu_{group}.sum",
                     f"32-byte sectors of distributed shared memory for {what}", Basis.EXACT,
                     "peer_sectors", group)  # fmt: skip
        yield Metric(f"l1tex__t_bytes_pipe_lsu_{group}.sum",
                     f"bytes of the sectors of distributed shared memory for {what}",
                     Basis.EXACT, "peer_sectors", group, scale=SECTOR_BYTES)  # fmt: skip


ASYNCHRONOUS_METRICS: tuple[Metric, ...] = (
    *_of_products(),
    *_of_copies(),
    *_of_distributed(),
    Metric("ptx__inst_executed_op_mbarrier.sum", "PTX instructions on mbarriers executed by warps",
           Basis.PTX, "executed", "mbarrier"),
)  # fmt: skip
