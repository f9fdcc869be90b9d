"""What `grouped.py` multiplies: its cases, with matrices on the device and expected results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.bench.timer import Contender
from gemmkit.devices.cuda import copy_work
from gemmkit.devices.device import Buffer, TimedDevice
from gemmkit.dtypes import FLOAT_BYTES
from gemmkit.problem import GemmProblem

MOST_SETS = 16
LARGEST_VALUE = 4

Shape = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Case:
    """Products of a name; tight rows, matrices of a kind side by side."""

    name: str
    shapes: tuple[Shape, ...]

    @property
    def alike(self) -> bool:
        return len(set(self.shapes)) == 1

    @property
    def problem(self) -> GemmProblem:
        # Rows of A have k elements, those of B and C have n; matrices follow without gaps.
        odd = any(size % 4 for _, n, k in self.shapes for size in (n, k))
        return GemmProblem.of_groups(self.shapes, alignment=FLOAT_BYTES if odd else 16)


def batch(side: int, count: int) -> Case:
    return Case(f"{count} x {side}^3", ((side, side, side),) * count)


def experts(name: str, rows: Sequence[int], n: int, k: int) -> Case:
    return Case(name, tuple((int(m), n, k) for m in rows))


def cases(seed: int = 0) -> list[Case]:
    """All, the same for a seed."""
    rng = np.random.default_rng(seed)
    # How many tokens of a batch the router sends to each expert.
    few = rng.multinomial(4096, rng.dirichlet(np.full(8, 4.0)))
    many = rng.multinomial(16384, rng.dirichlet(np.full(64, 2.0)))
    any_sizes = rng.integers(16, 129, (1000, 3))
    return [
        *(batch(32, count) for count in (1000, 4000, 16000)),
        *(batch(64, count) for count in (1000, 4000)),
        *(batch(128, count) for count in (1000, 4000)),
        *(batch(256, count) for count in (250, 1000)),
        batch(48, 2000),
        batch(33, 4000),
        batch(100, 1000),
        experts("8 experts, 4096 tokens, 2048 -> 4096", few, 4096, 2048),
        experts("64 experts, 16384 tokens, 2048 -> 1408", many, 1408, 2048),
        experts("64 experts, 0 to 8 tokens each", rng.integers(0, 9, 64), 1408, 2048),
        Case("1000 sizes, 16 to 128, multiples of 4", _shapes(any_sizes // 4 * 4)),
        Case("1000 sizes, 16 to 128", _shapes(any_sizes)),
    ]


def _shapes(sizes: NDArray[np.int64]) -> tuple[Shape, ...]:
    return tuple((int(m), int(n), int(k)) for m, n, k in sizes)


@dataclass(frozen=True)
class Matrices:
    """One set of a case's matrices on the device, by `A`, `B` and `C`."""

    buffers: dict[str, Buffer]
    offsets: dict[str, NDArray[np.int64]]

    def addresses(self, name: str) -> NDArray[np.uint64]:
        places = self.buffers[name].address + FLOAT_BYTES * self.offsets[name]
        return places.astype(np.uint64)


@dataclass
class Workload:
    """A case with its values, expected results and sets of matrices."""

    case: Case
    device: TimedDevice
    kept: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.problem = self.case.problem
        m, n, k = np.array(self.case.shapes, np.int64).T
        sizes = {"A": m * k, "B": k * n, "C": m * n}
        self.offsets = {name: np.cumsum(each) - each for name, each in sizes.items()}
        rng = np.random.default_rng(1)
        self.values = {
            name: rng.integers(
                -LARGEST_VALUE, LARGEST_VALUE, int(sizes[name].sum()), np.int8, endpoint=True
            ).astype(np.float32)
            for name in "AB"
        }
        self.poison = np.full(int(sizes["C"].sum()), np.nan, np.float32)
        # Sums of such integers are exact in fp32, in any order.
        self.expected = np.concatenate([a @ b for a, b in self._operands()], axis=None)
        self.sets = [self._set() for _ in range(self._count())]

    def _operands(self) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        for number, (m, n, k) in enumerate(self.case.shapes):
            a, b = (self.values[name][self.offsets[name][number] :] for name in "AB")
            yield a[: m * k].reshape(m, k), b[: k * n].reshape(k, n)

    def _count(self) -> int:
        wanted = math.ceil(2 * self.device.spec.l2_bytes / max(self.problem.minimal_bytes, 1))
        return min(max(wanted, 1), MOST_SETS)

    def _set(self) -> Matrices:
        values = {**self.values, "C": self.poison}
        buffers = {name: self.device.upload(each) for name, each in values.items()}
        self.kept += buffers.values()
        return Matrices(buffers, self.offsets)

    def upload(self, array: NDArray[Any]) -> int:
        """The address of a copy that lives as long as the workload."""
        buffer = self.device.upload(array)
        self.kept.append(buffer)
        return buffer.address

    def wrong(self, contender: Contender) -> str:
        """What is wrong with a contender's results, as a graph replays it; empty if nothing is.

        Raises:
            Exception: it cannot be recorded.
        """
        first = self.sets[0].buffers["C"]
        poison = self.device.upload(self.poison)
        self.device.record([copy_work(poison, first), contender[0]], self.kept).microseconds()
        result = np.empty_like(self.poison)
        self.device.download(first, result)
        odd = np.flatnonzero(result != self.expected)
        if not odd.size:
            return ""
        place = odd[0]
        return (
            f"{odd.size} of {result.size} elements are wrong: number {place} is {result[place]}, "
            f"not {self.expected[place]}"
        )
