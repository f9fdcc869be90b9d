"""Tensor-parallel linear layers: column-parallel, then row-parallel, as in Megatron-LM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from gemmkit.distributed.front import matmul
from gemmkit.distributed.splits import shares
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedType, UsageError, unknown_name
from gemmkit.ops.libraries.torch_linear import checked_activation


def _group(group: Any) -> Any:
    if not dist.is_initialized():
        raise UsageError(
            "there is no process group: call torch.distributed.init_process_group first"
        )
    return dist.group.WORLD if group is None else group


class _ParallelLinear(torch.nn.Module):  # type: ignore[misc]
    """What both layers share: a rank's part of a weight of (out_features, in_features)."""

    # The side of the weight that is spread.
    side: int

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        activation: str | None = "none",
        sequence_parallel: bool = False,
        group: Any = None,
        precision: str | None = None,
        strategy: str | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.group = _group(group)
        self.in_features, self.out_features = in_features, out_features
        self.activation = checked_activation(activation)
        self.sequence_parallel = sequence_parallel
        self.precision, self.strategy = precision, strategy
        # On CPUs, how the products are made: see `gemmkit.matmul`.
        self.product_device: Any = None
        shape = [out_features, in_features]
        shape[self.side] = self._share(shape[self.side]).size
        self.weight = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        count = shape[0] if self.side == 0 else out_features
        made = torch.nn.Parameter(torch.empty(count, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", made)
        self.reset_parameters()

    def _share(self, size: int) -> Any:
        return shares(size, dist.get_world_size(self.group))[dist.get_rank(self.group)]

    def reset_parameters(self) -> None:
        """As of `torch.nn.Linear` with all of in_features; ranks draw numbers of their own, but the
        bias of a row-parallel layer begins with zeros, for it is the same on all."""
        bound = self.in_features**-0.5
        torch.nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None and self.side == 0:
            torch.nn.init.uniform_(self.bias, -bound, bound)
        elif self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, **options: Any) -> Any:
        """This rank's part of a layer that all ranks have.

        Args:
            linear: the layer.
            **options: those of the class, but for sizes, bias, device and type.

        Raises:
            UnsupportedType: it is another kind of layer.
        """
        if not isinstance(linear, torch.nn.Linear):
            raise UnsupportedType(
                f"{cls.__name__} is made of a torch.nn.Linear, not of a {type(linear).__name__}"
            )
        made = cls(
            linear.in_features,
            linear.out_features,
            bias=linear.bias is not None,
            device=linear.weight.device,
            dtype=linear.weight.dtype,
            **options,
        )
        start, stop = made._share(linear.weight.shape[cls.side])
        with torch.no_grad():
            made.weight.copy_(linear.weight.narrow(cls.side, start, stop - start))
            if made.bias is not None:
                whole = linear.bias
                made.bias.copy_(whole[start:stop] if cls.side == 0 else whole)
        made.train(linear.training)
        return made

    def _product(self, x: torch.Tensor, placements: tuple[str, str], placement: str) -> Any:
        words = ["bias"] if self.bias is not None else []
        words += [self.activation] if self.activation != "none" else []
        epilogue = Epilogue.parse("+".join(words) or "none")
        return matmul(
            x,
            self.weight.T,
            group=self.group,
            placements=placements,
            placement=placement,
            epilogue=epilogue,
            bias=self.bias,
            precision=self.precision,
            strategy=self.strategy,
            device=self.product_device,
        )

    def extra_repr(self) -> str:
        """As of `torch.nn.Linear`."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, activation={self.activation!r}, "
            f"sequence_parallel={self.sequence_parallel}, ranks={dist.get_world_size(self.group)}"
        )


class ColumnParallelLinear(_ParallelLinear):
    """activation(x Wᵀ + bias) with the outputs spread over ranks.

    Each rank has a share of the rows of W, and gets that share of the outputs' last dimension. With
    `sequence_parallel`, each has a share of the rows of x, which are gathered under the product;
    without it, all ranks have all of x.

    Args:
        in_features: k.
        out_features: n, of all ranks together.
        bias: whether there is one; each rank has a share.
        activation: fused into the product.
        sequence_parallel: whether the first dimension of x is spread.
        group: the ranks, by default all.
        precision: as for `gemmkit.matmul`.
        strategy: as for `gemmkit.distributed.matmul`.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        UsageError: there is no process group.
    """

    side = 0

    def forward(self, x: torch.Tensor) -> Any:
        """This rank's outputs (…, n / ranks) for x (…, k).

        Raises:
            UsageError, DistributedError: as `gemmkit.distributed.matmul`.
        """
        return self._product(x, ("S(0)" if self.sequence_parallel else "R", "S(1)"), "S(-1)")


class RowParallelLinear(_ParallelLinear):
    """activation(x Wᵀ + bias) with the inputs spread over ranks.

    Each rank has a share of the columns of W and of x's last dimension, and the products are added
    up. With `sequence_parallel`, each rank gets a share of the rows of the result; without it, all
    get all of it.

    Args:
        in_features: k, of all ranks together.
        out_features: n.
        bias: whether there is one, the same on all ranks; it is added once.
        activation: fused into the product that completes the sums.
        sequence_parallel: whether the first dimension of the result is spread.
        group: the ranks, by default all.
        precision: as for `gemmkit.matmul`.
        strategy: as for `gemmkit.distributed.matmul`.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        UsageError: there is no process group.
    """

    side = 1

    def forward(self, x: torch.Tensor) -> Any:
        """The result (…, n) of all ranks' x (…, k / ranks), or this rank's rows of it.

        Raises:
            UsageError, DistributedError: as `gemmkit.distributed.matmul`.
        """
        return self._product(x, ("S(-1)", "S(0)"), "S(0)" if self.sequence_parallel else "R")


_KINDS = {"column": ColumnParallelLinear, "row": RowParallelLinear}


def parallelize(
    model: torch.nn.Module, layers: Mapping[str, str], **options: Any
) -> torch.nn.Module:
    """Spread linear layers of a model, which all ranks have, over the ranks of a group.

    Args:
        model: changed in place.
        layers: by the name of each layer, as of `model.named_modules()`, "column" or "row": in a
            block of two, the first is column-parallel and the second row-parallel.
        **options: of the layers, such as `group` and `sequence_parallel`.

    Returns:
        The model.

    Raises:
        UsageError: there is no such layer, or no such kind.
        UnsupportedType: a layer is no `torch.nn.Linear`.
    """
    known = dict(model.named_modules())
    for name, kind in layers.items():
        if kind not in _KINDS:
            raise UsageError(unknown_name("kind of parallel layer", kind, _KINDS))
        if not name or name not in known:
            raise UsageError(unknown_name("layer", name, [each for each in known if each]))
    for name, kind in layers.items():
        parent, _, child = name.rpartition(".")
        setattr(known[parent], child, _KINDS[kind].from_linear(known[name], **options))
    return model
