"""`matmul` and `gemm`: products of the arrays that people have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

from gemmkit.devices.device import Device
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.loading import load
from gemmkit.ops.arrays import library_of
from gemmkit.ops.narrow_results import SCALE_RESULT, scaled_by
from gemmkit.ops.prepared_operands import PreparedOperand, taken
from gemmkit.ops.product import are_warm, product
from gemmkit.ops.request import Call, HostOptions, flag, number, parsed_epilogue
from gemmkit.ops.scale_numbers import without_numbers
from gemmkit.ops.shapes import Shape
from gemmkit.ops.tracing import compiling, record, symbolic
from gemmkit.units import counted


def matmul(
    a: Any,
    b: Any,
    *,
    out: Any = None,
    alpha: float = 1,
    c: Any = None,
    beta: float = 0,
    epilogue: Epilogue | str | None = None,
    bias: Any = None,
    residual: Any = None,
    auxiliary: Any = None,
    out_dtype: Any = None,
    precision: str | None = None,
    scale_a: Any = None,
    scale_b: Any = None,
    scale_result: Any = None,
    stream: Any = None,
    device: Device | str | None = None,
    device_memory: int | str | None = None,
    devices: Sequence[Device | int] | str | None = None,
    progress: Callable[[float], None] | bool | None = None,
) -> Any:
    """Compute scale · activation(alpha · a @ b + beta · c + bias) + residual in one kernel.

    Args:
        a: an array of k, m×k, or a stack of m×k elements, of NumPy, PyTorch, CuPy, JAX, Numba or
            any other library with `__cuda_array_interface__` or `__dlpack__`; float32, float64,
            float16, bfloat16, float8_e4m3fn or float8_e5m2.
        b: an array of k, k×n, or a stack of k×n elements, of the same type and on the same device.
            Vectors and stacks follow the rules of `numpy.matmul`: stacks broadcast, and the
            dimension that a vector lacks is missing from the result. A matrix that stays the same
            for many products is best given as `gemmkit.prepare` makes it; a likewise.
        out: the array to write the result to; it may be strided, but must not overlap an input.
            By default a new array of a's kind, on its device.
        alpha: a number; if it is 0, a and b are not read.
        c: an array that broadcasts to the result's shape; `out` itself may be it.
        beta: a number; if it is 0, c is not read.
        epilogue: an `Epilogue`, or the text of one, such as `"bias+relu"`.
        bias: n elements, one per column; if the epilogue has a row bias, m elements, one per row.
        residual: an array that broadcasts to the result's shape.
        auxiliary: an array of the result's shape, which receives the input of the activation.
        out_dtype: the type of the result and of c, bias, residual and auxiliary; by default that
            of `out`, or of a, float32 if that has 8 bits. Accumulation is in fp32, for float64
            arrays in fp64. Results of 8 bits are rounded to nearest; what is too large, infinities
            as well, becomes the largest number of the type. Their bias is float32; they go without
            c, residual and auxiliary.
        precision: how float32 may be multiplied: "ieee" in fp32, "fp32" in any way whose error
            bound is that of fp32 sums or smaller, "tf32" of operands rounded to TF32. By default
            that of `gemmkit.precision` and `gemmkit.set_precision`, which is "ieee" until it is
            set. Of 8-bit types, "fast" has tensor cores add up all products, as
            `use_fast_accum` of PyTorch; without it, fp32 takes their sums every 128 of k. Other
            types have none.
        scale_a: what elements of a of 8 bits are multiplied by, in float32, as `torch._scaled_mm`
            has it: a number, or an array of one element for all of a, of m×1 for each row, of
            m×⌈k/128⌉ for each 128 neighbors of a row, or of ⌈m/128⌉×⌈k/128⌉ for blocks of 128×128;
            with dimensions before these where a stack has scales of its own. With scales along k,
            "fast" counts as none.
        scale_b: the same of b: an array of one element, of 1×n for each column, of ⌈k/128⌉×n for
            each 128 neighbors of a column, or of ⌈k/128⌉×⌈n/128⌉; any of these goes with any of a.
        scale_result: what results of 8 bits are multiplied by before they are rounded, after the
            activation, as `torch._scaled_mm` has it: a number, or an array of one float32, which
            is read when the product is computed.
        stream: the stream to launch on, as a handle or as an object of any library; by default the
            current stream of a's library. Not for arrays in host memory.
        device: for arrays in host memory: "cuda", "emulator", or a device of `open_device`. By
            default the GPU if there is one, otherwise the emulator. Large products are streamed:
            tiles are copied both ways while others are computed, so that the matrices need not fit
            in its memory (see `docs/host-matrices.md`).
        device_memory: for arrays in host memory: the memory that the product may take on each
            device, in bytes or as a text such as "8GiB"; by default nine tenths of what is free.
        devices: for arrays in host memory: the devices that share the product: "all" GPUs, or a
            list of ordinals or of devices of `open_device`. By default `device` alone.
        progress: for arrays in host memory: True for a bar on standard error, or a function that
            is called with the completed fraction, 0 to 1.

    Returns:
        `out`, or a new array of a's kind. On a GPU, the call does not wait for the result.

    Raises:
        UsageError: arguments that do not go together; nothing was launched.
        UnsupportedProblem: no kernel accepts the problem.
        CompileError, CompilerMissing: the expression of a custom epilogue does not compile, or
            there is no compiler for the first call.
        DeviceError: there is no such device, or it failed.
        FileError: a file that an array in host memory is mapped from cannot be read or written.
    """
    held = None
    if isinstance(a, PreparedOperand) or isinstance(b, PreparedOperand):
        a, b, precision, held = taken(a, b, precision)
    if scale_a is not None or scale_b is not None:
        alpha, scale_a, scale_b = without_numbers(alpha, scale_a, scale_b, a)
    if isinstance(scale_result, Real):
        own = Epilogue() if epilogue is None else parsed_epilogue(epilogue)
        epilogue = scaled_by(number(SCALE_RESULT, scale_result), own, out, out_dtype)
        scale_result = None
    host = None
    if device_memory is not None or devices is not None or progress:
        host = HostOptions(device_memory, devices, progress)
    # fmt: off
    result = product(
        a, b, out, c, bias, residual, auxiliary,
        alpha, beta, epilogue, out_dtype, stream, device, precision,
        scale_a, scale_b, scale_result, held, host,
    )
    # fmt: on
    if result is NotImplemented:
        return _by_operator(
            Call(
                *(a, b, out, c, bias, residual, auxiliary),
                *(alpha, beta, epilogue, out_dtype, stream, device, precision),
                scale_a,
                scale_b,
                scale_result,
            )
        )
    return result


def _by_operator(call: Call) -> Any:
    """The product as PyTorch's dispatcher has it, or as `torch.fx` records it."""
    if not compiling() and symbolic(call):
        a, b, *rest = call
        given = zip(call._fields[2:], rest, strict=True)
        return record(matmul, (a, b), {name: each for name, each in given if each is not None})
    load("gemmkit.ops.libraries.torch_operators")
    from gemmkit.ops.libraries.torch_operators import multiply

    return multiply(call)


