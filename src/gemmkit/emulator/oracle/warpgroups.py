"""wgmma in the oracle: each warp's part takes effect when it is issued, and a wait for it is over
once all warps of the warpgroup have issued theirs."""

from __future__ import annotations

import numpy as np

from gemmkit.emulator.isa.matrices import Raw
from gemmkit.emulator.isa.matrix_descriptors import CHUNK_BYTES, chunks_of
from gemmkit.emulator.isa.mbarriers import Misuse
from gemmkit.emulator.isa.semantics.raw import Mask
from gemmkit.emulator.isa.warpgroup_forms import COLUMNS, ROWS, WARPS
from gemmkit.emulator.isa.warpgroups import WarpgroupProduct, check_operands, check_warpgroup
from gemmkit.emulator.oracle.chunk import Chunk, Group
from gemmkit.emulator.oracle.control import AT_PRODUCTS, RUNNING
from gemmkit.emulator.oracle.memory import Fault
from gemmkit.emulator.oracle.steps import Step


class ProductGroups:
    """The groups of wgmma of a chunk's warps."""

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk
        self._issued = np.zeros(chunk.count, np.intp)
        # How many wgmma a warp had issued when it committed each of its groups.
        self._ends: list[list[int]] = [[] for _ in range(chunk.count)]
        # By row: the instruction where a warp waits, and how many wgmma others must have issued.
        self._waits: dict[int, tuple[Step, int]] = {}

    def _members(self, row: int) -> range | None:
        """The rows of a warp's warpgroup, if its block has all of it."""
        warps = self._chunk.warps_per_block
        first = row - row % warps % WARPS
        return None if first % warps + WARPS > warps else range(first, first + WARPS)

    def issue(self, group: Group, lanes: Mask) -> None:
        """Warps have issued a wgmma."""
        for row in group.rows[lanes.any(axis=1)].tolist():
            self._issued[row] += 1
            for other in self._members(row) or ():
                if other in self._waits and not self._missing(other):
                    self._chunk.warps.status[other] = RUNNING

    def commit(self, group: Group, lanes: Mask) -> None:
        """Warps commit their open groups."""
        for row in group.rows[lanes.all(axis=1)].tolist():
            self._ends[row].append(int(self._issued[row]))

    def waits(self, row: int) -> bool:
        """Whether a warp waits, or has just ceased to."""
        return row in self._waits

    def wait(self, group: Group, step: Step, lanes: Mask) -> bool:
        """A warp waits for its groups but the latest few; returns whether it goes on."""
        (row,), ends = group.rows.tolist(), self._ends[int(group.rows[0])]
        self._waits.pop(row, None)
        going = step.immediates[0]
        if not lanes.all() or self._members(row) is None or len(ends) <= going:
            return True
        self._waits[row] = step, ends[-1 - going]
        if not self._missing(row):
            del self._waits[row]
            return True
        self._chunk.warps.status[row] = AT_PRODUCTS
        return False

    def _missing(self, row: int) -> list[int]:
        """The warps of its warpgroup for which a warp waits."""
        members = self._members(row)
        assert members is not None
        return [each for each in members if self._issued[each] < self._waits[row][1]]

    def stuck(self) -> list[tuple[int, str, str]]:
        """What warps wait for: the row, the source position, and the missing warps in words."""
        warps, found = self._chunk.warps_per_block, []
        for row, (step, _) in self._waits.items():
            missing = ", ".join(str(each % warps) for each in self._missing(row))
            text = f"a wgmma that warps {missing} of its warpgroup have not issued"
            found.append((row, step.instruction.where, text))
        return found


def multiply(group: Group, step: Step, lanes: Mask) -> None:
    """The product of each warp's rows, warp by warp.

    Raises:
        Fault: an operand is not valid.
    """
    product = WarpgroupProduct.of(step.form, step.immediates)
    operands = [np.broadcast_to(group.read(*each), lanes.shape) for each in step.sources]
    sums = [group.read(register, of) for register, of in step.dests if register is not None]
    results = np.zeros((len(sums), *lanes.shape), np.uint32)
    for index in np.flatnonzero(lanes.any(axis=1)).tolist():
        given = [each[index] for each in operands]
        held = np.stack([each[index] for each in sums])
        try:
            results[:, index] = _product(group, product, index, lanes[index], given, held)
        except Misuse as misuse:
            here = np.zeros_like(lanes)
            here[index] = lanes[index]
            raise Fault(f"{misuse.kind}: it {misuse.what}", 0, here) from None
    for (dest, of), result in zip(step.dests, results, strict=True):
        group.write(dest, of, result, lanes)


def _product(
    group: Group,
    product: WarpgroupProduct,
    index: int,
    active: Mask,
    operands: list[Raw],
    sums: Raw,
) -> Raw:
    """The registers of D of one warp, which are `sums` before: (registers, lanes).

    Raises:
        Misuse: an operand is not valid.
    """
    warps, shared = group.chunk.warps_per_block, group.chunk.spaces["shared"]
    block, warp = divmod(int(group.rows[index]), warps)
    memory = range(shared.base, shared.base + shared.nbytes)
    data = shared.view(block, shared.base, shared.nbytes)
    factors, given = (operands[:4], operands[4:]) if product.in_registers else ([], operands)
    check_warpgroup(warp, warps, active)
    descriptors = check_operands(product, given, warp % WARPS, memory)
    found: dict[str, Raw] = {}
    for operand, word in zip(product.in_shared, descriptors, strict=True):
        rows, transposed = product.rows_of(operand, warp % WARPS)
        addresses = chunks_of(word, rows.start, len(rows), transposed) - shared.base
        chunks = data[addresses[:, None] + np.arange(CHUNK_BYTES)]
        found[operand] = product.elements(chunks, transposed=transposed)
    tile = product.tile
    of_a, _, of_c = tile.fragments
    if product.in_registers:
        nothing = [np.zeros_like(factors[0])] * (tile.counts[2] + tile.counts[3])
        found["A"] = of_a.gather(tile.numbers([*map(np.ascontiguousarray, factors), *nothing])[0])
    c = _columns(product, sums)
    if not given[-1][0]:
        c = np.zeros_like(c)
    d = product.multiply(group.chunk.kernel.capability, found["A"], found["B"], c)
    parts = d.reshape(ROWS, -1, COLUMNS).swapaxes(0, 1)
    registers = np.stack(tile.registers(of_c.scatter(parts)))
    return registers.swapaxes(0, 1).reshape(sums.shape)


def _columns(product: WarpgroupProduct, registers: Raw) -> Raw:
    """The raw C of a warp's rows, (16, columns), from its registers (registers, lanes)."""
    tile = product.tile
    groups = registers.reshape(-1, tile.counts[0], registers.shape[-1])
    if tile.packed_sums > 1:
        shifts = np.array([0, 16], np.uint32)[:, None]
        halves = groups[:, :, None, :] >> shifts & np.uint32(0xFFFF)
        groups = halves.reshape(len(groups), -1, registers.shape[-1]).astype(np.uint16)
    return np.concatenate(list(tile.fragments[2].gather(groups)), axis=-1)
