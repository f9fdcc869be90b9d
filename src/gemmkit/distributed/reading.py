"""What is asked of `gemmkit.distributed.matmul`, read and checked on one rank."""

from __future__ import annotations

from math import isfinite
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from gemmkit.distributed.local import LocalProduct
from gemmkit.distributed.placements import Word, read_placement
from gemmkit.distributed.rows import flat, matrix_of_scales, part_of_rows, row_dimension
from gemmkit.distributed.spread import COMPUTES, SpreadProduct, check_dense
from gemmkit.distributed.strategy import Strategy
from gemmkit.distributed.team import Team, team_of
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem, UnsupportedType, UsageError
from gemmkit.ops.libraries.torch import check_gradient
from gemmkit.ops.request import number, parsed_epilogue
from gemmkit.ops.scale_numbers import without_numbers
from gemmkit.units import counted


class Read(NamedTuple):
    """What is asked for, which dimension of rows is spread, the sizes of a's leading dimensions,
    and the mesh of `DTensor`s, None of plain tensors."""

    asked: SpreadProduct
    rows: int
    leading: tuple[int, ...]
    mesh: Any


def read_arguments(
    a: Any,
    b: Any,
    group: Any,
    placements: Any,
    placement: Any,
    alpha: float,
    beta: float,
    epilogue: Any,
    beside: dict[str, Any],
    scales: tuple[Any, Any],
    out_dtype: Any,
    precision: str | None,
    strategy: Any,
    shape: Any,
    device: Any,
) -> Read:
    """Read and check what this rank asks for.

    Raises:
        UsageError: arguments that do not go together.
    """
    alpha, beta = _finite("alpha", alpha), _finite("beta", beta)
    if beta and beside["c"] is None:
        raise UsageError(f"beta = {beta:g} needs c: give c, placed as the result")
    if not beta:
        # By the rules of BLAS, C is not read then.
        beside["c"] = None
    alpha, scale_a, scale_b = without_numbers(alpha, *scales, like=a)
    strategy, epilogue = _strategy(strategy), _epilogue(epilogue)
    spread = is_dtensor(a) or is_dtensor(b)
    mesh = None
    if spread:
        from gemmkit.distributed.dtensors import read_dtensors

        if group is not None or placements is not None or shape is not None:
            raise UsageError(
                "DTensors have a mesh, placements and a shape: leave out group, placements and "
                "shape"
            )
        mesh, words, (local_a, local_b) = read_dtensors(a, b)
    else:
        for name, each in (("a", a), ("b", b)):
            if not isinstance(each, torch.Tensor):
                raise UnsupportedType(f"{name} has type {type(each).__name__}: give tensors")
        group, words = _group_and_words(a, b, group, placements)
        local_a, local_b = a, b
    check_dense("a", local_a)
    check_dense("b", local_b)
    for name, each in beside.items():
        if each is not None and not isinstance(each, torch.Tensor):
            raise UnsupportedType(f"{name} has type {type(each).__name__}: give a tensor")
        if each is not None:
            check_dense(name, local_part(each))
    if local_a.dim() < 2 or local_b.dim() != 2:
        raise UsageError(
            f"a has {counted(local_a.dim(), 'dimension')} and b {local_b.dim()}: over ranks, a has "
            "2 or more, (…, k), and b has 2, (k, n)"
        )
    teams = _teams(mesh if spread else group, local_a.device)
    rows = row_dimension(a, local_a.dim(), placements, placement, spread)
    wanted = _wanted(placement, len(teams), local_a.dim())
    lines, leading = flat(local_a, rows)
    for name in ("residual", "c", "out"):
        if beside[name] is not None and beside[name].dim() != local_a.dim():
            raise UsageError(
                f"{name} has {counted(beside[name].dim(), 'dimension')} and a {local_a.dim()}: "
                f"{name} has the shape of this rank's part of the result"
            )
    out = local_part(beside["out"])
    if out is not None:
        check_gradient(out, "out")
    arrays = (local_a, local_b, *(each for name, each in beside.items() if name != "out"))
    if out is not None and torch.is_grad_enabled() and any(map(_needs_gradient, arrays)):
        raise UsageError(
            "out takes no gradients: leave it out, detach() the operands, or enter torch.no_grad()"
        )
    product = LocalProduct(
        alpha=alpha,
        beta=beta,
        epilogue=epilogue,
        bias=local_part(beside["bias"]),
        residual=_flat_or_none(local_part(beside["residual"]), rows),
        c=_flat_or_none(local_part(beside["c"]), rows),
        precision=precision,
        device=device,
    )
    if out is not None and out_dtype is None:
        out_dtype = str(out.dtype).removeprefix("torch.")
    whole = (*a.shape, *b.shape) if spread else _whole(shape)
    part = part_of_rows(leading, local_b.shape[1], teams, words, wanted)
    asked = SpreadProduct(
        *(lines, local_b, teams, words, wanted, product, out_dtype, strategy, whole, part),
        out=_flat_or_none(out, rows),
        scale_a=_scale_matrix("scale_a", scale_a, rows),
        scale_b=_scale_matrix("scale_b", scale_b, 0),
        placed=_placed(beside) if spread else (),
    )
    return Read(asked, rows, leading, mesh)


# --- options ------------------------------------------------------------------------------------


