"""Products of different shapes: on a GPU where they are, of host arrays by way of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.errors import UsageError
from gemmkit.loading import load
from gemmkit.ops.arrays import bits, note_overwritten
from gemmkit.ops.groups import Groups, read_groups
from gemmkit.ops.operands import Operand
from gemmkit.ops.request import WRITTEN, Call
from gemmkit.problem import FLOAT_BYTES

if TYPE_CHECKING:
    from gemmkit.devices.device import Buffer, Device
    from gemmkit.grouped_problem import GroupedProblem
    from gemmkit.ops.carriers import Carrier

# Matrices that are brought to a device begin at multiples of so many elements, 16 bytes.
_VECTOR = 4


def grouped_product(call: Call) -> list[Any]:
    """What `grouped_matmul` returns; each array of the call is a list of them, or None.

    Raises:
        GemmkitError: as `grouped_matmul`.
    """
    arrays = call.arrays
    groups = read_groups(arrays, alpha=call.alpha, beta=call.beta, epilogue=call.epilogue)
    if groups.count == 0:
        return []
    for role in WRITTEN:
        note_overwritten(*(arrays[role] or ()))
    if groups.operands["a"][0].device is None:
        results = _on_host(groups, call.stream, call.device)
    else:
        results = _on_gpu(groups, call.stream, call.device)
    if call.out is not None:
        written: list[Any] = call.out
        return written
    return [
        library.finished(each) for library, each in zip(groups.libraries["a"], results, strict=True)
    ]


def _on_gpu(groups: Groups, stream: Any, device: Device | str | None) -> list[Operand]:
    load("gemmkit.ops.grouped_gpu")
    from gemmkit.ops.grouped_gpu import multiply
    from gemmkit.ops.product import check_device

    ordinal = groups.operands["a"][0].device
    assert ordinal is not None
    if device is not None:
        check_device(device, ordinal)
    return multiply(groups, ordinal, stream)


# --- arrays in host memory ----------------------------------------------------------------------


def _on_host(groups: Groups, stream: Any, device: Device | str | None) -> list[Operand]:
    """The results of host arrays, by way of a GPU or on the emulator."""
    load("gemmkit.ops.carriers", "gemmkit.kernels.production.gemm_grouped")
    from gemmkit.ops.carriers import carrier_on

    if stream is not None:
        raise UsageError(
            "stream is for arrays on a GPU; products of host arrays are done when the call ends"
        )
    with carrier_on(device) as carrier:
        return _carried(groups, carrier)


def _carried(groups: Groups, carrier: Carrier) -> list[Operand]:
    """Bring all matrices to a device, one after the other, compute there, and fetch the results."""
    from gemmkit.kernels.production import gemm_grouped
    from gemmkit.ops.compiled import binary_of

    problem = _problem(groups, carrier.alignment or FLOAT_BYTES)
    operands = groups.operands
    filled = [bool(m and n) for m, n in zip(groups.m, groups.n, strict=True)]
    packs = {
        role: _Pack(
            # What an empty result would be computed from is not brought there.
            [each.view.shape if some else (0,) for each, some in zip(members, filled, strict=True)]
        )
        for role, members in operands.items()
    }
    packs.setdefault("out", _Pack(list(zip(groups.m, groups.n, strict=True))))
    buffers: dict[str, Buffer] = {}
    for role, pack in packs.items():
        source = {"out": "c"}.get(role, role)
        if role == "auxiliary" or source not in operands:
            buffers[role] = carrier.empty(pack.size * FLOAT_BYTES)
        elif role != "c":
            buffers[role] = carrier.upload(pack.packed(operands[source]))

    def addresses(role: str) -> NDArray[np.uint64] | int:
        if role not in buffers:
            return 0
        return (buffers[role].address + FLOAT_BYTES * packs[role].offsets).astype(np.uint64)

    config = carrier.tiles(problem)
    plan = gemm_grouped.plan(problem, config, carrier.spec)
    if plan.blocks:
        table = gemm_grouped.describe(
            *(problem, config, addresses("a"), addresses("b"), addresses("out")),
            bias=addresses("bias"),
            residual=addresses("residual"),
            ldr=problem.ldc,
            auxiliary=addresses("auxiliary"),
            ldx=problem.ldc,
        )
        listed = carrier.upload(table)
        bound = gemm_grouped.arguments(problem, table, listed.address)
        carrier.launch(plan, binary_of(plan, carrier.spec), bound)
    results = operands.get("out") or _new_results(groups)
    for role, members in (("out", results), ("auxiliary", operands.get("auxiliary", []))):
        if members:
            found = np.empty(packs[role].size, np.uint32)
            carrier.download(buffers[role], found)
            packs[role].unpack(found, members)
    return results


class _Pack:
    """Arrays of some shapes, one after the other in one, each aligned; `offsets` in elements."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        self.shapes = shapes
        sizes = np.array([np.prod(each, dtype=np.int64) for each in shapes], np.int64)
        self.sizes = sizes.tolist()
        places = -(-sizes // _VECTOR) * _VECTOR
        self.offsets = np.cumsum(places) - places
        self.size = int(places.sum())

    def packed(self, members: list[Operand]) -> NDArray[np.uint32]:
        """The elements of arrays of these shapes."""
        found = np.zeros(self.size, np.uint32)
        for place, each in zip(self._places(found), members, strict=True):
            if place.size:
                place[...] = bits(each)
        return found

    def unpack(self, found: NDArray[np.uint32], members: list[Operand]) -> None:
        """The way back."""
        for place, each in zip(self._places(found), members, strict=True):
            if place.size:
                bits(each)[...] = place

    def _places(self, packed: NDArray[np.uint32]) -> list[NDArray[np.uint32]]:
        return [
            packed[offset : offset + size].reshape(shape)
            for offset, size, shape in zip(self.offsets, self.sizes, self.shapes, strict=True)
        ]


def _problem(groups: Groups, alignment: int) -> GroupedProblem:
    """The products of matrices in tight rows."""
    from gemmkit.grouped_problem import GroupedProblem

    tight = np.zeros_like(groups.m)
    terms = groups.terms
    return GroupedProblem(
        *(groups.m, groups.n, groups.k, tight, tight, tight, terms.alpha, terms.beta),
        epilogue=terms.epilogue,
        alignment=min(alignment, FLOAT_BYTES * _VECTOR),
    )


def _new_results(groups: Groups) -> list[Operand]:
    return [
        library.empty(a, (int(m), int(n)), "float32", None)
        for library, a, m, n in zip(
            groups.libraries["a"], groups.operands["a"], groups.m, groups.n, strict=True
        )
    ]
