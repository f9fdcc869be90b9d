"""`gemmkit.distributed.matmul`: DTensors, and plain tensors with a process group or a mesh."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import isfinite, prod
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from gemmkit.distributed.agreements import known_agreement
from gemmkit.distributed.autograd import differentiable
from gemmkit.distributed.call_log import CallLog
from gemmkit.distributed.local import LocalProduct
from gemmkit.distributed.placements import Word, read_placement
from gemmkit.distributed.splits import shares
from gemmkit.distributed.spread import SpreadProduct
from gemmkit.distributed.strategy import Strategy
from gemmkit.distributed.team import Team, team_of
from gemmkit.distributed.warm import WarmCall
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem, UnsupportedType, UsageError
from gemmkit.ops.libraries.torch import watched
from gemmkit.ops.precision import get_precision, setting
from gemmkit.ops.request import number
from gemmkit.units import counted


def matmul(
    a: Any,
    b: Any,
    *,
    group: Any = None,
    placements: Any = None,
    placement: Any = None,
    alpha: float = 1.0,
    epilogue: Epilogue | str | None = None,
    bias: Any = None,
    residual: Any = None,
    out_dtype: Any = None,
    precision: str | None = None,
    strategy: Strategy | str | None = None,
    shape: tuple[int, int, int] | None = None,
    device: Any = None,
) -> Any:
    """Compute scale · activation(alpha · a @ b + bias) + residual over several ranks.

    All ranks call it together, with shapes of their own and all else alike. They compare what they
    ask for: on CPUs in each call, on GPUs the first time that they see a product, so that there
    the shapes of a rank's plain tensors have to change when those of another rank do, or `shape`
    has to be given. Where k is not split, each element of the result is computed by one rank as a
    whole; where it is, the ranks' sums are added in an order that depends on the element's place
    alone, so that all ranks and all runs get the same bits.
    With a result in 16 bits, sums on their way have 16 bits too. Gradients are recorded.

    Args:
        a: this rank's part of an m×k matrix, or of a stack of rows (…, k), or a `DTensor`.
        b: this rank's part of a k×n matrix, or a `DTensor`.
        group: for plain tensors, the process group, by default that of all ranks, or a
            `DeviceMesh` of one or two dimensions.
        placements: for plain tensors, those of a and b: each "S(0)", "S(1)", "R" or "P", or an
            object of `torch.distributed.tensor`; for a mesh of several dimensions a sequence of
            these for each of the two. Shares are as `torch.chunk` makes them, or as long as you
            like if all are given.
        placement: that of the result, likewise; by default what follows without communication
            after the product.
        alpha: a number.
        epilogue: an `Epilogue`, or the text of one. It follows the complete sums.
        bias: this rank's part, for its part of the result; for a `DTensor` result a `DTensor` or
            the local part.
        residual: likewise, with the shape of this rank's part of the result.
        out_dtype: the type of the result, by default that of a.
        precision: as for `gemmkit.matmul`.
        strategy: how, such as "collective" or "copies-2": see `Strategy`; by default what is
            predicted to be fastest.
        shape: for plain tensors, the rows, columns and depth (m, n, k) of the whole product, the
            same on all ranks: for shares that change from call to call on some ranks alone.
        device: as for `gemmkit.matmul`, for tensors on the CPU.

    Returns:
        This rank's part of the result, or a `DTensor`.

    Raises:
        UsageError: arguments that do not go together on this rank.
        DistributedError: ranks ask for different products, or one has failed.
        UnsupportedProblem: there is no such product, or not by this strategy.
    """
    given = placements, placement, alpha, epilogue, out_dtype, precision, strategy, shape, device
    key = _key(a, b, group, bias, residual, given)
    found = None if key is None else _warm.get(key)
    if found is not None:
        call, rows, entries = found
        for log, digest in entries:
            log.note(digest)
        if rows is None:
            return call(a, b, bias, residual)
        lines, leading = _flat(a, rows)
        return _unflat(
            call(lines, b, bias, None if residual is None else _flat(residual, rows)[0]),
            leading,
            rows,
        )
    alpha = number("alpha", alpha)
    if not isfinite(alpha):
        raise UsageError(f"alpha = {alpha} is not a finite number")
    if isinstance(strategy, str):
        strategy = Strategy.parse(strategy)
    if strategy is not None and not isinstance(strategy, Strategy):
        raise UnsupportedType(
            f"strategy = {strategy!r}: give a Strategy or its text, such as 'collective'"
        )
    if isinstance(epilogue, str):
        epilogue = Epilogue.parse(epilogue)
    if epilogue is not None and not isinstance(epilogue, Epilogue):
        raise UnsupportedType(
            f"epilogue = {epilogue!r}: give an Epilogue or its words, such as 'bias+relu'"
        )
    if epilogue is not None and epilogue.auxiliary:
        raise UnsupportedProblem("over ranks, no input of the activation is stored")
    spread = is_dtensor(a) or is_dtensor(b)
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
        mesh, words = _group_and_words(a, b, group, placements)
        local_a, local_b = a, b
    if local_a.dim() < 2 or local_b.dim() != 2:
        raise UsageError(
            f"a has {counted(local_a.dim(), 'dimension')} and b {local_b.dim()}: over ranks, a has "
            "2 or more, (…, k), and b has 2, (k, n)"
        )
    teams = _teams(mesh, local_a.device)
    rows = _row_dimension(a, local_a.dim(), placements, placement, spread)
    wanted = _wanted(placement, len(teams), local_a.dim())
    lines, leading = _flat(local_a, rows)
    product = LocalProduct(
        alpha=alpha,
        epilogue=epilogue,
        bias=_local(bias),
        residual=None if residual is None else _flat(_local(residual), rows)[0],
        precision=precision,
        device=device,
    )
    whole = (*a.shape, *b.shape) if spread else _whole(shape)
    part = _part(leading, local_b.shape[1], teams, words, wanted)
    asked = SpreadProduct(
        lines, local_b, teams, words, wanted, product, out_dtype, strategy, whole, part
    )
    made, result = differentiable(asked)
    made = _unflat(made, leading, rows)
    if not spread:
        known = None if key is None else known_agreement(asked)
        if known is not None and known.call is not None:
            if len(_warm) >= _MOST_WARM:
                _warm.clear()
            _warm[key] = _Warm(known.call, None if a.dim() == 2 else rows, known.entries)
        return made
    from gemmkit.distributed.dtensors import as_dtensor

    return as_dtensor(made, result, mesh, (*a.shape[:-1], b.shape[-1]), rows)


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


# --- warm calls -----------------------------------------------------------------------------------


class _Warm(NamedTuple):
    """How a call is made that ranks have agreed on: with which dimension spread as rows if there
    are more than two, and with what is entered into the logs of its groups."""

    call: WarmCall
    rows: int | None
    entries: tuple[tuple[CallLog, int], ...]


# By what was asked for.
_warm: dict[Hashable, _Warm] = {}
_MOST_WARM = 4096

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


def _key(
    a: Any, b: Any, group: Any, bias: Any, residual: Any, given: tuple[Any, ...]
) -> Hashable | None:
    """What a call on GPUs depends on beside the content of its arrays; None where it is looked at
    each time: for tensors with gradients, tracers, and numbers in objects that may change."""
    if type(a) not in _PLAIN_TYPES or type(b) not in _PLAIN_TYPES or watched():
        return None
    if type(given[2]) is not float and type(given[2]) is not int:
        return None
    gradient = a.requires_grad or b.requires_grad
    further: list[Hashable] = []
    for each in (bias, residual):
        if each is None:
            further.append(None)
        elif type(each) not in _PLAIN_TYPES:
            return None
        else:
            gradient = gradient or each.requires_grad
            further.append((each.shape, each.dtype, each.get_device()))
    if gradient and torch.is_grad_enabled():
        return None
    key = (
        *(a.shape, a.dtype, a.get_device(), b.shape, b.dtype, b.get_device()),
        *(dist.group.WORLD if group is None else group, *further, *given),
        get_precision() if setting.touched else None,
    )
    try:
        hash(key)
    except TypeError:
        # A list of placements, say.
        return None
    return key


# --- placements and teams -----------------------------------------------------------------------


def _group_and_words(
    a: Any, b: Any, group: Any, placements: Any
) -> tuple[Any, tuple[tuple[Word, Word], ...]]:
    """The group or mesh of plain tensors, and their placements for each dimension of it."""
    dimensions = group.ndim if isinstance(group, DeviceMesh) else 1
    if placements is None or isinstance(placements, str) or len(placements) != 2:
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
            f"{len(found)} placements for a mesh of {dimensions} dimensions: give one for each"
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


# --- rows of more than one dimension ------------------------------------------------------------


def _row_dimension(a: Any, dimensions: int, placements: Any, placement: Any, spread: bool) -> int:
    """The dimension of a and of the result that is spread as rows, 0 if none is.

    Raises:
        UnsupportedProblem: there are two.
    """
    given: list[Any] = list(a.placements) if spread else _listed(placements[0])
    given += _listed(placement)
    found = set()
    for each in given:
        place = getattr(each, "dim", None)
        if place is None and isinstance(each, str) and read_placement(each, dimensions) == "S(0)":
            place = int("".join(mark for mark in each if mark in "-0123456789"))
        if place is not None and place % dimensions != dimensions - 1:
            found.add(place % dimensions)
    if len(found) > 1:
        raise UnsupportedProblem(
            f"a and the result are spread along the dimensions {sorted(found)}: redistribute a "
            "along one of them"
        )
    return found.pop() if found else 0


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]


def _flat(array: Any, rows: int) -> tuple[Any, tuple[int, ...]]:
    """Rows of two dimensions, the spread one first, and the sizes of the leading dimensions."""
    if array.dim() == 2:
        return array, tuple(array.shape[:1])
    turned = array.movedim(rows, 0)
    return turned.flatten(0, -2), tuple(turned.shape[:-1])


def _part(
    leading: Sequence[int],
    columns: int,
    teams: Sequence[Team],
    words: Sequence[tuple[Word, Word]],
    wanted: Sequence[Word | None],
) -> tuple[int, ...]:
    """The rows and columns that this rank is to have of a result whose rows have several dimensions
    and become spread: whole lines of the others, and not what `torch.chunk` makes of all rows."""
    if len(leading) == 1:
        return ()
    for team, (of_a, _), of_result in zip(teams, words, wanted, strict=True):
        if of_result == "S(0)" and of_a != "S(0)":
            own = shares(leading[0], team.size)[team.rank].size
            return own * prod(leading[1:]), columns
    return ()


def _unflat(made: Any, leading: Sequence[int], rows: int) -> Any:
    if len(leading) == 1:
        return made
    # How many lines there are of the spread dimension may have changed.
    return made.unflatten(0, (-1, *leading[1:])).movedim(0, rows)


def _local(array: Any) -> Any:
    return array.to_local() if is_dtensor(array) else array
