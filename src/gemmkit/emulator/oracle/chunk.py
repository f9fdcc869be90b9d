"""The state of some blocks of a launch that run together: registers, memory, control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.isa.cluster import RANK_SHIFT, relative
from gemmkit.emulator.isa.semantics.raw import Bits, Mask, Raw
from gemmkit.emulator.isa.types import TYPES, PtxType
from gemmkit.emulator.launch import LaunchRequest
from gemmkit.emulator.oracle.control import Barriers, Rows, Warps
from gemmkit.emulator.oracle.memory import (
    SHARED_WINDOW,
    Addresses,
    GlobalMemory,
    Lanes,
    PrivateSpace,
)
from gemmkit.emulator.ptx.module import (
    Address,
    Immediate,
    Kernel,
    Negated,
    Register,
    Source,
    Special,
    Symbol,
)
from gemmkit.emulator.watching import SignalKind
from gemmkit.errors import UnsupportedInstruction

WARP = 32


class Watcher:
    """What wants to know of a launch while it runs; a subclass overrides what it needs.

    `reads_data`: also of what memory holds; otherwise values that no address depends on need not
    be computed.
    """

    reads_data = True

    def begin(self, chunk: Chunk) -> None:
        """Some blocks begin."""

    def access(
        self,
        number: int,
        space: str,
        rows: Rows,
        addresses: Addresses,
        lanes: Lanes,
        nbytes: int,
    ) -> None:
        """Instruction `number` accesses memory; see `Watch.access`."""

    def copy(
        self,
        number: int,
        warp: int,
        spans: Sequence[tuple[int, int]],
        barriers: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Instruction `number` has global memory copied; see `Watch.copy`."""

    def signal(
        self,
        kind: SignalKind,
        warp: int,
        barriers: Sequence[tuple[int, int]] = (),
        *,
        number: int = -1,
        count: int = 0,
    ) -> None:
        """A warp signals others, or has waited for them; see `WatchedSignal`."""

    def barrier(self, rows: Rows) -> None:
        """Each of these warps arrives at a barrier."""


