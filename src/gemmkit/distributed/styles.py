"""Styles for `torch.distributed.tensor.parallel.parallelize_module`, named as PyTorch's.

Transfers run under gemmkit's products, in place of redistributions before or after them.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor import parallel as by_torch

from gemmkit.distributed.dtensors import contiguous_strides
from gemmkit.distributed.front import matmul
from gemmkit.distributed.placements import Word
from gemmkit.ops.libraries.torch_linear import checked_activation

# What a layer of a style is told apart by.
_STYLE = "_gemmkit_style"


class _Style:
    """What both styles share. `parallelize_module` calls `_apply` of a style."""

    input_layouts: tuple[Any, ...]
    output_layouts: tuple[Any, ...]
    use_local_output: bool
    # The placement of the transposed weight.
    weight: Word

    def __init__(
        self,
        *,
        input_layouts: Any = None,
        output_layouts: Any = None,
        use_local_output: bool = True,
        activation: str | None = "none",
        precision: str | None = None,
        strategy: str | None = None,
        device: Any = None,
    ) -> None:
        layouts: dict[str, Any] = {
            "input_layouts": input_layouts,
            "output_layouts": output_layouts,
            "use_local_output": use_local_output,
        }
        super().__init__(**layouts)
        self.activation = checked_activation(activation)
        self.precision, self.strategy, self.device = precision, strategy, device

    def _apply(self, module: torch.nn.Module, device_mesh: Any) -> torch.nn.Module:
        if not isinstance(module, torch.nn.Linear):
            made: torch.nn.Module = super()._apply(module, device_mesh)  # type: ignore[misc]
            return made
        partition: Any = self._partition_linear_fn  # type: ignore[attr-defined]
        made = distribute_module(module, device_mesh, partition)
        setattr(made, _STYLE, self)
        made.forward = MethodType(_forward, made)
        return made

    def _asked(self, dimensions: int) -> Any:
        """The placement that the product itself gives its result."""
        raise NotImplementedError


class ColwiseParallel(_Style, by_torch.ColwiseParallel):  # type: ignore[misc]
    """A linear layer whose outputs are spread: rows of a spread input travel under the product.

    Parameters become `DTensor`s as with PyTorch's style. An input with a layout Shard of another
    dimension than the last is gathered under the product, and not before it. Embeddings are
    PyTorch's.

    Args:
        input_layouts: of the input, by default Replicate().
        output_layouts: of the output, by default Shard(-1), what the product gives; others follow
            by a redistribution.
        use_local_output: whether the output is this rank's part, and not a `DTensor`.
        activation: fused into the product.
        precision: as for `gemmkit.matmul`.
        strategy: as for `gemmkit.distributed.matmul`.
        device: as for `gemmkit.matmul`, for tensors on the CPU.
    """

    weight = "S(1)"

    def _asked(self, dimensions: int) -> Any:  # noqa: ARG002
        """As `_Style._asked`."""
        return "S(-1)"


class RowwiseParallel(_Style, by_torch.RowwiseParallel):  # type: ignore[misc]
    """A linear layer whose inputs are spread: sums travel under the product.

    Args:
        input_layouts: of the input, by default Shard(-1).
        output_layouts: of the output, by default Replicate(). To a Shard of another dimension than
            the last, sums are scattered under the product; others follow by a redistribution.
        use_local_output: as for `ColwiseParallel`.
        activation: likewise; it follows the complete sums.
        precision: likewise.
        strategy: likewise.
        device: likewise.
    """

    weight = "S(0)"

    def _asked(self, dimensions: int) -> Any:
        """As `_Style._asked`."""
        (wanted,) = self.output_layouts
        place = getattr(wanted, "dim", None)
        rows = place is not None and place % dimensions != dimensions - 1
        return wanted if rows else "R"


def _forward(module: Any, x: Any) -> Any:
    """A linear layer's output, by the style that it has."""
    style: _Style = getattr(module, _STYLE)
    mesh, layouts = module.weight.device_mesh, style.input_layouts
    shape = None
    # All rows, where they are known: of plain tensors that are spread, another rank may have more.
    leading: tuple[int, ...] | None = tuple(x.shape[:-1])
    if isinstance(x, DTensor):
        shape = x.shape[:-1].numel(), module.out_features, module.in_features
        layouts = x.placements
        x = x.to_local(grad_placements=[_of_gradient(each) for each in layouts])
    elif getattr(layouts[0], "dim", -1) not in (-1, x.dim() - 1):
        leading = None
    lines = x if x.dim() > 1 else x[None]
    words = ["bias"] if module.bias is not None else []
    words += [style.activation] if style.activation != "none" else []
    result = style._asked(lines.dim())
    made = matmul(
        lines,
        module.weight.to_local().T,
        group=mesh,
        placements=(layouts, (style.weight,)),
        placement=(result,),
        epilogue="+".join(words) or None,
        bias=None if module.bias is None else module.bias.to_local(),
        precision=style.precision,
        strategy=style.strategy,
        shape=shape,
        device=style.device,
    )
    made = made if x.dim() > 1 else made[0]
    whole = None if leading is None else (*leading, module.out_features)
    return _as_wanted(style, made, mesh, result, whole)


def _as_wanted(
    style: _Style, made: Any, mesh: Any, result: Any, whole: tuple[int, ...] | None
) -> Any:
    """The output in the layout that the style has, which is nearly always that of the product."""
    (wanted,) = style.output_layouts
    last = made.dim() - 1
    given = {"S(-1)": Shard(last), "R": Replicate()}.get(result, wanted)
    same = given == wanted or (result == "S(-1)" and getattr(wanted, "dim", None) == -1)
    if same and style.use_local_output:
        return made
    sizes: dict[str, Any] = {}
    if whole is not None:
        sizes = {"shape": torch.Size(whole), "stride": contiguous_strides(whole)}
    spread = DTensor.from_local(made, mesh, (given,), run_check=False, **sizes)
    if not same:
        spread = spread.redistribute(placements=(wanted,))
    return spread.to_local() if style.use_local_output else spread


def _of_gradient(placement: Any) -> Any:
    """The layout of an input's gradient, of which all ranks have all where they add inputs up."""
    return Replicate() if placement.is_partial() else placement
