"""Small PTX programs of asynchronous instructions, each counted by Nsight Compute and the emulator.

Needs the modules of `tests/emulator` on the path, whose executors run the programs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from launching import Executor, Outcome, kernel_ptx, launch
from tensor_runs import TILE_BYTES, Case

from gemmkit.tensor_maps import ELEMENT_BYTES, TensorMap


@dataclass(frozen=True)
class Program:
    """A kernel `k` on one array of 2^16 words; two blocks are a cluster."""

    name: str
    ptx: str
    blocks: int = 1

    def run(self, executor: Executor) -> Outcome:
        """Launch it with 128 threads per block."""
        words = np.arange(1 << 16, dtype=np.uint32)
        cluster = (2, 1, 1) if self.blocks == 2 else None
        return launch(executor, self.ptx, words, grid=self.blocks, block=128, cluster=cluster)


def registers(prefix: str, start: int, count: int) -> str:
    """A brace list of registers with consecutive numbers."""
    return "{" + ", ".join(f"%{prefix}{start + index}" for index in range(count)) + "}"


# Registers of D (and C), A and B. The machine code of the last two is conversions and HMMA.
_MMA = {
    "m16n8k16.row.col.f32.f16.f16.f32": (4, 4, 2),
    "m16n8k8.row.col.f32.f16.f16.f32": (4, 2, 1),
    "m16n8k16.row.col.f16.f16.f16.f16": (2, 4, 2),
    "m16n8k16.row.col.f32.bf16.bf16.f32": (4, 4, 2),
    "m16n8k8.row.col.f32.bf16.bf16.f32": (4, 2, 1),
    "m16n8k8.row.col.f32.tf32.tf32.f32": (4, 4, 2),
    "m16n8k4.row.col.f32.tf32.tf32.f32": (4, 2, 1),
    "m16n8k32.row.col.s32.s8.s8.s32": (4, 4, 2),
    "m16n8k16.row.col.s32.u8.s8.s32": (4, 2, 1),
    "m8n8k16.row.col.s32.s8.s8.s32": (2, 1, 1),
    "m8n8k4.row.col.f64.f64.f64.f64": (2, 1, 1),
    "m16n8k8.row.col.f64.f64.f64.f64": (4, 4, 2),
    "m16n8k16.row.col.f64.f64.f64.f64": (4, 8, 4),
    "m16n8k32.row.col.f32.e4m3.e4m3.f32": (4, 4, 2),
    "m16n8k32.row.col.f32.e5m2.e4m3.f32": (4, 4, 2),
}
# A register of the sums and its type, by the type of D; of A and B.
_SUMS = {"f16": ("r", "b32"), "f32": ("f", "f32"), "s32": ("r", "b32"), "f64": ("fd", "f64")}
_ZEROS = {"f32": "0f00000000", "b32": "0", "f64": "0d0000000000000000"}


def warp_products() -> Iterator[Program]:
    """Five `mma.sync` of each type."""
    for opcode, (sums, of_a, of_b) in _MMA.items():
        prefix, kind = _SUMS[opcode.split(".")[3]]
        double = kind == "f64"
        given = "fd" if double else "r"
        d = registers(prefix, 0, sums)
        a, b = (
            registers(given, 4 if double else 20, of_a),
            registers(given, 12 if double else 24, of_b),
        )
        body = [f"mov.{kind} %{prefix}{index}, {_ZEROS[kind]};" for index in range(sums)]
        body += [f"mov.f64 %fd{index}, {_ZEROS[kind]};" for index in range(4, 16) if double]
        body += [f"mov.u32 %r{20 + index}, %tid;" for index in range(8) if not double]
        body += [f"mma.sync.aligned.{opcode} {d}, {a}, {b}, {d};"] * 5
        if double:
            body += ["cvt.rn.f32.f64 %f0, %fd0;", "st.global.f32 [%at], %f0;"]
        else:
            body += [f"st.global.{kind} [%at], %{prefix}0;"]
        yield Program(f"mma {opcode}", kernel_ptx("\n".join(body), target="sm_90"))


# Types of D, A and B, the depth, and the immediates after `scale-d`.
_WGMMA = (
    ("f32.bf16.bf16", 16, ", 1, 1, 0, 0"),
    ("f32.f16.f16", 16, ", 1, 1, 0, 0"),
    ("f16.f16.f16", 16, ", 1, 1, 0, 0"),
    ("f32.tf32.tf32", 8, ", 1, 1"),
    ("f32.e4m3.e4m3", 32, ", 1, 1"),
    ("s32.s8.s8", 32, ""),
)
# Leading offset 16 bytes, stride offset 1,024 bytes, swizzle of 128 bytes.
_DESCRIPTOR = 16 >> 4 << 16 | 1024 >> 4 << 32 | 1 << 62


def warpgroup_products() -> Iterator[Program]:
    """Three `wgmma` of each type, with A in shared memory and in registers."""
    for n in (8, 64, 128, 256):
        for types, k, immediates in _WGMMA:
            for place in ("smem", "reg"):
                yield _warpgroup_product(n, types, k, immediates, place)


def _warpgroup_product(n: int, types: str, k: int, immediates: str, place: str) -> Program:
    kind = "f32" if types.startswith("f32") else "b32"
    sums = n // (4 if types.startswith("f16") else 2)
    in_registers = place == "reg"
    if in_registers and k == 16:
        immediates = ", 1, 1, 0"
    a = registers("r", 0, 4) if in_registers else "%rd5"
    d = registers("d", 0, sums)
    body = [f"mov.{kind} %d{index}, {_ZEROS[kind]};" for index in range(sums)]
    body += [f"mov.u32 %r{index}, %tid;" for index in range(4)]
    body += [
        "setp.ne.u32 p, %tid, 99999;",
        "mov.u32 %r9, tile;",
        "shr.u32 %r9, %r9, 4;",
        "cvt.u64.u32 %rd5, %r9;",
        f"mov.u64 %rd6, {_DESCRIPTOR};",
        "or.b64 %rd5, %rd5, %rd6;",
        "wgmma.fence.sync.aligned;",
    ]
    opcode = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{types}"
    body += [f"{opcode} {d}, {a}, %rd5, p{immediates};"] * 3
    body += [
        "wgmma.commit_group.sync.aligned;",
        "wgmma.wait_group.sync.aligned 0;",
        f"st.global.{kind} [%at], %d0;",
    ]
    declarations = f".reg .{kind} %d<128>; .reg .pred p; .shared .align 1024 .b8 tile[65536];"
    text = kernel_ptx("\n".join(body), declarations=declarations, target="sm_90a")
    return Program(f"wgmma n{n}.{types} {place}", text)


_TILE = ".shared .align 1024 .b8 tile[32768]; .shared .align 8 .b64 bar;"
# %r2 is the tile of the other block.
_PEER = """mov.u32 %r0, tile;
mov.u32 %r1, %cluster_ctarank;
xor.b32 %r1, %r1, 1;
mapa.shared::cluster.u32 %r2, %r0, %r1;
"""
_MEET = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
_WAIT = "\nWAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r4], 0;\n@!%p2 bra WAIT;\n"


def _in_cluster(name: str, body: str) -> Program:
    text = kernel_ptx(_PEER + _MEET + body + _MEET, declarations=_TILE, target="sm_90")
    return Program(name, text, blocks=2)


def _peer_at(step: int) -> str:
    """%r3: an address in the peer's tile, `step` bytes after that of the thread before."""
    return f"mul.lo.u32 %r3, %tid, {step};\nand.b32 %r3, %r3, 16383;\nadd.u32 %r3, %r3, %r2;\n"


