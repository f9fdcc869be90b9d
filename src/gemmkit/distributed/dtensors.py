"""`DTensor`s: their parts and placements, and `torch.mm` of them by gemmkit."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from gemmkit.distributed.placements import Word, read_placement
from gemmkit.distributed.products import multiply
from gemmkit.distributed.spread import SpreadProduct
from gemmkit.distributed.team import Team, team_of
from gemmkit.dtypes import RESULT_TYPES
from gemmkit.errors import UnsupportedProblem, UnsupportedType, UsageError


def read_dtensors(a: Any, b: Any) -> tuple[Any, tuple[tuple[Word, Word], ...], tuple[Any, Any]]:
    """The mesh, the placements and the local parts of two `DTensor`s.

    Raises:
        UsageError: one is none, or they are on different meshes.
    """
    for name, each in (("a", a), ("b", b)):
        if not isinstance(each, DTensor):
            raise UnsupportedType(f"{name} has type {type(each).__name__} beside a DTensor")
    if a.device_mesh != b.device_mesh:
        raise UsageError(f"a is on {a.device_mesh} and b on {b.device_mesh}")
    words = [_words(each) for each in (a, b)]
    parts = tuple(
        matrix.to_local(
            grad_placements=[
                Replicate() if word == "P" else each
                for word, each in zip(of, matrix.placements, strict=True)
            ]
        )
        for matrix, of in zip((a, b), words, strict=True)
    )
    return a.device_mesh, tuple(zip(*words, strict=True)), (parts[0], parts[1])


def _words(matrix: Any) -> list[Word]:
    return [read_placement(each, len(matrix.shape)) for each in matrix.placements]


def as_dtensor(
    made: Any, result: Sequence[Word], mesh: Any, shape: Sequence[int], rows: int
) -> Any:
    """A `DTensor` of this rank's part of the result."""
    last = len(shape) - 1
    kinds = {"R": Replicate(), "P": Partial(), "S(0)": Shard(rows), "S(1)": Shard(last)}
    return DTensor.from_local(
        made,
        mesh,
        [kinds[each] for each in result],
        run_check=False,
        shape=torch.Size(shape),
        stride=contiguous_strides(shape),
    )


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Of a tensor whose last dimension's elements are neighbors."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * max(size, 1))
    return tuple(strides)


# --- torch.mm and torch.addmm of DTensors -------------------------------------------------------

_lock = threading.RLock()


class _Handlers:
    """What DTensor called before gemmkit's products, and how often these were asked for."""

    def __init__(self) -> None:
        self.entered = 0
        self.kept: dict[Any, Any] = {}


_handlers = _Handlers()


def use_gemmkit() -> None:
    """Have gemmkit compute `torch.mm` and `torch.addmm` of all `DTensor`s from now on.

    This is what `torch.matmul`, `torch.nn.Linear` and their gradients are made of, so that a model
    whose parameters are `DTensor`s is switched over by this one call. What gemmkit has no product
    for stays with PyTorch. `stop_using_gemmkit` ends it.

    Raises:
        UsageError: this PyTorch has no place for other products of `DTensor`s.
    """
    with _lock:
        _handlers.entered += 1
        if _handlers.entered > 1:
            return
        known = _table()
        aten = torch.ops.aten
        for operator, handler in ((aten.mm.default, _mm), (aten.addmm.default, _addmm)):
            _handlers.kept[operator] = known.get(operator)
            known[operator] = handler


def stop_using_gemmkit() -> None:
    """Undo one call of `use_gemmkit`."""
    with _lock:
        if not _handlers.entered:
            return
        _handlers.entered -= 1
        if _handlers.entered:
            return
        known = _table()
        for operator, before in _handlers.kept.items():
            if before is None:
                known.pop(operator, None)
            else:
                known[operator] = before
        _handlers.kept.clear()


@contextmanager
def using_gemmkit() -> Iterator[None]:
    """As `use_gemmkit`, within a block."""
    use_gemmkit()
    try:
        yield
    finally:
        stop_using_gemmkit()


def _table() -> dict[Any, Any]:
    dispatcher = getattr(DTensor, "_op_dispatcher", None)
    found = getattr(dispatcher, "_custom_op_handlers", None)
    if not isinstance(found, dict):
        raise UsageError(
            f"PyTorch {torch.__version__} has no place for other products of DTensors: call "
            "gemmkit.distributed.matmul"
        )
    return found


def _mm(operator: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """`aten.mm`, of which at least one argument is a `DTensor`."""
    a, b = arguments
    made = None if options else _product(a, b, None)
    return _by_torch(operator, arguments, options) if made is None else made


def _addmm(operator: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """`aten.addmm` of a vector, as `torch.nn.Linear` calls it."""
    added, a, b = arguments
    vector = isinstance(added, DTensor) and len(added.shape) == 1
    made = _product(a, b, added) if vector and not options else None
    return _by_torch(operator, arguments, options) if made is None else made


def _by_torch(operator: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What PyTorch itself makes of a call."""
    with _lock:
        table = _table()
        handler, before = table[operator], _handlers.kept.get(operator)
        if before is not None:
            return before(operator, arguments, options)
        del table[operator]
        try:
            return operator(*arguments, **options)
        finally:
            table[operator] = handler


def _product(a: Any, b: Any, bias: Any) -> Any:
    """The product of two `DTensor`s with a bias, or None where gemmkit has none."""
    alike = isinstance(a, DTensor) and isinstance(b, DTensor) and a.dtype == b.dtype
    if not alike or a.device_mesh != b.device_mesh:
        return None
    if str(a.dtype).removeprefix("torch.") not in RESULT_TYPES:
        return None
    mesh = a.device_mesh
    teams = tuple(team_of(mesh.get_group(at), a._local_tensor.device) for at in range(mesh.ndim))
    try:
        pairs = tuple(zip(_words(a), _words(b), strict=True))
        whole = (*a.shape, *b.shape)
        asked = SpreadProduct(
            _arrived(a), _arrived(b), teams, pairs, (None,) * mesh.ndim, whole=whole
        )
        made, result = multiply(asked)
    except UnsupportedProblem:
        return None
    if bias is not None:
        made = made + _bias_part(bias, result, teams)
    return as_dtensor(made, result, mesh, (a.shape[0], b.shape[1]), 0)


def _arrived(matrix: Any) -> Any:
    """The local part, which may be on its way from other ranks.

    Handlers are below autograd, which records the product of the `DTensor`s; the local part of an
    activation may require a gradient all the same.
    """
    part = matrix._local_tensor
    return (part.wait() if hasattr(part, "trigger_wait") else part).detach()


def _bias_part(bias: Any, result: Sequence[Word], teams: Sequence[Team]) -> Any:
    """This rank's part of a bias; of sums, the first rank adds it."""
    wanted = [Shard(0) if each == "S(1)" else Replicate() for each in result]
    part = _arrived(bias.redistribute(bias.device_mesh, wanted))
    first = all(team.rank == 0 for team, each in zip(teams, result, strict=True) if each == "P")
    return part if first else torch.zeros_like(part)