def gemm(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    transa: bool = False,
    transb: bool = False,
    alpha: float = 1,
    beta: float = 0,
    epilogue: Epilogue | str | None = None,
    bias: Any = None,
    residual: Any = None,
    auxiliary: Any = None,
    out_dtype: Any = None,
    precision: str | None = None,
    stream: Any = None,
    device: Device | str | None = None,
    device_memory: int | str | None = None,
    devices: Sequence[Device | int] | str | None = None,
    progress: Callable[[float], None] | bool | None = None,
) -> Any:
    """C ← scale · activation(alpha · op(A) · op(B) + beta · C + bias) + residual, by BLAS's rules.

    Args:
        a: m×k elements, with `transa` k×m.
        b: k×n elements, with `transb` n×k.
        c: m×n elements, which are overwritten; without it, a new array is made. JAX's arrays are
            never written: the result is a new one.
        transa: multiply the transpose of a, which is read in place.
        transb: multiply the transpose of b, likewise.
        alpha: if it is 0, a and b are not read.
        beta: if it is 0, c is not read, so it may hold NaN or be uninitialized.
        epilogue, bias, residual, auxiliary, out_dtype, precision, stream: as for `matmul`.
        device, device_memory, devices, progress: likewise.

    Returns:
        c, or a new array of a's kind.

    Raises:
        UsageError, UnsupportedProblem, CompileError, DeviceError: as `matmul`; also for arrays that
            do not have two dimensions, and for `transa` or `transb` as BLAS's letters.
    """
    # Arrays of known types are matrices most of the time, and can be written.
    known = are_warm(a, b, c)
    if not known and not compiling() and symbolic((a, b, c)):
        options = {
            "transa": transa,
            "transb": transb,
            "alpha": alpha,
            "beta": beta,
            "epilogue": epilogue,
            "bias": bias,
            "residual": residual,
            "auxiliary": auxiliary,
            "out_dtype": out_dtype,
            "precision": precision,
            "stream": stream,
            "device": device,
            "device_memory": device_memory,
            "devices": devices,
            "progress": progress,
        }
        given = {name: each for name, each in options.items() if each is not None}
        return record(gemm, (a, b, c), given, writes=("c", "auxiliary"))
    plain = known and a.ndim == b.ndim == 2 and (c is None or c.ndim == 2)
    if not plain or transa is not False or transb is not False:
        transa, transb = flag("transa", transa), flag("transb", transb)
        _check_matrices(a, b, c, transa, transb)
    written = c if c is None or known or compiling() or library_of(c, "c").WRITABLE else None
    return matmul(
        a.T if transa else a,
        b.T if transb else b,
        out=written,
        alpha=alpha,
        c=c,
        beta=beta,
        epilogue=epilogue,
        bias=bias,
        residual=residual,
        auxiliary=auxiliary,
        out_dtype=out_dtype,
        precision=precision,
        stream=stream,
        device=device,
        device_memory=device_memory,
        devices=devices,
        progress=progress,
    )


def _check_matrices(a: Any, b: Any, c: Any, transa: bool, transb: bool) -> None:
    """Refuse what `gemm` does not take, in its own words.

    Raises:
        UsageError: an array that has not two dimensions, or cannot be transposed, or sizes that do
            not fit.
    """
    for name, array in (("a", a), ("b", b), ("c", c)):
        sides = getattr(array, "ndim", 2)
        if sides != 2:
            raise UsageError(
                f"gemm takes matrices; {name} has {counted(sides, 'dimension')}: use matmul"
            )
    for name, array, turned in (("a", a, transa), ("b", b, transb)):
        if turned and not hasattr(array, "T"):
            raise UnsupportedType(
                f"{name}, a {type(array).__name__}, has no T: transpose it yourself"
            )
    if transa or transb:
        shape_a, shape_b = (getattr(each, "shape", ()) for each in (a, b))
        if shape_a and shape_b and shape_a[1 - transa] != shape_b[int(transb)]:
            Shape.of(tuple(shape_a), tuple(shape_b), transa=transa, transb=transb)
