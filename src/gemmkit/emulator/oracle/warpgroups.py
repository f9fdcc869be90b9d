"""`wgmma.mma_async` in the oracle: it takes effect when it is issued."""

from __future__ import annotations

import numpy as np

from gemmkit.emulator.isa.matrices import Raw
from gemmkit.emulator.isa.matrix_descriptors import CHUNK_BYTES, chunks_of
from gemmkit.emulator.isa.mbarriers import Misuse
from gemmkit.emulator.isa.semantics.raw import Mask
from gemmkit.emulator.isa.warpgroups import (
    COLUMNS,
    ROWS,
    WARPS,
    WarpgroupProduct,
    check_operands,
    check_warpgroup,
    own_rows,
)
from gemmkit.emulator.oracle.chunk import Group
from gemmkit.emulator.oracle.memory import Fault
from gemmkit.emulator.oracle.steps import Step


def multiply(group: Group, step: Step, lanes: Mask) -> None:
    """The product of each warp's rows, warp by warp.

    Raises:
        Fault: an operand is not valid.
    """
    product = WarpgroupProduct.of(step.form, step.immediates)
    tile = product.tile
    of_a, _, of_c = tile.fragments
    operands = [np.broadcast_to(group.read(*each), lanes.shape) for each in step.sources]
    sums = [group.read(register, of) for register, of in step.dests if register is not None]
    results = np.zeros((len(sums), *lanes.shape), np.uint32)
    for index, row in enumerate(group.rows.tolist()):
        if not lanes[index].any():
            continue
        block, warp = divmod(row, group.chunk.warps_per_block)
        held = np.ascontiguousarray(np.stack([each[index] for each in operands[:-2]]))
        given = [each[index] for each in (operands[-2:] if product.in_registers else operands)]
        shared = group.chunk.spaces["shared"]
        memory = range(shared.base, shared.base + shared.nbytes)
        try:
            check_warpgroup(warp, group.chunk.warps_per_block, lanes[index])
            *left, right = check_operands(product, given, warp % WARPS, memory)
        except Misuse as misuse:
            raise Fault(f"{misuse.kind}: it {misuse.what}", 0, lanes & _only(lanes, index)) from None

        def read(word: int, rows: range, transposed: bool) -> Raw:
            addresses = chunks_of(word, rows.start, len(rows), transposed) - shared.base
            data = shared.view(block, shared.base, shared.nbytes)
            chunks = data[addresses[:, None] + np.arange(CHUNK_BYTES)]
            return product.elements(chunks, transposed=transposed)

        b = read(right, range(product.columns), product.transposed[1])
        if product.in_registers:
            words = [*held, *[np.zeros_like(held[0])] * (tile.counts[2] + tile.counts[3])]
            a = of_a.gather(tile.numbers(words)[0])
        else:
            a = read(left[0], own_rows(warp % WARPS), product.transposed[0])
        c = _columns(product, np.stack([each[index] for each in sums]))
        if not operands[-1][index, 0]:
            c = np.zeros_like(c)
        d = product.multiply(group.chunk.kernel.capability, a, b, c)
        parts = d.reshape(ROWS, -1, COLUMNS).swapaxes(0, 1)
        registers = np.stack(tile.registers(of_c.scatter(parts)))
        results[:, index] = registers.swapaxes(0, 1).reshape(len(sums), -1)
    for (dest, of), result in zip(step.dests, results, strict=True):
        group.write(dest, of, result, lanes)


def _columns(product: WarpgroupProduct, registers: Raw) -> Raw:
    """The raw C of a warp's rows, (16, columns), from its registers (registers, lanes)."""
    tile = product.tile
    count, _, _, of_c = tile.counts[0], *tile.fragments
    groups = registers.reshape(-1, count, registers.shape[-1])
    if tile.packed_sums > 1:
        shifts = np.array([0, 16], np.uint32)[:, None]
        halves = groups[:, :, None, :] >> shifts & np.uint32(0xFFFF)
        groups = halves.reshape(len(groups), -1, registers.shape[-1]).astype(np.uint16)
    return np.concatenate(list(of_c.gather(groups)), axis=-1)


def _only(lanes: Mask, index: int) -> Mask:
    chosen = np.zeros_like(lanes)
    chosen[index] = True
    return chosen
