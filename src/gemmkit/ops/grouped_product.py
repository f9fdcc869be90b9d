"""Many products of arrays in one launch: read, and multiplied where the arrays are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gemmkit.errors import UsageError
from gemmkit.loading import load
from gemmkit.ops.arrays import note_overwritten
from gemmkit.ops.grouped_warm import keep, repeated
from gemmkit.ops.groups import GroupsRequest, read_groups
from gemmkit.ops.operands import Operand
from gemmkit.ops.overlaps import Extents
from gemmkit.ops.request import Call
from gemmkit.ops.scale_numbers import as_arrays
from gemmkit.ops.tracing import compiling, needs_operator

if TYPE_CHECKING:
    from gemmkit.ops.prepared_groups import PreparedGroups

_HOST_OPTIONS = "device_memory and devices are for arrays in host memory"


def grouped_product(call: Call, held: PreparedGroups | None = None) -> Any:
    """What `grouped_matmul` returns; each array of the call is a list of them, or None.

    `held` are the prepared operands of which b are the arrays.

    Returns:
        `NotImplemented` if only an operator of PyTorch can multiply these arrays, or record it.

    Raises:
        GemmkitError: as `grouped_matmul`.
    """
    if not compiling() and call.host is None:
        again = repeated(call, held)
        if again is not None:
            return again
    if needs_operator(each for members in call.arrays.values() for each in members or ()):
        if call.host is not None:
            raise UsageError(f"{_HOST_OPTIONS}, and not for what PyTorch traces or differentiates")
        if call.scale_a is not None or call.scale_b is not None:
            raise UsageError(
                "scales of grouped_matmul are for what PyTorch neither traces nor differentiates: "
                "call it outside of torch.compile, with tensors that need no gradients"
            )
        return NotImplemented
    with_arrays = as_arrays(call)
    if with_arrays is not call:
        return grouped_product(with_arrays, held)
    groups = read_groups(
        call.arrays,
        alpha=call.alpha,
        beta=call.beta,
        epilogue=call.epilogue,
        precision=call.precision,
        prepared=held is not None,
    )
    if groups.count == 0:
        return []
    note_overwritten(*(call.out or ()), *(call.auxiliary or ()))
    ordinal = groups.operands["a"][0].device
    if call.host is not None and ordinal is not None:
        raise UsageError(f"{_HOST_OPTIONS}; these are on GPU {ordinal}")
    results = _on_host(groups, call) if ordinal is None else _on_gpu(groups, call, ordinal, held)
    if call.out is not None:
        written: list[Any] = call.out
        return written
    return [
        library.finished(each) for library, each in zip(groups.libraries["a"], results, strict=True)
    ]


def _on_gpu(
    groups: GroupsRequest, call: Call, ordinal: int, held: PreparedGroups | None
) -> list[Operand]:
    """The results of arrays on a GPU, which is not waited for."""
    load("gemmkit.ops.grouped_gpu")
    from gemmkit.ops.grouped_gpu import launch_maker, multiply
    from gemmkit.ops.product import check_device

    if call.device is not None:
        check_device(call.device, ordinal)
    results, launch = multiply(groups, ordinal, call.stream, held)
    if launch is not None:
        terms, extents = groups.terms, {**groups.extents, "out": Extents.of(results)}
        dtype = None if terms.out_dtype == terms.dtype else terms.out_dtype
        make = launch_maker(terms, ordinal)
        keep(call, launch, ordinal, extents, dtype, held, make)
    return results


def _on_host(groups: GroupsRequest, call: Call) -> list[Operand]:
    """The results of host arrays, by way of a GPU or on the emulator."""
    load("gemmkit.ops.host", "gemmkit.ops.streamed.groups")
    from gemmkit.ops.streamed.groups import multiply_host_groups

    if call.stream is not None:
        raise UsageError(
            "stream is for arrays on a GPU; products of host arrays are done when the call ends"
        )
    return multiply_host_groups(groups, call.device, call.host)
