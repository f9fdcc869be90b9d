"""`Operands`: a problem's matrices in a device's memory, and a kernel's arguments for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from gemmkit.devices.device import Buffer, Device
from gemmkit.devices.scalars import rounded
from gemmkit.dtypes import ITEM_BYTES
from gemmkit.problem import GemmProblem
from gemmkit.storage import Layout, Stored, dtype_of, placements, scale_layouts, scale_pitches

# What a launch writes.
RESULTS = ("c", "auxiliary")


class _Nowhere:
    """Memory that is not there yet."""

    address = nbytes = 0


NOWHERE: Buffer = _Nowhere()


@dataclass(frozen=True, slots=True)
class Further:
    """A further matrix of an epilogue, row-major and shaped like C; those of a batch too.

    `ld` and `stride` are elements from a row to the next, and from a matrix to the next.
    """

    buffer: Buffer
    ld: int
    stride: int = 0


@dataclass(frozen=True, slots=True)
class ScaleArray:
    """The scales of A or B: elements from those of a line of the operand, or of a block of lines,
    to the next (`ld`, 0 where all lines share them), from a chunk of k to the next (`step`, 0
    where all chunks do), and from a product to the next."""

    buffer: Buffer
    ld: int
    step: int
    stride: int = 0

    @classmethod
    def of(cls, problem: GemmProblem, name: str, buffer: Buffer) -> ScaleArray:
        """Those that lie as in `storage.placements`; in groups, a table says how."""
        if problem.groups is not None:
            return cls(buffer, 0, 0)
        place = scale_layouts(problem)[name]
        return cls(buffer, *scale_pitches(problem, name, place), place.stride)


@dataclass(frozen=True, slots=True)
class Operands:
    """Device memory of A, B and C, and of their scales and the epilogue's operands where there are
    any."""

    a: Buffer
    b: Buffer
    c: Buffer
    bias: Buffer | None = None
    residual: Further | None = None
    auxiliary: Further | None = None
    scale_a: ScaleArray | None = None
    scale_b: ScaleArray | None = None
    scale_result: Buffer | None = None

    @classmethod
    def upload(
        cls,
        device: Device,
        problem: GemmProblem,
        arrays: Mapping[str, Stored],
        *,
        reads_a_and_b: bool = True,
        results: bool = True,
    ) -> Operands:
        """Copies of host arrays, laid out as in `storage.placements`.

        Args:
            device: where to.
            problem: whose matrices they are; C is never read where its β is 0.
            arrays: "a", "b" and "c", and of "bias", "residual", "auxiliary", "scale_a", "scale_b"
                and "scale_result" those there are.
            reads_a_and_b: whether A and B count as written before the launch.
            results: whether C and the auxiliary output get memory, too; else `with_results` does.

        Raises:
            DeviceError: there is not enough memory.
        """
        read = dict.fromkeys(("a", "b", "scale_a", "scale_b"), reads_a_and_b)
        written = {**read, "c": problem.beta != 0}
        buffers = {
            name: device.upload(array, initialized=written.get(name, name not in RESULTS))
            if results or name not in RESULTS
            else NOWHERE
            for name, array in arrays.items()
        }
        return cls.of(problem, buffers)

    @classmethod
    def zeros(cls, device: Device, problem: GemmProblem) -> Operands:
        """Matrices of the right sizes that are all zero, for launches whose results do not matter:
        what a kernel does may depend on whether its operands are finite.

        Raises:
            DeviceError: there is not enough memory.
        """
        sizes = {
            name: each.size * ITEM_BYTES[dtype_of(problem, name)]
            for name, each in placements(problem).items()
        }
        zeros = {name: np.zeros(size, np.uint8) for name, size in sizes.items()}
        return cls.of(problem, {name: device.upload(each) for name, each in zeros.items()})

    @classmethod
    def of(cls, problem: GemmProblem, buffers: Mapping[str, Buffer]) -> Operands:
        """Memory whose matrices are laid out as in `storage.placements`, by its names."""
        further = {
            # In groups, matrices have no common leading dimension or stride; a table holds them.
            name: Further(buffers[name], place.ld, place.stride)
            if isinstance(place, Layout)
            else Further(buffers[name], 0)
            for name, place in placements(problem).items()
            if name in ("residual", "auxiliary") and name in buffers
        }
        scales = {
            name: ScaleArray.of(problem, name, buffers[name])
            for name in ("scale_a", "scale_b")
            if name in buffers
        }
        return cls(
            buffers["a"],
            buffers["b"],
            buffers["c"],
            buffers.get("bias"),
            further.get("residual"),
            further.get("auxiliary"),
            scales.get("scale_a"),
            scales.get("scale_b"),
            buffers.get("scale_result"),
        )

    def with_results(
        self, device: Device, problem: GemmProblem, inputs: Mapping[str, Stored]
    ) -> Operands:
        """The same operands with the problem's results in memory of their own, as the host arrays
        hold them.

        The problem may have another epilogue than that of these operands: without an auxiliary
        output, there is none among the results.

        Raises:
            DeviceError: there is not enough memory.
        """
        c = device.upload(inputs["c"], initialized=problem.beta != 0)
        auxiliary = self.auxiliary if problem.epilogue.auxiliary else None
        if auxiliary is not None:
            buffer = device.upload(inputs["auxiliary"], initialized=False)
            auxiliary = replace(auxiliary, buffer=buffer)
        return replace(self, c=c, auxiliary=auxiliary)

    def results(self, device: Device, inputs: Mapping[str, Stored]) -> tuple[Stored, Stored | None]:
        """Storage of C, and of the auxiliary output if there is one, as long as the host arrays.

        Raises:
            DeviceError: the launch before failed.
        """
        c = np.empty_like(inputs["c"])
        device.download(self.c, c)
        if self.auxiliary is None:
            return c, None
        auxiliary = np.empty_like(inputs["auxiliary"])
        device.download(self.auxiliary.buffer, auxiliary)
        return c, auxiliary

    def inputs(self, device: Device, arrays: Mapping[str, Stored]) -> dict[str, Stored]:
        """Storage of A, B, their scales, the bias and the residual as a launch left it, as long as
        the host's.

        Raises:
            DeviceError: the launch before failed.
        """
        residual = self.residual.buffer if self.residual is not None else None
        buffers = {"a": self.a, "b": self.b, "bias": self.bias, "residual": residual}
        buffers["scale_result"] = self.scale_result
        for name, scales in (("scale_a", self.scale_a), ("scale_b", self.scale_b)):
            buffers[name] = scales.buffer if scales is not None else None
        found: dict[str, Stored] = {}
        for name, buffer in buffers.items():
            if buffer is not None and name in arrays:
                found[name] = np.empty_like(arrays[name])
                device.download(buffer, found[name])
        return found

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All that there are."""
        named = (self.residual, self.auxiliary, self.scale_a, self.scale_b)
        further = (each.buffer for each in named if each is not None)
        alone = (each for each in (self.bias, self.scale_result) if each is not None)
        return (self.a, self.b, self.c, *alone, *further)


