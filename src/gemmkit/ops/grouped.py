"""`grouped_matmul`: many products of different shapes in one launch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.epilogue import Epilogue
from gemmkit.errors import UsageError
from gemmkit.loading import load
from gemmkit.ops.arrays import bits, note_overwritten
from gemmkit.ops.groups import Groups, listed, read_groups
from gemmkit.ops.operands import Operand
from gemmkit.ops.request import WRITTEN
from gemmkit.ops.tracing import needs_operator
from gemmkit.problem import FLOAT_BYTES

if TYPE_CHECKING:
    from gemmkit.devices.device import Buffer, Device
    from gemmkit.grouped_problem import GroupedProblem
    from gemmkit.ops.host import Carrier

# Matrices that are brought to a device begin at multiples of so many elements, 16 bytes.
_VECTOR = 4


def grouped_matmul(
    as_: Iterable[Any],
    bs: Iterable[Any],
    *,
    out: Iterable[Any] | None = None,
    alpha: float = 1,
    c: Iterable[Any] | None = None,
    beta: float = 0,
    epilogue: Epilogue | str | None = None,
    bias: Iterable[Any] | None = None,
    residual: Iterable[Any] | None = None,
    auxiliary: Iterable[Any] | None = None,
    stream: Any = None,
    device: Device | str | None = None,
) -> list[Any]:
    """Many products scale · activation(alpha · a @ b + beta · c + bias) + residual in one launch.

    Each has a shape of its own, which may be empty; alpha, beta and the epilogue are those of all.
    Products of one shape are BLAS's batch by arrays of pointers.

    Args:
        as_: matrices of m×k float32 elements, of any library that `matmul` takes. A stack of
            matrices is a sequence of them.
        bs: as many matrices of k×n, in the same place.
        out: matrices of m×n where results are written; they may be strided, but overlap neither
            each other nor what is read. By default new arrays, each of the kind of its a.
        alpha: a number; if it is 0, as_ and bs are not read.
        c: matrices of m×n; `out` itself may be it.
        beta: a number; if it is 0, c is not read.
        epilogue: as for `matmul`.
        bias: vectors of n elements; with an epilogue of a row bias, of m.
        residual: matrices of m×n.
        auxiliary: matrices of m×n, which get the activation's arguments.
        stream: as for `matmul`.
        device: as for `matmul`.

    Returns:
        The results in the order of the products: those of `out`, or new arrays. On a GPU they are
        not waited for.

    Raises:
        UsageError: arguments that do not go together, the text naming the product; nothing has been
            launched then.
        UnsupportedProblem: the board has no cp.async (compute capability below 8.0), or sizes pass
            what a kernel can count.
        CompileError, CompilerMissing, DeviceError: as `matmul`.
    """
    written = None if out is None else listed("out", out)
    arrays = {
        "a": listed("a", as_),
        "b": listed("b", bs),
        "out": written,
        # What `out` holds may be added to.
        "c": written if c is out else c if c is None else listed("c", c),
        "bias": bias if bias is None else listed("bias", bias),
        "residual": residual if residual is None else listed("residual", residual),
        "auxiliary": auxiliary if auxiliary is None else listed("auxiliary", auxiliary),
    }
    if needs_operator(each for members in arrays.values() for each in members or ()):
        from gemmkit.ops.libraries.torch_group_operators import multiply

        return multiply(arrays, alpha, beta, epilogue, stream, device)
    groups = read_groups(arrays, alpha=alpha, beta=beta, epilogue=epilogue)
    if groups.count == 0:
        return []
    for role in WRITTEN:
        note_overwritten(*(arrays[role] or ()))
    if groups.operands["a"][0].device is None:
        results = _on_host(groups, stream, device)
    else:
        results = _on_gpu(groups, stream, device)
    if written is not None:
        return written
    return [
        library.finished(each) for library, each in zip(groups.libraries["a"], results, strict=True)
    ]


def _on_gpu(groups: Groups, stream: Any, device: Device | str | None) -> list[Operand]:
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
    load("gemmkit.ops.host", "gemmkit.kernels.grouped")
    from gemmkit.ops.host import carrier_on

    if stream is not None:
        raise UsageError(
            "stream is for arrays on a GPU; products of host arrays are done when the call ends"
        )
    with carrier_on(device) as carrier:
        return _carried(groups, carrier)


def _carried(groups: Groups, carrier: Carrier) -> list[Operand]:
    """Bring all matrices to a device, one after the other, compute there, and fetch the results."""
    from gemmkit.kernels import grouped
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
    plan = grouped.plan(problem, config, carrier.spec)
    if plan.blocks:
        table = grouped.describe(
            *(problem, config, addresses("a"), addresses("b"), addresses("out")),
            bias=addresses("bias"),
            residual=addresses("residual"),
            ldr=problem.ldc,
            auxiliary=addresses("auxiliary"),
            ldx=problem.ldc,
        )
        listed = carrier.upload(table)
        bound = grouped.arguments(problem, table, listed.address)
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
