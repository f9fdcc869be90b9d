"""The libraries that `grouped.py` compares with: cuBLAS's batches and groups, and PyTorch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from grouped_work import Matrices, Workload

from gemmkit.bench.cublas_peer import WORKSPACE_BYTES
from gemmkit.bench.timer import Contender
from gemmkit.bench.torch_peer import device_tensor
from gemmkit.devices.device import TimedDevice, Work

# Warm calls of which the median is reported.
HOST_CALLS = 9

# A contender's name, and what makes it.
Maker = tuple[str, Callable[[], Contender]]


class Cublas:
    """cublasSgemmBatched and cublasSgemmGroupedBatched through nvmath-python.

    Row-major C = A·B is column-major Cᵀ = Bᵀ·Aᵀ, so both take B as their first operand.
    """

    def __init__(self, device: TimedDevice) -> None:
        from nvmath.bindings import cublas

        self._cublas, self._handle = cublas, cublas.create()
        self._workspace = device.empty(WORKSPACE_BYTES)
        version = cublas.get_version(self._handle)
        self.name = f"cuBLAS {version // 10000}.{version // 100 % 100}.{version % 100}"
        self._one, self._zero = np.ones(1, np.float32), np.zeros(1, np.float32)

    def contenders(self, work: Workload) -> Iterator[Maker]:
        if work.case.alike:
            yield f"{self.name} (cublasSgemmBatched)", lambda: self._each(work, self._batched)
        grouped_name = f"{self.name} (cublasSgemmGroupedBatched)"
        yield grouped_name, lambda: self._each(work, self._grouped)

    def host_us(self, work: Workload) -> dict[str, float]:  # noqa: ARG002 (of tensors alone)
        """Nothing: its calls take no arrays."""
        return {}

    def _each(self, work: Workload, make: Callable[[Workload, Matrices], Work]) -> Contender:
        return [make(work, matrices) for matrices in work.sets]

    def _ready(self, stream: Any) -> None:
        self._cublas.set_stream(self._handle, int(stream.handle))
        # After each set_stream, else it takes memory of its own in the middle of a recording.
        self._cublas.set_workspace(self._handle, self._workspace.address, WORKSPACE_BYTES)

    def _batched(self, work: Workload, matrices: Matrices) -> Work:
        m, n, k = work.case.shapes[0]
        a, b, c = (work.upload(matrices.addresses(name)) for name in "ABC")
        plain, count = self._cublas.Operation.N, len(work.case.shapes)

        def enqueue(stream: Any) -> None:
            self._ready(stream)
            self._cublas.sgemm_batched(
                *(self._handle, plain, plain, n, m, k),
                *(self._one.ctypes.data, b, n, a, k, self._zero.ctypes.data, c, n, count),
            )

        return enqueue

    def _grouped(self, work: Workload, matrices: Matrices) -> Work:
        # Products of one size are a group; those without an element or a k are left out.
        shapes = np.array(work.case.shapes, np.int32)
        some = np.flatnonzero((shapes > 0).all(axis=1))
        kinds, belongs = np.unique(shapes[some], axis=0, return_inverse=True)
        order = some[np.argsort(belongs.reshape(-1), kind="stable")]
        sizes = np.bincount(belongs.reshape(-1)).astype(np.int32)
        a, b, c = (work.upload(matrices.addresses(name)[order]) for name in "ABC")
        m, n, k = (np.ascontiguousarray(each) for each in kinds.T)
        plain = np.full(len(sizes), int(self._cublas.Operation.N), np.int32)
        one, zero = (np.full(len(sizes), value, np.float32) for value in (1, 0))
        arrays = [plain, m, n, k, one, zero, sizes]
        # Graphs may read them at each replay.
        work.kept.append(arrays)
        at_plain, at_m, at_n, at_k, at_one, at_zero, at_sizes = (x.ctypes.data for x in arrays)

        def enqueue(stream: Any) -> None:
            self._ready(stream)
            self._cublas.sgemm_grouped_batched(
                *(self._handle, at_plain, at_plain, at_n, at_m, at_k, at_one),
                *(b, at_n, a, at_k, at_zero, c, at_n, len(sizes), at_sizes),
            )

        return enqueue


class Torch:
    """torch.bmm where all sizes are equal, and a torch.mm for each product; both in IEEE fp32."""

    def __init__(self, device: TimedDevice) -> None:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = False
        self._torch, self._ordinal = torch, device.stream.device.device_id
        self.name = f"PyTorch {torch.__version__}"

    def contenders(self, work: Workload) -> Iterator[Maker]:
        if work.case.alike:
            yield f"{self.name} (torch.bmm)", lambda: [self._bmm(work, x) for x in work.sets]
        yield f"{self.name} (torch.mm each)", lambda: [self._mm(work, x) for x in work.sets]

    def _bmm(self, work: Workload, matrices: Matrices) -> Work:
        m, n, k = work.case.shapes[0]
        count = len(work.case.shapes)
        a, b, c = (
            device_tensor(
                *(self._torch, self._ordinal, matrices.buffers[name].address),
                *(rows, columns, columns, (count, rows * columns)),
            )
            for name, rows, columns in (("A", m, k), ("B", k, n), ("C", m, n))
        )
        return self._on(lambda: self._torch.bmm(a, b, out=c))

    def _mm(self, work: Workload, matrices: Matrices) -> Work:
        operands = self._tensors(work, matrices)

        def multiply() -> None:
            for a, b, c in operands:
                self._torch.mm(a, b, out=c)

        return self._on(multiply)

    def host_us(self, work: Workload) -> dict[str, float]:
        """Microseconds until a warm call returns, for all products, with nothing on the GPU."""
        from gemmkit import grouped_matmul

        operands = self._tensors(work, work.sets[0])
        a, b, c = ([each[place] for each in operands] for place in range(3))

        def each_by_itself() -> None:
            for x, y, z in operands:
                self._torch.mm(x, y, out=z)

        calls: dict[str, Callable[[], object]] = {
            "gemmkit.grouped_matmul": lambda: grouped_matmul(a, b, out=c),
            "torch.mm each": each_by_itself,
        }
        found = {}
        for name, call in calls.items():
            seen = []
            for _ in range(HOST_CALLS):
                self._torch.cuda.synchronize()
                start = time.perf_counter()
                call()
                seen.append(1e6 * (time.perf_counter() - start))
            found[name] = statistics.median(seen)
        return found

    def _tensors(self, work: Workload, matrices: Matrices) -> list[tuple[Any, Any, Any]]:
        """A, B and C of each product that has something to multiply."""
        at = {name: matrices.addresses(name).tolist() for name in "ABC"}

        def tensor(name: str, number: int, rows: int, columns: int) -> Any:
            place = at[name][number]
            return device_tensor(self._torch, self._ordinal, place, (rows, columns), (columns, 1))

        return [
            (tensor("A", number, m, k), tensor("B", number, k, n), tensor("C", number, m, n))
            for number, (m, n, k) in enumerate(work.case.shapes)
            if m and n and k
        ]

    def _on(self, compute: Callable[[], object]) -> Work:
        def enqueue(stream: Any) -> None:
            outer = self._torch.cuda.ExternalStream(int(stream.handle), device=self._ordinal)
            with self._torch.cuda.stream(outer):
                compute()

        return enqueue
