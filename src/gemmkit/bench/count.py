"""`count`: run a kernel once on the emulator and read its counters by short names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gemmkit.bench.run import run_kernel
from gemmkit.devices.choose import open_device
from gemmkit.errors import UsageError, nearest
from gemmkit.gpu import GpuSpec
from gemmkit.jit.ptxas import HOW_TO_GET
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import Shape, read_problem
from gemmkit.record import OccupancyRecord, Record, ResourceRecord

_LOADS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
_LOAD_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
_STORES = "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"
_STORE_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"
_SHARED_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
_BANK_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"


@dataclass(frozen=True, repr=False)
class Counters:
    """The counters of one launch: the main ones by short names, every metric by its full name.

    `counters["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"]` is Nsight Compute's metric of that
    name. `record` has them all, and whether the result is correct. Registers, spills, shared memory
    and occupancy raise a `UsageError` if they are unknown: for PTX of another front end, on a
    machine without ptxas.
    """

    record: Record

    @property
    def load_requests(self) -> int:
        """Requests of global loads, including cp.async."""
        return self._sum(_LOADS)

    @property
    def load_sectors(self) -> int:
        """32-byte sectors of global loads."""
        return self._sum(_LOAD_SECTORS)

    @property
    def sectors_per_request(self) -> float:
        """Sectors per request of global loads: 4 for 32 adjacent floats, at most 32."""
        return _ratio(self.load_sectors, self.load_requests)

    @property
    def store_requests(self) -> int:
        """Requests of global stores."""
        return self._sum(_STORES)

    @property
    def store_sectors(self) -> int:
        """32-byte sectors of global stores."""
        return self._sum(_STORE_SECTORS)

    @property
    def sectors_per_store_request(self) -> float:
        """Sectors per request of global stores."""
        return _ratio(self.store_sectors, self.store_requests)

    @property
    def shared_wavefronts(self) -> int:
        """Wavefronts of shared memory, of loads and stores."""
        return sum(self._sum(_SHARED_WAVEFRONTS.format(each)) for each in ("ld", "st"))

    @property
    def bank_conflicts(self) -> int:
        """Wavefronts of shared memory that are due to bank conflicts."""
        return sum(self._sum(_BANK_CONFLICTS.format(each)) for each in ("ld", "st"))

    @property
    def registers(self) -> int:
        """Registers per thread."""
        return self._resources.registers

    @property
    def spill_bytes(self) -> int:
        """Bytes of spill stores and loads per thread."""
        return self._resources.spill_bytes

    @property
    def local_bytes(self) -> int:
        """Bytes of local memory per thread: its stack, including spills."""
        return self._resources.local_bytes

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory per block, static and dynamic."""
        return self._resources.shared_bytes

    @property
    def occupancy(self) -> float:
        """Theoretical occupancy: resident warps / the most that an SM can hold, 0 to 1."""
        return self._occupancy.theoretical

    @property
    def waves_per_sm(self) -> float:
        """Blocks of the grid / blocks that the board holds at once."""
        return self._occupancy.waves_per_sm

    def __getitem__(self, metric: str) -> float:
        try:
            return self.record.counters[metric]
        except KeyError:
            near = nearest(metric, self.record.counters, 3)
            hint = f": did you mean {' or '.join(near)}?" if near else ""
            raise UsageError(f"there is no metric '{metric}'{hint}") from None

    def __repr__(self) -> str:
        shape = self.record.problem.shape
        shown = ("sectors_per_request", "sectors_per_store_request", "bank_conflicts")
        counted = ", ".join(f"{name} {getattr(self, name):,g}" for name in shown)
        return f"<{self.record.kernel} at {shape}: {counted}>"

    def _sum(self, metric: str) -> int:
        # An empty grid counts nothing.
        return round(self.record.counters.get(metric, 0))

    @property
    def _resources(self) -> ResourceRecord:
        if self.record.resources is None:
            raise _not_known(self.record)
        return self.record.resources

    @property
    def _occupancy(self) -> OccupancyRecord:
        if self.record.occupancy is None:
            raise _not_known(self.record)
        return self.record.occupancy


def count(
    kernel: str | Kernel,
    problem: Shape,
    *,
    config: Mapping[str, int] | None = None,
    gpu: GpuSpec | str | None = None,
    seed: int = 0,
    cache_dir: Path | None = None,
) -> Counters:
    """Run a kernel on the emulator and return what it counted.

    Args:
        kernel: a rung's name, or a kernel of your own.
        problem: a string `MxNxK`, a number for a cube, (M, N, K), or a problem.
        config: keys of the configuration to change, such as `{"BM": 64}`.
        gpu: the target board, by default an RTX 3090.
        seed: seed for the inputs.
        cache_dir: root of the compiler's cache; by default the user's.

    Raises:
        UsageError: an argument is not valid.
        UnsupportedProblem: the kernel refuses the problem or the configuration.
        CompileError: the kernel does not compile.
        UnsupportedInstruction: it contains an instruction that the emulator does not support.
        DeviceError: the kernel failed, for example by an out-of-bounds access.
    """
    found = find_kernel(kernel) if isinstance(kernel, str) else kernel
    record = run_kernel(
        found,
        read_problem(problem),
        open_device("emulator", gpu),
        config=found.configure(config or {}),
        seed=seed,
        cache_dir=cache_dir,
    )
    return Counters(record)


def _ratio(count: int, requests: int) -> float:
    return count / requests if requests else 0.0


def _not_known(record: Record) -> UsageError:
    return UsageError(
        f"what '{record.kernel}' takes of registers and shared memory is not known: it came as "
        f"PTX, and there is no ptxas here that reads it; {HOW_TO_GET}"
    )