def _finite(name: str, given: Any) -> float:
    found = number(name, given)
    if not isfinite(found):
        raise UsageError(f"{name} = {found} is not a finite number")
    return found


def _strategy(given: Any) -> Strategy | None:
    strategy = Strategy.parse(given) if isinstance(given, str) else given
    if strategy is not None and not isinstance(strategy, Strategy):
        raise UnsupportedType(
            f"strategy = {strategy!r}: give a Strategy or its text, such as 'collective'"
        )
    return strategy


def _epilogue(given: Any) -> Epilogue | None:
    epilogue = None if given is None else parsed_epilogue(given)
    if epilogue is not None and epilogue.auxiliary:
        raise UnsupportedProblem("over ranks, no input of the activation is stored")
    return epilogue


def _whole(shape: Any) -> tuple[int, ...]:
    """The given m, n and k."""
    if shape is None:
        return ()
    sizes = tuple(shape) if isinstance(shape, tuple | list) else ()
    if len(sizes) != 3 or any(type(each) is not int or each < 0 for each in sizes):
        raise UsageError(f"shape = {shape!r}: give m, n and k of the whole product")
    return sizes


def is_dtensor(array: Any) -> bool:
    """Whether an array is a `DTensor`, whose module takes long to import."""
    return any(kind.__name__ == "DTensor" for kind in type(array).__mro__)


def local_part(array: Any) -> Any:
    """This rank's part of a `DTensor`; anything else as it is."""
    return array.to_local() if is_dtensor(array) else array


def _needs_gradient(array: Any) -> bool:
    return array is not None and bool(array.requires_grad)


def _flat_or_none(array: Any, rows: int) -> Any:
    return None if array is None else flat(array, rows)[0]


def _scale_matrix(name: str, given: Any, rows: int) -> Any:
    """Scales as a matrix: one element for all, or with the dimensions of their operand.

    Raises:
        UsageError: they are neither.
    """
    if given is None:
        return None
    if not isinstance(given, torch.Tensor):
        raise UnsupportedType(f"{name} has type {type(given).__name__}: give a number or a tensor")
    local = local_part(given)
    check_dense(name, local)
    if local.dim() < 2 and local.numel() != 1:
        raise UsageError(
            f"{name} has {counted(local.dim(), 'dimension')}: give one element, or as many "
            "dimensions as its operand has"
        )
    return matrix_of_scales(local, rows)


def _placed(beside: dict[str, Any]) -> tuple[tuple[str, tuple[Word, ...]], ...]:
    """The names and placements of `DTensor`s that are placed as the result."""
    return tuple(
        (name, tuple(read_placement(word, len(each.shape)) for word in each.placements))
        for name, each in beside.items()
        if name in ("c", "out", "residual") and is_dtensor(each)
    )


# --- placements and teams -----------------------------------------------------------------------


def _group_and_words(
    a: Any, b: Any, group: Any, placements: Any
) -> tuple[Any, tuple[tuple[Word, Word], ...]]:
    """The group or mesh of plain tensors, and their placements for each dimension of it."""
    dimensions = group.ndim if isinstance(group, DeviceMesh) else 1
    if not isinstance(placements, list | tuple) or len(placements) != 2:
        raise UsageError(
            "placements: give those of a and b, such as placements=('S(0)', 'S(1)') for rows of A "
            "and columns of B"
        )
    words = [
        [read_placement(each, matrix.dim()) for each in _sequence(given, dimensions)]
        for given, matrix in zip(placements, (a, b), strict=True)
    ]
    return group, tuple(zip(*words, strict=True))


def _sequence(given: Any, dimensions: int) -> list[Any]:
    """One placement per dimension of a mesh."""
    found = list(given) if isinstance(given, list | tuple) else [given]
    if len(found) != dimensions:
        raise UsageError(
            f"{counted(len(found), 'placement')} for a mesh of {counted(dimensions, 'dimension')}: "
            "give one for each"
        )
    return found


def _wanted(placement: Any, dimensions: int, of_a: int) -> tuple[Word | None, ...]:
    if placement is None:
        return (None,) * dimensions
    given = _sequence(placement, dimensions)
    return tuple(None if each is None else read_placement(each, of_a) for each in given)


def _teams(mesh: Any, device: Any) -> tuple[Team, ...]:
    if isinstance(mesh, DeviceMesh):
        return tuple(team_of(mesh.get_group(at), device) for at in range(mesh.ndim))
    if mesh is not None and not isinstance(mesh, dist.ProcessGroup):
        raise UsageError(
            f"group = {mesh!r}: give a process group of torch.distributed that this process is "
            "in, or a DeviceMesh"
        )
    return (team_of(mesh, device),)


def teams_at_hand(a: Any, b: Any, group: Any) -> tuple[Team, ...]:
    """The teams that a call is for of which something else is wrong; none if that is their group,
    or they have no tensor to say where."""
    tensors = [local_part(each) for each in (a, b) if isinstance(each, torch.Tensor)]
    mesh = next((each.device_mesh for each in (a, b) if is_dtensor(each)), group)
    tensors = [each for each in tensors if each.device.type in COMPUTES]
    if not tensors or not dist.is_available() or not dist.is_initialized():
        return ()
    try:
        return _teams(mesh, tensors[0].device)
    except UsageError:
        return ()
