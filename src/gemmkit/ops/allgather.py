"""Products of which one operand is gathered from several GPUs meanwhile: one launch, whose tiles
wait for the rows that they read."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from gemmkit.dispatch.allgather import choose_allgather
from gemmkit.errors import UnsupportedProblem
from gemmkit.kernels.production.allgather_wgmma import Shares
from gemmkit.ops.arrays import GpuLibrary, WarmLibrary, library_of
from gemmkit.ops.product import NOTHING, further_operands, overlapping
from gemmkit.ops.request import Call
from gemmkit.ops.warm import LIBRARIES, Calls
from gemmkit.trials import changes

if TYPE_CHECKING:
    from collections.abc import Hashable

    from gemmkit.devices.launcher import PreparedLaunch
    from gemmkit.ops.prepared import Span

# Calls that are kept prepared, for each thread.
_MOST_KEPT = 64
# What TMA needs addresses to be multiples of, in bytes.
_ALIGNED = 16


class GatheredRows(NamedTuple):
    """Rows of several ranks, which copies bring to this GPU.

    `rows` is the row-major matrix of all, in which this rank's are not; these are `own`,
    contiguous. `arrived` is the address of 32-bit flags, which are 1 when a share is there: of the
    rank after this one first, going round. `shares` says which rows are whose.
    """

    rows: Any
    own: Any
    arrived: int
    shares: Shares


class _Waiting(NamedTuple):
    """A launch for one thread, the GPU, and what may not overlap."""

    launch: PreparedLaunch
    ordinal: int
    spans: tuple[Span, ...]


class _Ready(threading.local):
    """What a thread has prepared; None where no launch waits for rows."""

    def __init__(self) -> None:
        self.calls: Calls[_Waiting | None] = Calls(_MOST_KEPT)


_ready = _Ready()


def multiply_gathered(
    gathered: GatheredRows,
    fixed: Any,
    out: Any,
    *,
    transposed: bool = False,
    bias: Any = None,
    residual: Any = None,
    c: Any = None,
    **options: Any,
) -> bool:
    """Put the product of gathered rows and another operand on the current stream: one launch, which
    waits for the rows itself and for nothing else.

    Args:
        gathered: the rows, lines×k.
        fixed: k×n elements, or n×k if `transposed`.
        out: lines×n elements, or n×lines if `transposed`.
        transposed: whether the rows are columns of B, the second operand.
        bias, residual, c, options: as for `matmul`, in its terms: alpha, beta, epilogue and
            precision.

    Returns:
        False where there is no such launch for these arrays. Nothing has been done then.

    Raises:
        GemmkitError: as `matmul`.
    """
    a, b = (fixed, gathered.rows.T) if transposed else (gathered.rows, fixed)
    library = LIBRARIES.get(type(a))
    if library is None:
        found = library_of(a, "a")
        if not hasattr(found, "glance_at_matrices"):
            return False
        library = cast(WarmLibrary, found)
    if library.watched():
        # What counts or traces products is shown those of `matmul`.
        return False
    addresses, low = NOTHING, 0
    try:
        address_a, address_b, address_out, seen = library.glance_at_matrices(a, b, out)
        own, of_own = library.glance(gathered.own)
        further: Hashable = None
        if not (bias is None and residual is None and c is None):
            beside = (c, bias, residual, None, None, None, None)
            further, addresses, low = further_operands(library, address_out, beside)
    except (AttributeError, TypeError, ValueError):
        # Operands of several libraries, say, about which `matmul` has more to tell.
        return False
    low = (low | address_a | address_b | address_out) & (_ALIGNED - 1)
    own_low = own & (_ALIGNED - 1)
    key = seen, further, low, of_own, own_low, gathered.shares, transposed, tuple(options.items())
    calls = _ready.calls
    if calls.version != changes.count:
        calls.forget()
    if key not in calls:
        call = Call(
            *(a, b, out, c, bias, residual, None),
            **{"alpha": 1.0, "beta": 0.0, "epilogue": None, **options},
        )
        calls.keep(key, _prepared(call, gathered, "b" if transposed else "a"))
    waiting = calls[key]
    if waiting is None:
        return False
    every = _addresses((address_a, address_b, address_out, *addresses), own, gathered.arrived)
    if overlapping(waiting.spans, every):
        return False
    library.overwritten(out)
    waiting.launch.run(every, library.current_stream(waiting.ordinal))
    return True


def _addresses(operands: tuple[int, ...], own: int, arrived: int) -> tuple[int, ...]:
    """Addresses in the order in which launches take them."""
    from gemmkit.devices.patches import ROLES

    at = {**dict(zip(ROLES, operands, strict=False)), "own": own, "arrived": arrived}
    return tuple(at.get(role, 0) for role in ROLES)


def _prepared(call: Call, gathered: GatheredRows, role: str) -> _Waiting | None:
    """The launch of a call; `role` is that of the gathered rows. None where the arrays are in host
    memory, or no launch waits for rows.

    Raises:
        GemmkitError: as `matmul`.
    """
    request = call.read()
    ordinal = request.operands["a"].device
    if ordinal is None:
        return None
    from gemmkit.devices.context import context_of
    from gemmkit.devices.launcher import PreparedLaunch
    from gemmkit.ops.compiled import compiled, step_numbers, step_places
    from gemmkit.ops.detours import Detour, place_on_gpu
    from gemmkit.ops.prepared import spans_of

    steps = place_on_gpu(request, ordinal)
    if isinstance(steps, Detour) or len(steps) != 1:
        return None
    (step,), context, shares = steps, context_of(ordinal), gathered.shares
    places = step_places(step)
    own = cast(GpuLibrary, request.maker).read(gathered.own, "own")
    # Rows of the result are those that are gathered.
    if places["A"] != (role, 0) or own.address % _ALIGNED:
        return None
    try:
        choice = choose_allgather(step.problem, shares.ranks, shares.rows, context.spec)
    except UnsupportedProblem:
        return None
    plan, binary = compiled(step.problem, choice.kernel, choice.config, context.spec)
    numbers = {**step_numbers(step), **shares.numbers(step.problem)}
    places = {**places, "own": ("own", 0), "arrived": ("arrived", 0)}
    launch = PreparedLaunch(context, plan, binary, numbers, places)
    return _Waiting(launch, ordinal, tuple(spans_of({**request.operands, "own": own})))
