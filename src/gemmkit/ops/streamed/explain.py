"""`explain_stream`: how a product of host matrices would be streamed, and what limits it."""

from __future__ import annotations

from math import inf, prod

import msgspec

from gemmkit.dtypes import FLOAT_BYTES, is_narrow
from gemmkit.errors import UnsupportedProblem, UsageError
from gemmkit.float8_products import CHUNK
from gemmkit.gpu import GIB, GpuSpec
from gemmkit.ops.operands import WIDEST_ACCESS, View
from gemmkit.ops.placement import Terms
from gemmkit.ops.streamed.entry import LINK_RATE, device_rates, read_bytes
from gemmkit.ops.streamed.multiply import planned
from gemmkit.ops.streamed.sizes import PART_ALIGNMENT, StreamProblem
from gemmkit.ops.streamed.timeline import Limiter
from gemmkit.problem import GemmProblem

# Of the board's memory, what a product takes if no limit is given.
_SHARE = 0.9
# What a link copies each way if nothing else is told.
LINK_GB_PER_S = LINK_RATE / 1e9
# A board of which the memory is not known.
_SMALL = 8


class StreamDecision(msgspec.Struct, frozen=True, kw_only=True):
    """How a product of host matrices is cut for some devices, and what it should cost.

    Tiles of C are `tile` (rows, columns), of `group` products where these are whole; `depth` is the
    part of k of a panel. A device keeps `panels` of A and of B in `device_bytes` of memory.
    `bytes_in` and `bytes_out` go over the links of all devices, `least_bytes_in` if each element
    went once. `product_s`, `in_s` and `out_s` are the device's with most tiles, each by itself;
    `seconds` is all of it, overlapped, and `serial_s` one after the other, of one device that held
    everything.
    """

    shape: str
    gpu: str
    devices: int
    memory_bytes: int
    device_bytes: int
    tile: tuple[int, int]
    depth: int
    group: int
    chunks: int
    tiles: int
    panels: tuple[int, int]
    by_rows: bool
    squares: bool
    bytes_in: float
    bytes_out: float
    least_bytes_in: int
    product_s: float
    in_s: float
    out_s: float
    seconds: float
    serial_s: float
    tflops: float
    limiter: Limiter
    link_gb_per_s: float

    def to_json(self) -> str:
        """One line of JSON."""
        return msgspec.json.encode(self).decode()


def explain_stream(
    problem: GemmProblem,
    gpu: GpuSpec,
    *,
    device_memory: int | str | None = None,
    devices: int = 1,
    link_gb_per_s: float = LINK_GB_PER_S,
) -> StreamDecision:
    """How `matmul` would stream a product of pinned host arrays; nothing is compiled or copied.

    Args:
        problem: the product; its matrices count as contiguous.
        gpu: the board.
        device_memory: as for `matmul`; by default nine tenths of the board's memory.
        devices: how many of the boards share the product.
        link_gb_per_s: what each copies in each direction, by default 54 (PCIe 5.0 ×16); take what a
            disk reads for matrices in files.

    Raises:
        UsageError: an argument is not valid, there is too little memory, or less than is asked for.
        UnsupportedProblem: groups, results of 8 bits, or no kernel accepts a tile.
    """
    if problem.groups is not None:
        raise UnsupportedProblem(
            "products of different shapes are not streamed: stream each by itself"
        )
    if is_narrow(problem.result_dtype):
        raise UnsupportedProblem(f"results of {problem.result_dtype} are not streamed")
    if 0 in (problem.m, problem.n, problem.batch):
        raise UnsupportedProblem(f"the result of {problem.shape} is empty: nothing is streamed")
    if devices < 1 or not 0 < link_gb_per_s < inf:
        raise UsageError(f"devices = {devices}, link = {link_gb_per_s} GB/s: give positive numbers")
    memory = int(_SHARE * (gpu.memory_gib or _SMALL) * GIB)
    memory = memory if device_memory is None else read_bytes(device_memory)
    if gpu.memory_gib and memory > gpu.memory_gib * GIB:
        raise UsageError(
            f"device_memory = {memory / GIB:,.1f} GiB: {gpu.name} has {gpu.memory_gib} GiB"
        )
    stream = stream_problem(problem)
    terms = Terms(
        dtype=problem.dtype,
        out_dtype=problem.result_dtype,
        alpha=problem.alpha,
        beta=problem.beta,
        epilogue=problem.epilogue,
        alignment=WIDEST_ACCESS,
        precision=problem.precision,
        scales=problem.scales,
    )
    rates = device_rates(stream, terms, gpu, link_gb_per_s * 1e9, link_gb_per_s * 1e9)
    plan = planned(stream, terms, _scale_views(problem), gpu, False, memory, rates, devices)
    own, tiling = plan.estimate, plan.tiling
    groups, rows, columns = tiling.counts(stream)
    serial = stream.total_bytes / rates.to_device + stream.flops / rates.product
    return StreamDecision(
        shape=problem.shape,
        gpu=gpu.name,
        devices=devices,
        memory_bytes=memory,
        device_bytes=plan.device_bytes,
        tile=(tiling.m, tiling.n),
        depth=tiling.k,
        group=tiling.group,
        chunks=tiling.chunks(stream),
        tiles=groups * rows * columns,
        panels=(tiling.slots_a, tiling.slots_b),
        by_rows=tiling.by_rows,
        squares=tiling.squares,
        bytes_in=own.bytes_in,
        bytes_out=own.bytes_out,
        least_bytes_in=stream.total_bytes - stream.result_bytes * (1 + stream.auxiliary),
        product_s=own.product_s,
        in_s=own.in_s,
        out_s=own.out_s,
        seconds=own.seconds,
        serial_s=serial,
        tflops=stream.flops / own.seconds / 1e12,
        limiter=own.limiter,
        link_gb_per_s=link_gb_per_s,
    )


def stream_problem(problem: GemmProblem) -> StreamProblem:
    """A problem as it is streamed, with matrices that are contiguous."""
    epilogue, scales = problem.epilogue, problem.scales
    fixed = FLOAT_BYTES * (problem.m if epilogue.bias == "row" else problem.n)
    fixed = fixed if epilogue.bias else 0
    fixed += sum(FLOAT_BYTES * prod(view.shape) for view in _scale_views(problem).values())
    return StreamProblem(
        m=problem.m,
        n=problem.n,
        k=problem.k if problem.alpha else 0,
        batch=problem.batch,
        item=problem.item_bytes,
        out_item=problem.out_item_bytes,
        columns_a=problem.transa,
        columns_b=problem.transb,
        reads_c=problem.beta != 0,
        residual=epilogue.residual,
        auxiliary=epilogue.auxiliary,
        fixed_bytes=fixed + 3 * PART_ALIGNMENT if fixed else 0,
        k_unit=CHUNK if scales.of_chunks else 1,
        line_unit=max(scales.a.lines, scales.b.lines, 1),
    )


def _scale_views(problem: GemmProblem) -> dict[str, View]:
    scales = problem.scales
    kinds = {"scale_a": (scales.a, problem.m), "scale_b": (scales.b, problem.n)}
    found = {}
    for role, (kind, lines) in kinds.items():
        if kind.name != "none":
            sides = kind.shape(lines, problem.k)
            found[role] = View.tight((problem.batch, *(sides if role[-1] == "a" else sides[::-1])))
    return found
