"""PyTorch's tensors, on the CPU or on GPUs; memory comes from its allocator."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd import forward_ad

from gemmkit.dtypes import Dtype
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.ops.arrays import Glances
from gemmkit.ops.libraries import LEGACY_STREAMS
from gemmkit.ops.operands import Operand, View, known_dtype, library_name

NAME = "PyTorch"
WRITABLE = True
CURRENT_STREAMS = True

# Addresses below are looked at more closely: a tensor whose storage was freed begins at its offset.
_LOWEST_LIKELY = 1 << 32


def read(array: Any, role: str) -> Operand:
    """As `Library.read`."""
    check_gradient(array, role)
    check_kind(array, role)
    if array.device.type not in ("cpu", "cuda"):
        raise UsageError(f"{role} is on {array.device}; gemmkit computes on CUDA and on the CPU")
    negated = array.is_neg()
    if negated:
        array = array.resolve_neg()
    dtype = known_dtype(str(array.dtype).removeprefix("torch."), role)
    address = _address(array, role)
    return Operand(
        array=array,
        address=address,
        view=View(tuple(array.shape), array.stride()),
        dtype=dtype,
        device=array.get_device() if array.is_cuda else None,
        # What stands for the negative of other elements is read by way of a copy.
        writable=not negated,
    )


def empty(like: Operand, shape: tuple[int, ...], dtype: Dtype, _: int | None = None) -> Operand:
    """As `Library.empty`."""
    made = torch.empty(shape, dtype=getattr(torch, library_name(dtype)), device=like.array.device)
    return read(made, "the result")


def finished(result: Operand) -> Any:
    """As `Library.finished`."""
    return result.array


# --- on a GPU -----------------------------------------------------------------------------------

# As `GpuLibrary.current_stream`; PyTorch's public way makes an object first. A PyTorch without CUDA
# has none.
current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def empty_like(target: Operand, *, by_columns: bool) -> Operand:
    """As `GpuLibrary.empty_like`."""
    shape = target.view.shape
    if by_columns:
        flipped = (*shape[:-2], shape[-1], shape[-2])
        return read(target.array.new_empty(flipped).mT, "a copy")
    return read(target.array.new_empty(shape), "a copy")


def copied(operand: Operand, shape: tuple[int, ...], *, by_columns: bool) -> Operand:
    """As `GpuLibrary.copied`."""
    source = operand.array.expand(shape)
    if by_columns:
        return read(source.mT.contiguous().mT, "a copy")
    return read(source.contiguous(), "a copy")


def assign(target: Operand, source: Operand) -> None:
    """As `GpuLibrary.assign`."""
    target.array.copy_(source.array)


@contextmanager
def on_stream(stream: int, device: int) -> Iterator[None]:
    """As `GpuLibrary.on_stream`."""
    if stream in LEGACY_STREAMS:
        chosen = torch.cuda.default_stream(device)
    else:
        chosen = torch.cuda.ExternalStream(stream, device)
    with torch.cuda.stream(chosen):
        yield


def wait_for(operand: Operand, stream: int) -> None:
    """As `GpuLibrary.wait_for`: tensors are used on the stream where they are current."""


def written_on(operand: Operand, stream: int) -> None:
    """As `GpuLibrary.written_on`: nothing to be noted."""


# --- tracers and modes ---------------------------------------------------------------------------

_compiling = torch.compiler.is_dynamo_compiling
_dispatch_modes = torch._C._len_torch_dispatch_stack


def watched() -> bool:
    """As `WarmLibrary.watched`: `torch.compile`, forward-mode derivatives, or a dispatch mode."""
    return bool(_compiling() or forward_ad._current_level >= 0 or _dispatch_modes())


def stand_ins(tensors: list[Any]) -> bool:
    """Whether some tensors stand for others, so that only PyTorch's dispatcher can multiply them.

    Those are of `torch.vmap` and its kin, meta tensors, and instances of subclasses. While
    `torch.jit.trace` watches all are; sizes are tensors then, which no warm call has.
    """
    if torch._C._get_tracing_state() is not None:
        return True
    if torch._C._functorch.peek_interpreter_stack() is not None and any(
        map(torch._C._functorch.is_functorch_wrapped_tensor, tensors)
    ):
        return True
    return any(
        type(each) not in _PLAIN_TYPES or each.is_meta or torch._is_functional_tensor(each)
        for each in tensors
    )


_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_PLAIN = frozenset(_PLAIN_TYPES)


# --- for warm calls -----------------------------------------------------------------------------


def glance(array: Any) -> tuple[int, Hashable]:
    """As `WarmLibrary.glance`."""
    if array.requires_grad:
        check_gradient(array, "an operand")
    if array.is_neg():
        raise _negated()
    address = array.data_ptr()
    if address < _LOWEST_LIKELY and _is_freed(array):
        raise _without_memory()
    return address, (array.shape, array.stride(), array.dtype, array.get_device())


def glance_at_matrices(a: Any, b: Any, out: Any) -> tuple[int, int, int, Hashable]:
    """As `WarmLibrary.glance_at_matrices`."""
    if a.requires_grad or b.requires_grad:
        check_gradient(a, "a")
        check_gradient(b, "b")
    if a.is_neg() or b.is_neg():
        raise _negated()
    address_a, address_b = a.data_ptr(), b.data_ptr()
    if (address_a < _LOWEST_LIKELY or address_b < _LOWEST_LIKELY) and (
        _is_freed(a) or _is_freed(b)
    ):
        raise _without_memory()
    address, seen = (0, None) if out is None else glance(out)
    # fmt: off
    return address_a, address_b, address, (
        a.shape, a.stride(), a.dtype, a.get_device(),
        b.shape, b.stride(), b.dtype, b.get_device(), seen,
    )
    # fmt: on


def glance_at_strides(a: Any, b: Any, out: Any) -> tuple[int, int, int, Hashable]:
    """As `WarmLibrary.glance_at_strides`."""
    if a.is_neg() or b.is_neg() or out.is_neg():
        raise _negated()
    address_a, address_b, address_out = a.data_ptr(), b.data_ptr(), out.data_ptr()
    if address_a < _LOWEST_LIKELY or address_b < _LOWEST_LIKELY or address_out < _LOWEST_LIKELY:
        raise _without_memory()
    return address_a, address_b, address_out, (a.stride(), b.stride(), out.stride())


_Tensor = torch._C.TensorBase
_data_ptr, _stride, _is_neg, _get_device = (
    *(_Tensor.data_ptr, _Tensor.stride, _Tensor.is_neg, _Tensor.get_device),
)
_requires_grad, _dtype = _Tensor.requires_grad.__get__, _Tensor.dtype.__get__


def glance_at_many(arrays: list[Any]) -> Glances:
    """As `WarmLibrary.glance_at_many`.

    Each attribute is read of all tensors in turn, which takes a third of the time.
    """
    if not _PLAIN.issuperset(map(type, arrays)):
        raise TypeError("not all are plain tensors")
    if torch.is_grad_enabled() and any(map(_requires_grad, arrays)):
        for each in arrays:
            check_gradient(each, "an operand")
    if any(map(_is_neg, arrays)):
        raise _negated()
    addresses = np.fromiter(map(_data_ptr, arrays), np.int64, len(arrays))
    if addresses.min(initial=_LOWEST_LIKELY) < _LOWEST_LIKELY and any(map(_is_freed, arrays)):
        raise _without_memory()
    (dtype,), (device,) = set(map(_dtype, arrays)), set(map(_get_device, arrays))
    shapes = tuple([each.shape for each in arrays])
    return Glances(addresses, shapes, tuple(map(_stride, arrays)), (dtype, device))


def new(like: Any, shape: tuple[int, ...], dtype: Dtype | None) -> tuple[Any, int]:
    """As `WarmLibrary.new`."""
    if dtype is not None:
        made = like.new_empty(shape, dtype=getattr(torch, library_name(dtype)))
    elif shape:
        # PyTorch reads sizes one by one in half the time that a tuple takes it.
        made = like.new_empty(*shape)
    else:
        made = like.new_empty(())
    return made, made.data_ptr()


def new_matrices(
    like: Any, rows: list[int], columns: int, dtype: Dtype | None
) -> tuple[list[Any], NDArray[np.int64]]:
    """As `WarmLibrary.new_matrices`."""
    wanted = like.dtype if dtype is None else getattr(torch, library_name(dtype))
    whole = like.new_empty(sum(rows), columns, dtype=wanted)
    # These are no views to autograd: each has a version of its own.
    made = list(torch.unsafe_split_with_sizes(whole, rows))
    nbytes = np.array(rows, np.int64) * (columns * whole.element_size())
    return made, whole.data_ptr() + np.cumsum(nbytes) - nbytes


def temporary(nbytes: int, device: int) -> tuple[object, int] | None:
    """As `WarmLibrary.temporary`: what is allocated during a capture is the graph's."""
    made = torch.empty(nbytes, dtype=torch.uint8, device=torch.device("cuda", device))
    return made, made.data_ptr()


