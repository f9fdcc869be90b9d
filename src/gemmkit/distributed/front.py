"""`gemmkit.distributed.matmul`: DTensors, and plain tensors with a process group or a mesh."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from gemmkit.distributed.agreements import known_agreement
from gemmkit.distributed.autograd import differentiable
from gemmkit.distributed.call_log import CallLog
from gemmkit.distributed.reading import local_part, read_arguments, teams_at_hand
from gemmkit.distributed.refusals import refusing
from gemmkit.distributed.rows import flat, matrix_of_scales, unflat
from gemmkit.distributed.strategy import Strategy
from gemmkit.distributed.team import Team, forgetting
from gemmkit.distributed.warm import WarmCall
from gemmkit.epilogue import Epilogue
from gemmkit.ops.libraries.torch import watched
from gemmkit.ops.precision import get_precision, setting


def matmul(
    a: Any,
    b: Any,
    *,
    group: Any = None,
    placements: Any = None,
    placement: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
    out: Any = None,
    epilogue: Epilogue | str | None = None,
    bias: Any = None,
    residual: Any = None,
    scale_a: Any = None,
    scale_b: Any = None,
    out_dtype: Any = None,
    precision: str | None = None,
    strategy: Strategy | str | None = None,
    shape: tuple[int, int, int] | None = None,
    device: Any = None,
) -> Any:
    """Compute scale · activation(alpha · a @ b + beta · c + bias) + residual over several ranks.

    All ranks call it together, with shapes of their own and all else alike. They compare what they
    ask for: on CPUs in each call, on GPUs the first time that they see a product, so that there
    the shapes of a rank's plain tensors have to change when those of another rank do, or `shape`
    has to be given. An argument that is wrong on one rank is an error on all of them. Where k is
    not split, each element of the result is computed by one rank as a whole; where it is, the
    ranks' sums are added in an order that depends on the element's place alone, and panels of k in
    one that depends on the rank's place in the mesh alone, so that all ranks and all runs get the
    same bits. With a result in 16 bits, sums on their way have 16 bits too. Gradients are recorded.

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
        beta: a number; if it is 0, c is not read.
        c: this rank's part of a matrix that is placed as the result, with its type; `out` itself
            may be it. For a result P, all ranks' parts are added up.
        out: the array for this rank's part of the result, with its shape and type; it may be
            strided, but must not overlap a or b. For `DTensor`s one that is placed as the result,
            or this rank's part.
        epilogue: an `Epilogue`, or the text of one. It follows the complete sums.
        bias: this rank's part, for its part of the result; for a `DTensor` result a `DTensor` or
            the local part.
        residual: likewise, with the shape of this rank's part of the result.
        scale_a: of elements of 8 bits, the scales of this rank's part of a, as `gemmkit.matmul` has
            them for a matrix: one element, one for each row, and so on. A number is the same on all
            ranks. Chunks of 128 of k are counted from where this rank's share of k begins.
        scale_b: likewise of b.
        out_dtype: the type of the result, by default that of `out`, or of a, float32 if that has
            8 bits.
        precision: as for `gemmkit.matmul`.
        strategy: how, such as "collective" or "copies-2": see `Strategy`; by default what is
            predicted to be fastest.
        shape: for plain tensors, the rows, columns and depth (m, n, k) of the whole product, the
            same on all ranks: for shares that change from call to call on some ranks alone.
        device: as for `gemmkit.matmul`, for tensors on the CPU.

    Returns:
        `out`, this rank's part of the result, or a `DTensor`.

    Raises:
        UsageError: arguments that do not go together on this rank, or c, out, bias or residual
            that do not fit the result on a rank.
        DistributedError: ranks ask for different products, another one has arguments that do not go
            together, or one has failed.
        UnsupportedProblem: there is no such product, or not by this strategy.
    """
    if not beta:
        # By the rules of BLAS, it is not read.
        c = None
    key: Hashable | None = None
    found = None
    if (
        type(a) in _PLAIN_TYPES
        and type(b) in _PLAIN_TYPES
        # Numbers in objects that may change are looked at each time.
        and type(alpha) in _NUMBERS
        and type(beta) in _NUMBERS
        and not watched()
    ):
        further = scales = None
        if scale_a is not None or scale_b is not None:
            scales = _scales((scale_a, scale_b), out)
        if bias is not None or residual is not None or c is not None or out is not None:
            further = _further((bias, residual, c, out))
        if (
            further is not _LOOKED_AT
            and scales is not _LOOKED_AT
            and not ((a.requires_grad or b.requires_grad) and torch.is_grad_enabled())
        ):
            # What a call on GPUs depends on beside the content of its arrays.
            # fmt: off
            key = (
                a.shape, a.dtype, a.get_device(), a.layout,
                b.shape, b.dtype, b.get_device(), b.layout, further, scales,
                dist.group.WORLD if group is None else group, placements, placement, alpha, beta,
                epilogue, out_dtype, precision, strategy, shape, device,
                get_precision() if setting.touched else None,
            )
            # fmt: on
            try:
                found = _warm.get(key)
            except TypeError:
                # A list of placements, say.
                key = None
    if found is not None and not (found.eager_only and torch.cuda.is_current_stream_capturing()):
        call, rows, entries, *_ = found
        for log, digest in entries:
            log.note(digest)
        # Numbers are factors of alpha.
        of_a = matrix_of_scales(scale_a, rows or 0) if type(scale_a) in _PLAIN_TYPES else None
        of_b = matrix_of_scales(scale_b, 0) if type(scale_b) in _PLAIN_TYPES else None
        if rows is None:
            made = call(a, b, bias, residual, c, out, of_a, of_b)
            return made if out is None else _written(made, out)
        lines, leading = flat(a, rows)
        beside = [None if each is None else flat(each, rows)[0] for each in (residual, c, out)]
        beside += of_a, of_b
        made = call(lines, b, bias, *beside)
        return _written(unflat(made, leading, rows), out)
    with refusing(lambda: teams_at_hand(a, b, group)):
        asked, rows, leading, mesh = read_arguments(
            *(a, b, group, placements, placement, alpha, beta, epilogue),
            {"bias": bias, "residual": residual, "c": c, "out": out},
            (scale_a, scale_b),
            *(out_dtype, precision, strategy, shape, device),
        )
    made, result = differentiable(asked)
    made = unflat(made, leading, rows)
    if mesh is None:
        known = None if key is None else known_agreement(asked)
        if known is not None and known.call is not None:
            if len(_warm) >= _MOST_WARM:
                _warm.clear()
            spread = None if a.dim() == 2 else rows
            _warm[key] = _Warm(known.call, spread, known.entries, asked.teams, known.eager_only)
        return _written(made, out)
    from gemmkit.distributed.dtensors import as_dtensor

    if out is not None:
        _written(made, local_part(out))
        return out
    return as_dtensor(made, result, mesh, (*a.shape[:-1], b.shape[-1]), rows)


def _written(made: Any, out: Any) -> Any:
    """A result where it was asked for; rows of more than two dimensions are brought there."""
    if out is None:
        return made
    if made.data_ptr() != out.data_ptr():
        out.copy_(made)
    return out


# --- warm calls -----------------------------------------------------------------------------------


class _Warm(NamedTuple):
    """How a call is made that ranks have agreed on: with which dimension spread as rows if there
    are more than two, with what is entered into the logs of its groups, and whether only where no
    CUDA graph is being captured."""

    call: WarmCall
    rows: int | None
    entries: tuple[tuple[CallLog, int], ...]
    teams: Sequence[Team]
    eager_only: bool


# By what was asked for.
_warm: dict[Hashable, _Warm] = {}
_MOST_WARM = 4096


@forgetting
def _forget(teams: Collection[Team]) -> None:
    for key in [key for key, each in _warm.items() if any(team in teams for team in each.teams)]:
        del _warm[key]


_NUMBERS = (float, int)
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_LOOKED_AT = ("each time",)


def _further(arrays: tuple[Any, ...]) -> tuple[Hashable, ...]:
    """What a call depends on of the arrays beside A and B, of which some are there; `_LOOKED_AT`
    where the call is looked at each time: for arrays with gradients, and for no plain tensors."""
    found: list[Hashable] = []
    gradient = False
    for each in arrays:
        if each is None:
            found.append(None)
        elif type(each) not in _PLAIN_TYPES:
            return _LOOKED_AT
        else:
            gradient = gradient or each.requires_grad
            found.append((each.shape, each.dtype, each.get_device(), each.layout))
    out = arrays[-1]
    if out is not None and out.layout is torch.strided:
        # Elements of one that was expanded share memory.
        found.append(out.stride())
    return _LOOKED_AT if gradient and torch.is_grad_enabled() else tuple(found)


def _scales(given: tuple[Any, Any], out: Any) -> tuple[Hashable, ...]:
    """What a call depends on of the scales of A and B, of which some are there, as `_further`; and
    `_LOOKED_AT` where they may share memory with `out`."""
    found: list[Hashable] = []
    for each in given:
        if each is None or type(each) in _NUMBERS:
            found.append(each)
        elif (
            type(each) not in _PLAIN_TYPES
            or each.layout is not torch.strided
            or (each.requires_grad and torch.is_grad_enabled())
            or (out is not None and _same_storage(each, out))
        ):
            return _LOOKED_AT
        else:
            found.append((each.shape, each.stride(), each.dtype, each.get_device()))
    return tuple(found)


def _same_storage(one: Any, other: Any) -> bool:
    """Whether tensors may share memory; of those that are not strided, nothing is asked."""
    if type(other) not in _PLAIN_TYPES or other.layout is not torch.strided:
        return True
    return bool(one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())
