"""Programs of one warpgroup that execute `wgmma.mma_async`, on operands of a test's choice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from launching import Executor, Outcome, kernel_ptx, launch, parsed
from numpy.typing import NDArray

from gemmkit.emulator.isa.matrices import MatrixProduct
from gemmkit.emulator.isa.table import form_of
from gemmkit.emulator.numerics.rules import SIZES

THREADS, LANES = 128, 32
TILE_BYTES = 48 << 10
Bits = NDArray[np.unsignedinteger]


@dataclass(frozen=True)
class Instruction:
    """One `wgmma.mma_async`: its opcode after `wgmma.mma_async.sync.aligned`, whether A is in
    registers, and its immediate operands."""

    kind: str
    in_registers: bool = False
    immediates: tuple[int, ...] = ()

    @property
    def opcode(self) -> str:
        return f"wgmma.mma_async.sync.aligned.{self.kind}"

    @property
    def sums(self) -> int:
        form = form_of(self.opcode)
        assert form is not None, self.opcode
        return form.operands[0].count


def program(each: Instruction) -> str:
    """A kernel that copies a tile to shared memory, loads registers, multiplies and stores D.

    Its arrays, each with a part for every block: the tile; D by thread; A by thread; the two
    descriptors and `scale-d`.
    """
    d = [f"%d{number}" for number in range(each.sums)]
    a = [f"%a{number}" for number in range(4)]
    of_a = f"{{{', '.join(a)}}}" if each.in_registers else "%left"
    words = "".join(f", {number}" for number in each.immediates)
    kind = "f32" if ".f32." in each.opcode else "b32"
    moves = "\n".join(f"ld.global.{kind} {name}, [%own+{4 * n}];" for n, name in enumerate(d))
    factors = "\n".join(f"ld.global.b32 {name}, [%mine+{4 * n}];" for n, name in enumerate(a))
    stores = "\n".join(f"st.global.{kind} [%own+{4 * n}], {name};" for n, name in enumerate(d))
    return kernel_ptx(
        f"""
mov.b32 %i, %tid;
mov.u32 %cta, %ctaid.x;
mul.wide.u32 %at, %cta, {TILE_BYTES};
add.u64 %rd0, %rd0, %at;
mul.wide.u32 %at, %cta, {4 * each.sums * THREADS};
add.u64 %rd1, %rd1, %at;
mul.wide.u32 %at, %cta, {16 * THREADS};
add.u64 %rd2, %rd2, %at;
mul.wide.u32 %at, %cta, 24;
add.u64 %rd3, %rd3, %at;
FILL:
mul.wide.u32 %at, %i, 16;
add.u64 %from, %rd0, %at;
ld.global.v4.b32 {{%w0, %w1, %w2, %w3}}, [%from];
mov.b64 %to, tile;
add.u64 %to, %to, %at;
st.shared.v4.b32 [%to], {{%w0, %w1, %w2, %w3}};
add.u32 %i, %i, {THREADS};
setp.lt.u32 %more, %i, {TILE_BYTES // 16};
@%more bra FILL;
fence.proxy.async;
bar.sync 0;
mul.wide.u32 %at, %tid, {4 * each.sums};
add.u64 %own, %rd1, %at;
mul.wide.u32 %at, %tid, 16;
add.u64 %mine, %rd2, %at;
{moves}
{factors}
ld.global.b64 %left, [%rd3];
ld.global.b64 %right, [%rd3+8];
ld.global.b64 %scale, [%rd3+16];
setp.ne.b64 %adds, %scale, 0;
wgmma.fence.sync.aligned;
{each.opcode} {{{", ".join(d)}}}, {of_a}, %right, %adds{words};
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
{stores}
""",
        pointers=4,
        declarations=f"""
.reg .b32 %i, %cta, %w<4>, %a<4>;
.reg .{kind} %d<{each.sums}>;
.reg .b64 %from, %to, %own, %mine, %left, %right, %scale;
.reg .pred %more, %adds;
.shared .align 1024 .b8 tile[{TILE_BYTES}];
""",
        target="sm_90a",
    )


def tile_address(each: Instruction) -> int:
    """Where the tile begins in shared memory."""
    _, flow = parsed(program(each))
    return flow.kernel.shared["tile"].offset


def run(
    executor: Executor,
    each: Instruction,
    tile: NDArray[np.uint8],
    sums: Bits,
    *,
    left: int = 0,
    right: int = 0,
    factors: Bits | None = None,
    adds: bool = True,
) -> Outcome:
    """Run one instruction in each of some blocks; `sums` are the registers of D, (blocks, threads,
    registers), as the others with or without an axis for the blocks."""
    blocks = tile.size // TILE_BYTES
    if factors is None:
        factors = np.zeros((blocks, THREADS, 4), np.uint32)
    words = np.tile(np.array([left, right, adds], np.uint64), (blocks, 1))
    arguments = (tile, np.ascontiguousarray(sums, np.uint32), factors, words)
    return launch(executor, program(each), *arguments, grid=blocks, block=THREADS)


def registers_of(product: MatrixProduct, c: Bits) -> Bits:
    """The registers of D by thread, (128, registers), from the raw matrix (64, columns)."""
    of_c = product.fragments[2]
    parts = c.reshape(4, 16, -1, 8).transpose(0, 2, 1, 3)
    words = np.stack(product.registers(of_c.scatter(parts)), axis=2)  # warp, group, register, lane
    return np.ascontiguousarray(words.reshape(4, -1, LANES).swapaxes(1, 2).reshape(THREADS, -1))


def factors_of(product: MatrixProduct, a: Bits) -> Bits:
    """The registers of A by thread, (128, 4), from the raw matrix (64, depth)."""
    size = SIZES[product.kind.a]
    numbers = product.fragments[0].scatter(a.reshape(4, 16, -1))
    grouped = numbers.reshape(4, 4, -1, LANES).astype(np.uint32)
    shifts = (np.arange(grouped.shape[2], dtype=np.uint32) * np.uint32(8 * size))[:, None]
    words = np.bitwise_or.reduce(grouped << shifts, axis=2)
    return np.ascontiguousarray(words.swapaxes(1, 2).reshape(THREADS, 4))