def accesses_to_peers() -> Iterator[Program]:
    """Loads, stores and atomics in a peer's shared memory; strides count accesses."""
    for words, vector in ((1, ""), (2, "v2."), (4, "v4.")):
        width = f"{vector}u32"
        values = registers("r", 8, words) if words > 1 else "%r8"
        fill = "".join(f"mov.u32 %r{8 + index}, %tid;\n" for index in range(4))
        keep = "st.global.u32 [%at], %r8;\n"
        for stride in (0, 1, 2, 4, 8, 32):
            at = _peer_at(4 * words * stride)
            yield _in_cluster(
                f"dsmem ld {width} stride {stride}",
                f"{at}ld.shared::cluster.{width} {values}, [%r3];\n{keep}",
            )
            yield _in_cluster(
                f"dsmem st {width} stride {stride}",
                f"{fill}{at}st.shared::cluster.{width} [%r3], {values};\n",
            )
        one = "setp.eq.u32 %p0, %tid, 0;\nmov.u32 %r8, 0;\n"
        yield _in_cluster(
            f"dsmem ld {width} one lane",
            f"{one}@%p0 ld.shared::cluster.{width} {values}, [%r2];\n{keep}",
        )
    for stride in (0, 1, 4, 32):
        at = _peer_at(4 * stride)
        atom = "atom.shared::cluster.add.u32 %r8, [%r3], 1;\nst.global.u32 [%at], %r8;\n"
        yield _in_cluster(f"dsmem atom stride {stride}", at + atom)
        yield _in_cluster(
            f"dsmem red stride {stride}", at + "red.shared::cluster.add.u32 [%r3], 1;\n"
        )