_increment_version = torch._C._increment_version


def _takes_many() -> bool:
    """Whether versions are incremented of several tensors at once, as from PyTorch 2.5 on."""
    try:
        _increment_version((torch.empty(0),))
    except TypeError:
        return False
    return True


_VERSIONS_OF_MANY = _takes_many()


def overwritten(array: Any) -> None:
    """As `WarmLibrary.overwritten`: autograd sees that what it has saved is there no more."""
    try:
        _increment_version((array,) if _VERSIONS_OF_MANY else array)
    except RuntimeError:
        # Inference tensors have no version.
        reason = unwritable(array)
        if reason is not None:
            raise UsageError(f"an array cannot be written: {reason}") from None


def unwritable(array: Any) -> str | None:
    """Why a tensor may not be written now, or None."""
    if array.is_inference() and not torch.is_inference_mode_enabled():
        return (
            "it is an inference tensor, which PyTorch writes in torch.inference_mode() only: clone "
            "it, or enter that mode"
        )
    return None


def _is_freed(array: Any) -> bool:
    """Whether a tensor that has elements has no memory: its storage was freed or never made."""
    return bool(array.untyped_storage().data_ptr() == 0 and array.shape.numel() > 0)


def _without_memory() -> RuntimeError:
    """Has a call read its operands, which looks at their storage."""
    return RuntimeError("a tensor may have no memory")


