"""How gemmkit's operators become known to PyTorch, and what holds inside of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import library as operators

from gemmkit.ops.libraries.torch_checks import check_tangents
from gemmkit.ops.tracing import inside_operator


def register(
    name: str,
    schema: str,
    compute: Callable[..., Any],
    like: Callable[..., Any],
    *,
    writes: Sequence[str] = (),
    backward: Callable[..., Any] | None = None,
    context: Callable[..., None] | None = None,
) -> None:
    """Make an operator known.

    Args:
        name: without the namespace, which is gemmkit's.
        schema: written out, in the form of all of PyTorch's versions.
        compute: the result for tensors that have memory, whatever modes are active.
        like: a result of the same shape, type and device, for tensors that have none.
        writes: the arguments that it overwrites.
        backward: the gradients of its arguments, from what `context` saves; without it, it has
            none.
        context: called with autograd's context, the arguments and the result.
    """

    def run(*arguments: Any) -> Any:
        check_tangents(_tensors(names, arguments))
        with inside_operator():
            return compute(*arguments)

    made = operators.custom_op(f"gemmkit::{name}", run, mutates_args=writes, schema=schema)
    names = [each.name for each in made._opoverload._schema.arguments]
    made.register_fake(like)
    if backward is not None:
        made.register_autograd(backward, setup_context=context)


def _tensors(names: Sequence[str], arguments: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """The tensors among an operator's arguments, those of lists by names such as `a[0]`."""
    for name, given in zip(names, arguments, strict=False):
        if isinstance(given, torch.Tensor):
            yield name, given
        elif isinstance(given, list):
            yield from (
                (f"{name}[{place}]", each)
                for place, each in enumerate(given)
                if isinstance(each, torch.Tensor)
            )
