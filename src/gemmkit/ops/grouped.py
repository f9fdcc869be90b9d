"""`grouped_matmul`: many products of different shapes in one launch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gemmkit.epilogue import Epilogue
from gemmkit.loading import load
from gemmkit.ops.grouped_product import grouped_product
from gemmkit.ops.groups import listed
from gemmkit.ops.prepared_groups import PreparedGroups, taken_groups
from gemmkit.ops.request import Call, HostOptions
from gemmkit.ops.scale_numbers import without_numbers
from gemmkit.ops.tracing import recordable

if TYPE_CHECKING:
    from gemmkit.devices.device import Device


@recordable("out", "auxiliary")
def grouped_matmul(
    as_: Iterable[Any],
    bs: Iterable[Any] | PreparedGroups,
    *,
    out: Iterable[Any] | None = None,
    alpha: float = 1,
    c: Iterable[Any] | None = None,
    beta: float = 0,
    epilogue: Epilogue | str | None = None,
    bias: Iterable[Any] | None = None,
    residual: Iterable[Any] | None = None,
    auxiliary: Iterable[Any] | None = None,
    precision: str | None = None,
    scale_a: Iterable[Any] | float | None = None,
    scale_b: Iterable[Any] | float | None = None,
    stream: Any = None,
    device: Device | str | None = None,
    device_memory: int | str | None = None,
    devices: Sequence[Device | int] | str | None = None,
) -> list[Any]:
    """Compute `matmul` for many pairs of matrices, of different shapes, in one launch.

    Each result is scale · activation(alpha · a @ b + beta · c + bias) + residual.

    Each product has its own shape, which may be empty; alpha, beta and the epilogue are shared.
    With a single shape, this is BLAS's batched product of arrays of pointers.

    Args:
        as_: matrices of m×k elements, of any library and type that `matmul` takes, and all of one
            type. A stack of matrices is a sequence of them.
        bs: as many matrices of k×n elements, of the same type and on the same device. Those that
            stay the same for many calls are best given as `gemmkit.prepare_groups` makes them.
        out: matrices of m×n elements to write the results to; they may be strided, but must not
            overlap each other or an input. They are of one type, which may be another than that of
            as_. By default new arrays, each of the kind and type of its a, of float32 if that has 8
            bits.
        alpha: a number; if it is 0, as_ and bs are not read.
        c: matrices of m×n; `out` itself may be it.
        beta: a number; if it is 0, c is not read.
        epilogue: as for `matmul`.
        bias: vectors of n elements, of the type of the results, as c, residual and auxiliary are;
            if the epilogue has a row bias, of m elements.
        residual: matrices of m×n.
        auxiliary: matrices of m×n, which receive the inputs of the activation.
        precision: as for `matmul`.
        scale_a: what elements of as_ of 8 bits are multiplied by, in float32: a number for all
            products, or for each a number, or an array as `matmul` takes it for one product, of the
            same kind for all: one for all of its a, for each row, for each 128 neighbors of a row,
            or for blocks of 128×128.
        scale_b: the same of bs; any kind goes with any kind of as_.
        stream: as for `matmul`.
        device: as for `matmul`; on a GPU, products of 256 MiB or more in host memory are streamed
            one after another, and the others are copied whole.
        device_memory: for arrays in host memory: as for `matmul`; all products are streamed.
        devices: likewise; they share each product.

    Returns:
        The results in the order of the products: those of `out`, or new arrays, which may be parts
        of one allocation that stays as long as any of them. On a GPU, the call does not wait for
        them.

    Raises:
        UsageError: arguments that do not go together; the message names the product, and nothing
            was launched.
        UnsupportedProblem: sizes are beyond the range of the kernels' indices.
        CompileError, CompilerMissing, DeviceError: as `matmul`.
    """
    held = None
    if isinstance(bs, PreparedGroups):
        bs, precision, held = taken_groups(bs, precision)
    as_ = listed("a", as_)
    alpha, scale_a, scale_b = without_numbers(alpha, scale_a, scale_b, as_[0] if as_ else None)
    roles = {
        "a": as_,
        "b": bs,
        "out": out,
        "c": c,
        "bias": bias,
        "residual": residual,
        "auxiliary": auxiliary,
        "scale_a": scale_a,
        "scale_b": scale_b,
    }
    arrays: dict[str, Any] = {
        role: None if each is None and role not in ("a", "b") else listed(role, each)
        for role, each in roles.items()
    }
    if c is out:
        # What `out` holds may be added to.
        arrays["c"] = arrays["out"]
    call = Call(
        **arrays,
        alpha=alpha,
        beta=beta,
        epilogue=epilogue,
        stream=stream,
        device=device,
        precision=precision,
        host=None
        if device_memory is None and devices is None
        else HostOptions(device_memory, devices),
    )
    results = grouped_product(call, held)
    if results is NotImplemented:
        load("gemmkit.ops.libraries.torch_operators")
        from gemmkit.ops.libraries.torch_operators import multiply

        results = multiply(call, many=True)
    found: list[Any] = results
    return found