def _negated() -> RuntimeError:
    """What has a call read its operands, for nothing else tells of a view's sign."""
    return RuntimeError("a view stands for the negative of other elements")


def _address(array: Any, role: str) -> int:
    """The address of element 0.

    Raises:
        UsageError: the tensor has no memory, or less than its elements take.
    """
    try:
        address, nbytes = array.data_ptr(), array.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError) as error:
        raise UsageError(f"{role} has no memory to read: {error}") from error
    # PyTorch has no negative strides.
    reach = zip(array.shape, array.stride(), strict=True)
    last = array.storage_offset() + sum((size - 1) * step for size, step in reach)
    if array.numel() and array._is_zerotensor():
        raise UsageError(
            f"{role} is a tensor of zeros without memory, as autograd makes them: clone it first"
        )
    if array.numel() and (not address or nbytes < (last + 1) * array.element_size()):
        raise UsageError(
            f"{role} has no memory to read: its storage has {nbytes:,} bytes, fewer than its "
            "elements take"
        )
    return int(address)


def check_kind(array: Any, role: str) -> None:
    """Refuse tensors whose elements do not lie in strides, or mean other numbers than they hold.

    Raises:
        UnsupportedType: it is nested, sparse, quantized, or spread over processes.
    """
    if array.is_nested:
        raise UnsupportedType(f"{role} is a nested tensor: multiply its parts by grouped_matmul")
    if array.layout != torch.strided:
        raise UnsupportedType(f"{role} is {array.layout}: make it dense with to_dense()")
    if array.is_quantized:
        raise UnsupportedType(f"{role} is quantized to {array.dtype}: convert it with dequantize()")
    # torch.compile does not know the module of a class.
    tracing = torch.compiler.is_dynamo_compiling()
    if not tracing and type(array).__module__.startswith("torch.distributed"):
        raise UnsupportedType(
            f"{role} has type {type(array).__name__}, spread over processes: multiply it by "
            "gemmkit.distributed.matmul, or what its to_local() gives"
        )


def check_gradient(array: Any, role: str) -> None:
    """Refuse what would lose a gradient without a word.

    Raises:
        UsageError: the tensor requires a gradient where gradients are recorded.
    """
    if not (array.requires_grad and torch.is_grad_enabled()):
        return
    if role.startswith(("out", "auxiliary")):
        raise UsageError(
            f"{role} requires a gradient, and overwriting it is not recorded: do it in "
            "torch.no_grad(), or give another tensor"
        )
    raise UsageError(
        f"{role} requires a gradient, which only the functions of gemmkit.torch record: use those, "
        "or detach() it"
    )