class Chunk:
    """Registers hold raw bits, one row of 32 lanes per warp; a block's warps are consecutive."""

    def __init__(
        self,
        kernel: Kernel,
        exit_block: int,
        request: LaunchRequest,
        memory: GlobalMemory,
        symbols: Mapping[str, int],
        blocks: Sequence[int],
        watch: Watcher | None = None,
        *,
        shows_ranks: bool = False,
    ) -> None:
        self.kernel, self.request, self.memory = kernel, request, memory
        self.watch = watch
        self._symbols = symbols
        threads = request.block[0] * request.block[1] * request.block[2]
        self.warps_per_block = -(-threads // WARP)
        # A chunk is one cluster, unless clusters have one block.
        self.cluster_blocks = request.cluster_blocks
        # Whether addresses of shared memory have the rank of their block.
        self.shows_ranks = shows_ranks and self.cluster_blocks > 1
        self.count = len(blocks) * self.warps_per_block
        thread = np.tile(np.arange(self.warps_per_block * WARP, dtype=np.uint32), len(blocks))
        self.thread = thread.reshape(self.count, WARP)
        self.block = np.repeat(np.array(blocks, np.uint32), self.warps_per_block)[:, None]
        self.warps = Warps(self.thread < threads, exit_block)
        self.barriers = [Barriers(self.warps_per_block) for _ in blocks]
        # Shared memory belongs to blocks; local memory and the arguments of calls belong to
        # threads.
        row = np.arange(self.count, dtype=np.int64)[:, None]
        self.owners = {
            "shared": row // self.warps_per_block,
            "local": row * WARP + np.arange(WARP),
            "arguments": row * WARP + np.arange(WARP),
        }
        lanes = self.count * WARP
        self.spaces = {
            "shared": PrivateSpace(
                "shared",
                len(blocks),
                kernel.shared_bytes + request.shared_bytes,
                kernel.shared_base,
            ),
            "local": PrivateSpace("local", lanes, kernel.local_bytes),
            "arguments": PrivateSpace("parameter", lanes, kernel.call_parameter_bytes),
        }
        self._registers: dict[str, Raw] = {}
        self._specials: dict[str, Bits] = {}
        # Of operands and products no address and no path depends, but they take longest.
        self.data_matters = watch is None or watch.reads_data
        if watch is not None:
            watch.begin(self)

    @property
    def rank(self) -> NDArray[np.int64]:
        """The rank in its cluster of each warp's block."""
        return np.arange(self.count, dtype=np.int64) // self.warps_per_block % self.cluster_blocks

    def block_of(self, row: int) -> tuple[int, int, int]:
        """The coordinates of a warp's block."""
        x, y, _ = self.request.grid
        number = int(self.block[row, 0])
        return number % x, number // x % y, number // (x * y)

    def register(self, register: Register) -> Raw:
        """The bits of a register in all warps; zero until written."""
        if register.name not in self._registers:
            bits = TYPES[register.type].bits
            kind = np.dtype(bool) if bits == 1 else np.dtype(f"u{bits // 8}")
            self._registers[register.name] = np.zeros((self.count, WARP), kind)
        return self._registers[register.name]

    def special(self, name: str) -> Bits:
        """A special register in all warps; 32 bits."""
        if name not in self._specials:
            values = np.asarray(self._special(name)).astype(np.uint32)
            self._specials[name] = np.broadcast_to(values, (self.count, WARP))
        return self._specials[name]

    def _special(self, name: str) -> Raw | int:
        base, _, axis = name.removeprefix("%").partition(".")
        if base in ("cluster_ctarank", "cluster_nctarank"):
            return self.rank[:, None] if base == "cluster_ctarank" else self.cluster_blocks
        if "cluster" in base and axis:
            index = "xyz".index(axis)
            size = np.full(1, self.request.cluster_shape[index], np.uint32)
            whole = self._special(f"%nctaid.{axis}")
            block = self._special(f"%ctaid.{axis}")
            return {
                "cluster_nctaid": size,
                "cluster_ctaid": block % size,
                "clusterid": block // size,
                "nclusterid": whole // size,
            }[base]
        if axis:
            index = "xyz".index(axis)
            sizes = self.request.grid if "cta" in base else self.request.block
            if base.startswith("n"):
                return sizes[index]
            number = self.block if "cta" in base else self.thread
            return number // np.uint32(int(np.prod(sizes[:index]))) % np.uint32(sizes[index])
        lane = np.arange(WARP, dtype=np.uint64)
        one = np.uint64(1)
        values: Mapping[str, Raw | int] = {
            "laneid": lane,
            "warpid": self.thread // np.uint32(WARP),
            "nwarpid": self.warps_per_block,
            "lanemask_eq": one << lane,
            "lanemask_lt": (one << lane) - one,
            "lanemask_le": (one << lane + one) - one,
            "lanemask_gt": (one << np.uint64(WARP)) - (one << lane + one),
            "lanemask_ge": (one << np.uint64(WARP)) - (one << lane),
            "dynamic_smem_size": self.request.shared_bytes,
            "total_smem_size": self.spaces["shared"].nbytes,
            "WARP_SZ": WARP,
            # One SM, one grid, and clocks that stand still.
            **dict.fromkeys(("smid", "gridid", "clock", "clock64", "globaltimer"), 0),
            "nsmid": 1,
            "is_explicit_cluster": int(self.request.cluster is not None),
        }
        return values[base]

    def variable(self, name: str) -> int:
        """The address of a variable in its own space.

        Raises:
            UnsupportedInstruction: the name is no variable of the kernel or module.
        """
        for space in (self.kernel.shared, self.kernel.local, self.kernel.call_parameters):
            if name in space:
                return space[name].offset
        if name in self.kernel.parameters:
            return self.request.parameters_at + self.kernel.parameters[name].offset
        if name not in self._symbols:
            raise UnsupportedInstruction(f"the address of '{name}' is not known")
        return self._symbols[name]


@dataclass(frozen=True, slots=True)
class Group:
    """Some warps of a chunk that run the same basic block; reads and writes their registers."""

    chunk: Chunk
    rows: Rows
    whole: bool  # the rows are all of the chunk's

    def take(self, values: Raw) -> Raw:
        """The group's rows of an array over all warps."""
        return values if self.whole else values[self.rows]

    def read(self, source: Source, of: PtxType) -> Raw:
        """An operand as raw bits of a type's width."""
        if isinstance(source, Negated):
            return ~self.read(source.register, of)
        if isinstance(source, Register):
            bits = self.take(self.chunk.register(source))
        elif isinstance(source, Special):
            bits = self.take(self.chunk.special(source.name))
            bits = bits != 0 if of.kind == "pred" else bits
        else:
            if not isinstance(source, Immediate):
                return self._address_of(source, of)
            return _number(source.value, of)
        if of.kind == "pred" or bits.dtype.itemsize * 8 == of.bits:
            return bits
        return bits.astype(f"u{of.bits // 8}")

    def _address_of(self, symbol: Symbol, of: PtxType) -> Raw:
        number = _number(self.chunk.variable(symbol.name), of)
        if symbol.name in self.chunk.kernel.shared:
            return number + self.own_window(of.bits)
        return number

    def own_window(self, bits: int) -> Raw:
        """Where each warp's own shared memory begins in the window of the cluster."""
        ranks = self.take(self.chunk.rank)[:, None] * self.chunk.shows_ranks
        return (ranks << RANK_SHIFT).astype(f"u{bits // 8}")

    def write(self, dest: Register | None, of: PtxType, values: Raw, lanes: Mask) -> None:
        """Write a result to a register, extended as the type says, in some lanes."""
        if dest is None:
            return
        target = self.chunk.register(dest)
        if of.is_signed and target.dtype.itemsize > values.dtype.itemsize:
            values = values.view(f"i{values.dtype.itemsize}")
        values = values.astype(target.dtype, copy=False)
        if self.whole:
            np.copyto(target, values, where=lanes)
        else:
            target[self.rows] = np.where(lanes, values, target[self.rows])

    def address(self, operand: Address, *, ranked: bool = True) -> Addresses:
        """A memory operand as 64-bit addresses in its space; a 32-bit register stays 32 bits.

        Those in shared memory are relative: see `isa.cluster`. `ranked` says that some may be.
        """
        if isinstance(operand.base, Register):
            base = self.take(self.chunk.register(operand.base))
            moved = base + base.dtype.type(operand.offset % (1 << 8 * base.dtype.itemsize))
            found = np.asarray(moved).astype(np.uint64)
            if ranked and self.chunk.shows_ranks:
                found = relative(found, self.take(self.chunk.rank)[:, None], SHARED_WINDOW)
            return found
        if isinstance(operand.base, Symbol):
            start = self.chunk.variable(operand.base.name)
        else:
            start = operand.base.value
        number = np.uint64((start + operand.offset) % (1 << 64))
        return np.full((len(self.rows), WARP), number)


def _number(number: int, of: PtxType) -> Raw:
    if of.kind == "pred":
        return np.asarray(bool(number & 1))
    return np.asarray(number % (1 << of.bits)).astype(f"u{of.bits // 8}")