def _awaited(nbytes: int, body: str) -> str:
    """`body`, whose effects arrive at the peer's mbarrier %r5; %r4 is the block's own."""
    return f"""mov.u32 %r4, bar;
setp.eq.u32 %p0, %tid, 0;
@%p0 mbarrier.init.shared::cta.b64 [%r4], 1;
fence.mbarrier_init.release.cluster;
{_MEET}mapa.shared::cluster.u32 %r5, %r4, %r1;
@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], {nbytes};
{_MEET}{body}{_WAIT}"""


def transfers_to_peers() -> Iterator[Program]:
    """`st.async`, `red.async` and bulk copies to a peer."""
    counted = "shared::cluster.mbarrier::complete_tx::bytes"
    for name, words, what in (
        ("st.async u32", 1, f"st.async.weak.{counted}.u32 [%r3], %tid, [%r5];"),
        (
            "st.async v4",
            4,
            f"st.async.weak.{counted}.v4.u32 [%r3], {{%tid, %tid, %tid, %tid}}, [%r5];",
        ),
        ("red.async", 1, f"red.async.relaxed.cluster.{counted}.add.u32 [%r3], %tid, [%r5];"),
    ):
        yield _in_cluster(f"dsmem {name}", _awaited(512 * words, _peer_at(4 * words) + what))
    for nbytes in (16, 128, 1024, 4096):
        copy = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
        body = f"@%p0 {copy} [%r2], [%r0], {nbytes}, [%r5];"
        yield _in_cluster(f"bulk s2s {nbytes}", _awaited(nbytes, body))


_START = """mov.u32 %r0, tile;
mov.u32 %r4, bar;
setp.eq.u32 %p0, %tid, 0;
@%p0 mbarrier.init.shared::cta.b64 [%r4], 1;
fence.proxy.async;
bar.sync 0;
"""
_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
_DONE = "@%p0 cp.async.bulk.commit_group;\n@%p0 cp.async.bulk.wait_group 0;"


def bulk_copies() -> Iterator[Program]:
    """Bulk copies and reductions between shared and global memory, and prefetches; +16: the
    address in global memory is 16 bytes into a sector."""
    for nbytes in (16, 48, 128, 512, 4096, 32768):
        for shift in (0, 16) if nbytes <= 4096 else (0,):
            start = _START + f"add.u64 %rd1, %rd0, {shift};\n"
            yield _bulk_load(f"bulk g2s {nbytes} +{shift}", start, nbytes, 1)
            for name, opcode in (
                ("s2g", "cp.async.bulk.global.shared::cta.bulk_group"),
                ("red add.u32", "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32"),
                (
                    "red add.noftz.f16",
                    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.f16",
                ),
            ):
                body = f"{start}@%p0 {opcode} [%rd1], [%r0], {nbytes};\n{_DONE}"
                yield _bulk(f"bulk {name} {nbytes} +{shift}", body)
        prefetch = f"@%p0 cp.async.bulk.prefetch.L2.global [%rd0], {nbytes};"
        yield _bulk(f"bulk prefetch {nbytes}", _START + prefetch)
    yield _bulk_load("bulk g2s x4 of 1024", _START + "mov.u64 %rd1, %rd0;\n", 1024, 4)


