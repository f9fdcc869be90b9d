"""gemmkit's products in PyTorch: custom operators with gradients, usable under `torch.compile`.

`matmul` and `linear` call the operators `torch.ops.gemmkit.matmul` and `torch.ops.gemmkit.linear`,
whose gradients are gemmkit's products too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:
    import torch
except ImportError as error:
    raise ImportError("gemmkit.torch needs PyTorch: pip install 'gemmkit[torch]'") from error

from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.ops.libraries import (  # noqa: F401 (they register)
    torch_matmul,
    torch_operators,
    torch_ragged,
)
from gemmkit.ops.libraries.torch import check_kind
from gemmkit.ops.libraries.torch_checks import check_tangent, check_transform, tangents_checked
from gemmkit.ops.libraries.torch_linear import OF_ARGUMENT, checked_activation
from gemmkit.ops.libraries.torch_prepared import (
    prepared_linear,
    prepared_product,
    traced_linear,
)
from gemmkit.ops.precision import settled
from gemmkit.ops.prepared_forms import new_key
from gemmkit.ops.prepared_operands import PreparedOperand, prepare
from gemmkit.ops.tracing import compiling, recordable

__all__ = ["PreparedLinear", "linear", "matmul", "prepare_linears", "ragged_matmul"]


@recordable()
def matmul(
    a: torch.Tensor, b: torch.Tensor | PreparedOperand, *, precision: str | None = None
) -> torch.Tensor:
    """The product of two tensors by the rules of `torch.matmul`, computed by gemmkit.

    Twice differentiable; a single operator for `torch.compile`; on the current CUDA stream, and
    safe to capture in a CUDA graph after a first call with the same shapes. Under autocast,
    float32, float16 and bfloat16 tensors are converted to its type first, as for
    `torch.matmul`.

    Args:
        a: float32, float64, float16 or bfloat16, with at least 1 dimension and any strides; or
            float8_e4m3fn or float8_e5m2, with a result in float32 and without gradients.
        b: with the same type and device; or a tensor of those as `gemmkit.prepare` makes it, which
            gets no gradient.
        precision: as for `gemmkit.matmul`; gradients are computed in it too.

    Raises:
        UsageError: shapes, types or devices that cannot be multiplied, or a forward-mode tangent.
    """
    if isinstance(b, PreparedOperand):
        return prepared_product(a, b, precision)
    precision, a, b = _ready(precision, a=a, b=b)
    with tangents_checked():
        product: torch.Tensor = torch.ops.gemmkit.matmul(a, b, precision)
    return product


@recordable()
def linear(
    x: torch.Tensor,
    weight: torch.Tensor | PreparedOperand,
    bias: torch.Tensor | None = None,
    activation: str | None = "none",
    *,
    precision: str | None = None,
) -> torch.Tensor:
    """A linear layer, activation(x Wᵀ + bias), in one kernel; the weight is read in place.

    Twice differentiable. If a gradient is needed, "gelu", "gelu_tanh" and "silu" store their input
    as well, for the derivative; "relu" needs only its result. `torch.compile`, CUDA graphs and
    autocast are as for `matmul`.

    Args:
        x: of shape (..., k).
        weight: of shape (n, k), as in `torch.nn.Linear`; or such a tensor as `gemmkit.prepare`
            makes it with `transpose=True`, which gets no gradient.
        bias: of shape (n,) and the type of the result, or None.
        activation: "none" or None, "relu", "gelu" (by the error function), "gelu_tanh" or "silu".
        precision: as for `matmul`.

    Returns:
        A tensor of shape (..., n).

    Raises:
        UsageError: shapes, types or devices that cannot be multiplied, an unknown activation, or a
            forward-mode tangent.
    """
    activation = checked_activation(activation)
    if isinstance(weight, PreparedOperand):
        return prepared_linear(x, weight, bias, activation, precision)
    if bias is None:
        precision, x, weight = _ready(precision, x=x, weight=weight)
    else:
        precision, x, weight, bias = _ready(precision, x=x, weight=weight, bias=bias)
    wanted = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (x, weight, bias)
    )
    keep = wanted and activation in OF_ARGUMENT
    with tangents_checked():
        result: torch.Tensor = torch.ops.gemmkit.linear(
            x, weight, bias, activation, keep, precision
        )[0]
    return result


@recordable()
def ragged_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    offsets: Sequence[int] | torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    precision: str | None = None,
) -> torch.Tensor:
    """Multiply each group of a's rows by a matrix of its own.

    It is `gemmkit.ragged_matmul` with gradients, as the experts of a mixture need it. Twice
    differentiable; a single operator for `torch.compile`. Autocast is as for `matmul`. With offsets
    on the GPU, the product and the gradient of a wait for nothing and can be captured in a CUDA
    graph; that of b reads the offsets on the host.

    Args:
        a: of shape (rows, k).
        b: of shape (groups, k, n); `weight.mT` of (groups, n, k) is read in place.
        offsets: of shape (groups,), where the rows of each group end, as for
            `gemmkit.ragged_matmul`. Rows past the last end are zero in the result.
        bias: of shape (n,) or (groups, n) and the type of the result, or None.
        precision: as for `matmul`.

    Returns:
        A tensor of shape (rows, n).

    Raises:
        UsageError: shapes, types or devices that cannot be multiplied, or a forward-mode tangent.
        UnsupportedProblem: as `gemmkit.ragged_matmul`.
    """
    if bias is None:
        precision, a, b = _ready(precision, a=a, b=b)
    else:
        precision, a, b, bias = _ready(precision, a=a, b=b, bias=bias)
    ends = offsets if isinstance(offsets, torch.Tensor) else _ends(offsets)
    with tangents_checked():
        product: torch.Tensor = torch.ops.gemmkit.ragged_matmul(a, b, ends, bias, precision)
    return product


def _ends(offsets: Sequence[int]) -> torch.Tensor:
    """Offsets in host memory as a tensor.

    Raises:
        UnsupportedType: they are not integers that 64 bits hold.
    """
    try:
        return torch.tensor(offsets)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        from gemmkit.ops.ragged_request import NOT_INTEGERS

        raise UnsupportedType(NOT_INTEGERS) from error


class PreparedLinear(torch.nn.Module):  # type: ignore[misc]
    """`torch.nn.Linear` for inference: its weight is prepared at the first call without gradients.

    It has the parameters of the layer that it is made of, under the same names. When its weight has
    been changed, moved or replaced, the next call prepares it anew. Where gradients to the weight
    are recorded, it is multiplied as it is, and training goes on.

    Args:
        linear: the layer, whose parameters are shared.
        activation: fused into the product: see `gemmkit.torch.linear`.
        precision: that of the products; by default the setting of `gemmkit.precision` at each call.

    Raises:
        UnsupportedType: `linear` is another kind of layer.
    """

    def __init__(
        self,
        linear: torch.nn.Linear,
        *,
        activation: str | None = "none",
        precision: str | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(linear, torch.nn.Linear):
            raise UnsupportedType(
                f"PreparedLinear is made of a torch.nn.Linear, not of a {type(linear).__name__}"
            )
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.activation, self.precision = checked_activation(activation), precision
        self._prepared: PreparedOperand | None = None
        self._seen: tuple[object, ...] = ()
        self._key = new_key(self)
        self.train(linear.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """activation(x · weightᵀ + bias) for x (…, in_features).

        Raises:
            UsageError: as `gemmkit.torch.linear`.
        """
        recorded = torch.is_grad_enabled() and self.weight.requires_grad
        if recorded or (compiling() and torch.is_autocast_enabled(x.device.type)):
            return linear(x, self.weight, self.bias, self.activation, precision=self.precision)
        if compiling():
            return self._traced(x)
        return prepared_linear(x, self.prepared(), self.bias, self.activation)

    def _traced(self, x: torch.Tensor) -> torch.Tensor:
        """As `torch.compile` records it: what the operator multiplies is looked up at each call."""
        weight = self.weight.detach()
        precision = settled(self.precision, str(weight.dtype).removeprefix("torch."))
        wanted = torch.is_grad_enabled() and (
            x.requires_grad or (self.bias is not None and self.bias.requires_grad)
        )
        keep = wanted and self.activation in OF_ARGUMENT
        return traced_linear(*(x, weight, self.bias, self.activation, keep, precision, self._key))

    def prepared(self) -> PreparedOperand:
        """The weight as it is multiplied, made anew if it has changed since."""
        weight = self.weight.detach()
        precision = settled(self.precision, str(weight.dtype).removeprefix("torch."))
        place = (weight.data_ptr(), weight.shape, weight.stride(), weight.dtype, weight.device)
        # Inference tensors have no version.
        version = None if weight.is_inference() else weight._version
        seen = (*place, precision)
        if self._prepared is None or self._seen[:-1] != seen:
            self._prepared = prepare(weight, transpose=True, precision=precision)
        elif self._seen[-1] != version:
            self._prepared.refresh()
        self._seen = (*seen, version)
        return self._prepared

    def __getstate__(self) -> dict[str, Any]:
        # Copies of the module, and pickled ones, prepare their own weights.
        return {**super().__getstate__(), "_prepared": None, "_seen": (), "_key": ""}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._key = new_key(self)

    def extra_repr(self) -> str:
        """As of `torch.nn.Linear`."""
        told = f"in_features={self.in_features}, out_features={self.out_features}"
        fused = "" if self.activation == "none" else f", activation={self.activation!r}"
        return f"{told}, bias={self.bias is not None}{fused}, precision={self.precision!r}"


def prepare_linears(model: torch.nn.Module, *, precision: str | None = None) -> torch.nn.Module:
    """Have every `torch.nn.Linear` of a model multiply its weight as `gemmkit.prepare` makes it.

    The model is changed in place: each such layer, but no instance of a subclass, becomes a
    `PreparedLinear` with the same parameters, so that `state_dict` stays as it is. Hooks of these
    layers are not taken over.

    Args:
        model: a module, or such a layer itself.
        precision: as of `PreparedLinear`; "fp32" is what preparation of float32 weights is for.

    Returns:
        The model, or what replaces it if it is such a layer itself.
    """
    if type(model) is torch.nn.Linear:
        return PreparedLinear(model, precision=precision)
    replaced: dict[torch.nn.Module, PreparedLinear] = {}
    for module in list(model.modules()):
        for name, child in list(module._modules.items()):
            if type(child) is torch.nn.Linear:
                # A layer that several modules share stays shared.
                made = replaced.get(child) or PreparedLinear(child, precision=precision)
                replaced[child] = made
                setattr(module, name, made)
    return model


def _ready(precision: str | None, **tensors: torch.Tensor) -> list[Any]:
    """The precision of the product, and the tensors converted to the autocast type, if autocast is
    on; float64 is unchanged, and so are products of 8 bits.

    Raises:
        UsageError: one is not a tensor, is refused by `check_kind`, has a forward-mode tangent,
            which PyTorch would drop, is differentiated by `torch.func`, or requires a gradient and
            has 8 bits; or there is no such precision of its type.
    """
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise UnsupportedType(
                f"{name} has type {type(tensor).__name__}, which is not a PyTorch tensor: use "
                "gemmkit.matmul for arrays of other libraries"
            )
        check_kind(tensor, name)
        check_tangent(tensor, name)
        check_transform(tensor, name)
        if tensor.itemsize == 1 and tensor.requires_grad and torch.is_grad_enabled():
            raise UsageError(
                f"{name} requires a gradient, which products of {tensor.dtype} do not have: "
                "detach it, or convert it with .to()"
            )
    given = list(tensors.values())
    found = settled(precision, str(given[0].dtype).removeprefix("torch."))
    kind = given[0].device.type
    narrow = given[0].itemsize == 1
    if narrow or kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return [found, *given]
    dtype = torch.get_autocast_dtype(kind)
    converted = [
        tensor.to(dtype) if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor
        for tensor in given
    ]
    # What is converted to 16 bits has none.
    return [found if converted[0].dtype == torch.float32 else "ieee", *converted]
