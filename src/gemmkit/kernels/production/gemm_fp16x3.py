"""How `gemm_fp16x3` is launched: fp32 on Hopper's tensor cores, by three products of fp16."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.dtypes import ITEM_BYTES
from gemmkit.gpu import GpuSpec, MathPipe
from gemmkit.kernels import warpgroups
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import LAYOUTS, MAP_ARGUMENTS, LaunchShape, TileConfig
from gemmkit.kernels.prepared_copies import prepared_copies
from gemmkit.kernels.production import result_boxes, wgmma_tiles
from gemmkit.kernels.production.arguments import SPLIT_SIGNATURE
from gemmkit.kernels.production.loaded_operands import LoadedOperands
from gemmkit.kernels.splitting import (
    GROUP,
    PARTS,
    exponents_of,
    parts_of,
    preparing,
    split_bytes,
    split_share,
    splitting,
)
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem
from gemmkit.split_products import LEAST_K, LONGEST_CHUNK, PRODUCTS, SHORTEST_CHUNK, SPLIT_PRODUCTS


def operands(problem: GemmProblem) -> LoadedOperands:
    """The parts of A and B, along k."""
    return LoadedOperands(ITEM_BYTES["float16"], True, True, parts_of(problem), per_k=PARTS)


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """Persistent clusters, one block per SM, after the launch that splits both operands."""
    shape = wgmma_tiles.launch_shape(problem, config, gpu, operands(problem))
    # Where both operands are prepared, nothing but their exponents is in the workspace.
    least = exponents_of(problem)[1] if all(each.is_prepared for each in shape.copies) else 0
    return replace(
        shape,
        workspace_bytes=least,
        before=splitting(problem, shape.copies, gpu),
        prepared=prepared_copies(shape.copies, problem, gpu, preparing),
    )


def condition(problem: GemmProblem, gpu: GpuSpec) -> str | None:
    """A Hopper board, and something to load; where fp32's bound must hold, a k so long that it is
    the larger one."""
    if (reason := wgmma_tiles.condition(problem, gpu)) is not None:
        return reason
    return too_short(problem, problem.k)


def too_short(problem: GemmProblem, k: int) -> str | None:
    """Why fp32's bound does not hold where it must."""
    if 0 < k < LEAST_K and problem.precision != "tf32":
        return f"k = {k} is less than {LEAST_K}, from where on sums are as exact as fp32's"
    return None


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """As all kernels of wgmma: with lines of 32 elements along k, and two sums for each result; in
    chunks for which the error bound holds."""
    chunk, chunks = config["BK"], (SHORTEST_CHUNK, LONGEST_CHUNK)
    if chunk not in chunks:
        known = " or ".join(map(str, chunks))
        return f"BK = {chunk}: use {known}, the elements of k after which sums are promoted"
    return wgmma_tiles.tiles(config, gpu, GROUP, sums=2)


def pairing(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
    """Room for the stages and for results."""
    return result_boxes.room(problem, config, gpu, operands(problem))


def work(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Work:
    """A tile of C at a time per block, once both operands have been split."""
    found = in_parts(wgmma_tiles.work(problem, config, gpu, operands(problem)))
    moved, share = split_bytes(problem), split_share(problem)
    return found._replace(copied_bytes=moved, copy_share=share)


def in_parts(found: Work) -> Work:
    """The work with three products of parts in place of each of fp32."""
    own = found.demands
    demands = replace(
        own,
        math=MathPipe("float16", tensor=True),
        multiply_adds=PRODUCTS * own.multiply_adds,
        # Those of fp32 would have half the depth of those of fp16.
        per_instruction=PARTS * own.per_instruction,
        wavefronts=PRODUCTS / PARTS * own.wavefronts,
        registers=2 * own.registers,
    )
    return found._replace(demands=demands)


KERNEL = Kernel(
    name="gemm_fp16x3",
    rung=None,
    idea="Each fp32 operand is the sum of two fp16 parts, of whose products tensor cores compute "
    "three: as exact as FFMA, at several times its speed.",
    default=TileConfig(
        BM=128,
        BN=192,
        BK=32,
        stages=4,
        consumers=2,
        pingpong=1,
        cluster_m=1,
        cluster_n=1,
        cluster_k=1,
    ),
    space={
        "BM": (8, 16, 32, 64, 80, 96, 128, 144, 160, 176, 192, 256),
        "BN": (32, 64, 96, 128, 144, 160, 192),
        "BK": (SHORTEST_CHUNK, LONGEST_CHUNK),
        "stages": (2, 3, 4, 5, 6, 8),
        "consumers": (1, 2),
        "pingpong": (1, 2),
        "cluster_m": (1, 2, 4),
        "cluster_n": (1, 2, 4),
        "cluster_k": (1, 2, 4),
    },
    launch=launch,
    work=work,
    loads=warpgroups.words,
    rule=rule,
    signature=(
        *MAP_ARGUMENTS,
        *("0" if name == "semaphores" else name for name in SPLIT_SIGNATURE),
    ),
    layouts=LAYOUTS,
    result_dtypes=("float32", "float16", "bfloat16"),
    precision="fp32",
    condition=condition,
    pairing=pairing,
    compute_dtype=SPLIT_PRODUCTS,
)
