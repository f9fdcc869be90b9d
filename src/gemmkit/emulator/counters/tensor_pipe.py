"""What a warp's matrix product asks of the tensor pipe: machine instructions, operations, and
wavefronts of shared memory.

The numbers were read from an H100's counters; those of `wmma` follow from the `mma.sync` that ptxas
makes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.fragment_products import products
from gemmkit.emulator.isa.table import form_of
from gemmkit.emulator.isa.warpgroup_forms import COLUMNS, OPERATION, ROWS

# By the type of A: the machine instruction, as Nsight Compute names it, and what it calls the
# operations.
_PIPES = {
    "f16": ("hmma", "src_fp16"),
    "bf16": ("hmma", "src_bf16_dst_fp32"),
    "tf32": ("hmma", "src_tf32_dst_fp32"),
    "e4m3": ("hmma", "src_fp8"),
    "e5m2": ("hmma", "src_fp8"),
    "s8": ("imma", "src_int8"),
    "u8": ("imma", "src_int8"),
    "f64": ("dmma", "src_fp64"),
}
PATHS: Mapping[str, str] = {
    "src_fp16": "fp16",
    "src_bf16_dst_fp32": "bf16",
    "src_tf32_dst_fp32": "tf32",
    "src_fp8": "fp8",
    "src_int8": "int8",
    "src_fp64": "fp64",
}


@dataclass(frozen=True, slots=True)
class TensorWork:
    """What one warp's execution of an instruction asks of the tensor pipe.

    `pipe` is hmma, imma or dmma, `path` a name of `PATHS`, or both are empty if the machine
    instructions are not known. `operations` are 2·m·n·k of what this warp computes. The wavefronts
    of shared memory are in sixteenths, since the four warps of a wgmma share those for B; so do
    they its `shared_bytes`, of which this is a warp's part.
    """

    pipe: str
    path: str
    instructions: int
    operations: int
    wavefront_sixteenths: int = 0
    shared_bytes: int = 0


def tensor_work(form: Form) -> TensorWork | None:
    """The work of a matrix product; None for any other instruction.

    An `mma.sync` of fp8 has none that is known: ptxas makes conversions and HMMA of it.
    """
    if form.operation == "multiply_fragments":
        parts = [form_of(each.opcode) for each in products(form)]
        works = [work for part in parts if part is not None and (work := tensor_work(part))]
        whole = sum(each.operations for each in works)
        return TensorWork(works[0].pipe, works[0].path, len(works), whole)
    if form.operation not in ("multiply_matrices", OPERATION):
        return None
    pipe, path = _PIPES[form["A"]]
    if form.operation == "multiply_matrices":
        if path == "src_fp8":
            return TensorWork("", "", 0, 0)
        return TensorWork(pipe, path, 1, 2 * int(form["M"]) * COLUMNS * int(form["K"]))
    columns = int(form["N"])
    operations = 2 * ROWS * columns * int(form["K"])
    # 32 bytes of each row of A and each column of B: a wavefront is four of them.
    of_a = 0 if form.operands[1].count > 1 else 4 * ROWS
    return TensorWork(pipe, path, 1, operations, of_a + columns, 8 * (of_a + columns))