def bind_arguments(problem: GemmProblem, operands: Operands) -> dict[str, int | float]:
    """The value of every argument name: sizes, pitches and strides in elements, addresses.

    α and β are rounded to the type of the sums, whatever the parameter's type.

    Those of the memory that a launch needs besides are a `Scratch`'s.
    """
    stride_a, stride_b, stride_c = problem.strides
    bias, scale_result = operands.bias, operands.scale_result
    return {
        "M": problem.m,
        "N": problem.n,
        "K": problem.k,
        "alpha": rounded(problem.alpha, problem.sum_dtype),
        "A": operands.a.address,
        "lda": problem.lda,
        "B": operands.b.address,
        "ldb": problem.ldb,
        "beta": rounded(problem.beta, problem.sum_dtype),
        "C": operands.c.address,
        "ldc": problem.ldc,
        "bias": bias.address if bias is not None else 0,
        "batch": problem.batch,
        "stride_a": stride_a,
        "stride_b": stride_b,
        "stride_c": stride_c,
        **_further("residual", "r", operands.residual),
        **_further("auxiliary", "x", operands.auxiliary),
        "scale": problem.epilogue.scale,
        "scale_result": scale_result.address if scale_result is not None else 0,
        **problem.epilogue.arguments,
        **scale_arguments(problem, operands.scale_a, operands.scale_b),
    }


def scale_arguments(
    problem: GemmProblem, scale_a: ScaleArray | None, scale_b: ScaleArray | None
) -> dict[str, int]:
    """Those of scales; none of a problem without. Those of an operand that has none beside one that
    has are 0."""
    if not problem.scales:
        return {}
    found: dict[str, int] = {}
    for name, each in (("scale_a", scale_a), ("scale_b", scale_b)):
        found |= {
            name: each.buffer.address if each is not None else 0,
            f"{name}_ld": each.ld if each is not None else 0,
            f"{name}_step": each.step if each is not None else 0,
            f"{name}_stride": each.stride if each is not None else 0,
        }
    return found


def _further(name: str, letter: str, matrix: Further | None) -> dict[str, int | float]:
    place = (matrix.buffer.address, matrix.ld, matrix.stride) if matrix is not None else (0, 0, 0)
    return dict(zip((name, f"ld{letter}", f"stride_{letter}"), place, strict=True))