def _bulk_load(name: str, start: str, nbytes: int, times: int) -> Program:
    announced = f"@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], {nbytes * times};\n"
    copy = f"@%p0 {_LOAD} [%r0], [%rd1], {nbytes}, [%r4];\n"
    return _bulk(name, start + announced + copy * times + _WAIT)


def _bulk(name: str, body: str) -> Program:
    return Program(name, kernel_ptx(body, declarations=_TILE, target="sm_90"))


def programs() -> tuple[Program, ...]:
    """All programs but those of tensor copies."""
    return (
        *warp_products(),
        *warpgroup_products(),
        *accesses_to_peers(),
        *transfers_to_peers(),
        *bulk_copies(),
    )


Place = tuple[TensorMap, tuple[int, ...]]


def tensors() -> dict[str, Place]:
    """Maps of tensors, without addresses, and the coordinates of a box to be copied."""
    found: dict[str, Place] = {}
    for element in ("bfloat16", "float32"):
        size = ELEMENT_BYTES[element]
        for swizzle in (0, 32, 64, 128):
            inner = (swizzle or 128) // size
            for rows in (1, 64):
                name = f"2d {element} sw{swizzle} {inner}x{rows}"
                sizes, stride = (4 * inner, 200), 4 * inner * size
                found[name] = (
                    TensorMap(0, element, sizes, (stride,), (inner, rows), (), swizzle),
                    (inner, 3),
                )

    def of(name: str, sizes: tuple[int, ...], row: int, at: tuple[int, ...]) -> None:
        found[f"2d bf16 {name}"] = (
            TensorMap(0, "bfloat16", sizes, (row,), (64, 64), (), 128),
            at,
        )

    of("partly outside right", (80, 200), 160, (64, 0))
    of("partly outside below", (128, 40), 256, (0, 8))
    of("all outside", (128, 40), 256, (0, 64))
    of("stride 272", (128, 64), 272, (0, 0))
    of("x=8", (128, 64), 256, (8, 0))
    for inner, rows in ((256, 16), (8, 64), (4, 64)):
        found[f"2d f32 {inner}x{rows}"] = (
            TensorMap(0, "float32", (256, 64), (1024,), (inner, rows)),
            (0, 0),
        )
    found["1d f32 256"] = (TensorMap(0, "float32", (1024,), (), (256,)), (256,))
    for name, steps in (("3d bf16", ()), ("3d bf16 steps 2", (1, 2, 1))):
        sizes, strides = (128, 16, 8), (256, 4096)
        found[name] = (
            TensorMap(0, "bfloat16", sizes, strides, (64, 8, 4), steps, 128),
            (0, 0, 0),
        )
    found["4d bf16"] = (
        TensorMap(0, "bfloat16", (64, 8, 4, 4), (128, 1024, 4096), (64, 4, 2, 2), (), 128),
        (0, 0, 0, 0),
    )
    found["5d f32"] = (
        TensorMap(
            0, "float32", (32, 4, 4, 4, 2), (128, 512, 2048, 8192), (32, 2, 2, 2, 2), (), 128
        ),
        (0, 0, 0, 0, 0),
    )
    return found


@dataclass(frozen=True)
class Direction:
    """What a copy of a box does: a load, a store, or a reduction of this kind."""

    name: str
    stores: bool
    reduction: str | None = None


DIRECTIONS = (
    Direction("load", stores=False),
    Direction("store", stores=True),
    Direction("red", stores=True, reduction="add"),
)


def tensor_copies() -> Iterator[tuple[str, Case, Direction]]:
    """A load, a store and a reduction of the box of each map."""
    for name, (tensor_map, at) in tensors().items():
        storage, tile = np.zeros(tensor_map.span, np.uint8), np.zeros(TILE_BYTES, np.uint8)
        for each in DIRECTIONS:
            yield f"tensor {name} {each.name}", Case(tensor_map, storage, at, 0, tile), each
