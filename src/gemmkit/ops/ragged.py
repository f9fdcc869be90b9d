"""`ragged_matmul`: one matrix whose rows are divided among groups, each with a B of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gemmkit.epilogue import Epilogue
from gemmkit.ops.ragged_product import RaggedCall, ragged_product
from gemmkit.ops.scale_numbers import without_numbers
from gemmkit.ops.tracing import recordable

if TYPE_CHECKING:
    from gemmkit.devices.device import Device


@recordable("out", "auxiliary")
def ragged_matmul(
    a: Any,
    b: Any,
    offsets: Any,
    *,
    out: Any = None,
    alpha: float = 1,
    beta: float = 0,
    epilogue: Epilogue | str | None = None,
    bias: Any = None,
    residual: Any = None,
    auxiliary: Any = None,
    precision: str | None = None,
    scale_a: Any = None,
    scale_b: Any = None,
    stream: Any = None,
    device: Device | str | None = None,
) -> Any:
    """Multiply each group of a matrix's rows by a matrix of its own, in one launch.

    With start = offsets[g - 1], or 0 for the first group, and end = offsets[g], rows start to end
    of the result are scale · activation(alpha · a[start:end] @ b[g] + beta · out[start:end] +
    bias) + residual[start:end]. This is the product of a mixture of experts whose tokens are sorted
    by expert: `torch._grouped_mm(a, b, offs=offsets)`, and `jax.lax.ragged_dot` with the sums of
    its group sizes.

    Offsets that are on the GPU are read there: the host never waits for them, and a CUDA graph
    serves any division of the rows. Kernels for that take float16 and bfloat16 on Hopper, and types
    of 8 bits with the matrices of b in columns.

    Args:
        a: a matrix of rows×k elements, of any library and type that `matmul` takes.
        b: a stack of groups×k×n elements, of the same type and on the same device, each matrix in
            rows or in columns: `weights.mT` of (groups, n, k), as layers have them, is read in
            place.
        offsets: where the rows of each group end, as many integers as groups, in order: a list, or
            an array of any library in host memory; or int32 or int64 on the GPU of a. A group may
            be empty. Rows past the last end are not written. Of offsets on a GPU, those beyond the
            rows of a count as its end, and rows of groups that overlap are undefined.
        out: a matrix of rows×n to write the result to; by default a new one of the type of a,
            or of float32 if that has 8 bits.
        alpha: a number.
        beta: a number; unless it is 0, out is needed, and what it holds is added.
        epilogue: as for `matmul`.
        bias: a vector of n elements for all groups, or a matrix of groups×n, of the type of the
            result; if the epilogue has a row bias, a vector of as many elements as a has rows.
        residual: a matrix of rows×n; it may be `out`.
        auxiliary: a matrix of rows×n, which receives the input of the activation.
        precision: as for `matmul`.
        scale_a: what elements of a of 8 bits are multiplied by, in float32: a number, or an array
            of one element for all of a, of rows×1 for each row, of rows×⌈k/128⌉ for each 128
            neighbors of a row, or of groups×1×1 for each group.
        scale_b: the same of b: a number, or an array of one element for all of b, or for each
            group, with the number of groups before it, of 1×1, of 1×n for each column, of
            ⌈k/128⌉×n for each 128 neighbors of a column, or of ⌈k/128⌉×⌈n/128⌉ for blocks of
            128×128.
        stream: as for `matmul`.
        device: as for `matmul`.

    Returns:
        A matrix of rows×n: `out`, or a new one. On a GPU, the call does not wait for it.

    Raises:
        UsageError: arguments that do not go together; nothing was launched.
        UnsupportedProblem: offsets are on a GPU, and no kernel reads them there for this type,
            board or alignment; or sizes are beyond the range of the kernels' indices.
        CompileError, CompilerMissing, DeviceError: as `matmul`.
    """
    alpha, scale_a, scale_b = without_numbers(alpha, scale_a, scale_b, a)
    return ragged_product(
        RaggedCall(
            *(a, b, offsets, out, bias, residual, auxiliary),
            *(alpha, beta, epilogue, precision, stream, device, scale_a, scale_b),
        )
    )
