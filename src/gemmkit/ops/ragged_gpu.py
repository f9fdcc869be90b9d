"""Ragged products of arrays on a GPU: one launch, whose kernel reads the groups' offsets, or a
table of products where the host knows the offsets and no such kernel takes them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

from gemmkit.devices.context import Context, context_of
from gemmkit.devices.launcher import PreparedLaunch
from gemmkit.devices.operands import NOWHERE, Further, Operands, ScaleArray, bind_arguments
from gemmkit.devices.packing import argument_offsets
from gemmkit.devices.streams import check_stream, stream_handle
from gemmkit.dispatch.alike import READING_OFFSETS, choose_ragged
from gemmkit.errors import UnsupportedProblem
from gemmkit.kernels.production.ragged_wgmma import (
    OWN_BIAS,
    SHARED_BIAS,
    ragged_problem,
    signature,
)
from gemmkit.ops.arrays import GpuLibrary, library_of
from gemmkit.ops.compiled import binary_of
from gemmkit.ops.operands import Operand, alignment, same_memory
from gemmkit.ops.overlaps import Extents
from gemmkit.ops.ragged_launches import (
    Launch,
    OffsetsLaunch,
    Prepared,
    RangesLaunch,
    RowSizes,
)
from gemmkit.ops.ragged_request import GpuOffsets, RaggedRequest
from gemmkit.ops.scale_shapes import SCALES
from gemmkit.ops.tables import PLACES
from gemmkit.problem import GemmProblem

# The argument of each role that is an address.
_ARGUMENTS = {"A": "a", "B": "b", "C": "out"} | {
    each: each for each in ("bias", "residual", "auxiliary", *SCALES)
}


def multiply(request: RaggedRequest, ordinal: int, stream: Any) -> tuple[Operand, Prepared | None]:
    """The result of arrays on the GPU of that ordinal, which is not waited for. If a launch is all
    that was done, it comes with the result.

    Raises:
        UsageError: no such stream.
        UnsupportedProblem, CompileError, CompilerMissing, DeviceError: as `ragged_matmul`.
    """
    context = context_of(ordinal)
    library = cast(GpuLibrary, request.library)
    if stream is None:
        handle = library.current_stream(ordinal)
    else:
        handle = stream_handle(stream)
        check_stream(handle, context)
    libraries = {
        role: cast(GpuLibrary, library_of(each.array, role))
        for role, each in request.operands.items()
    }
    for role, operand in request.operands.items():
        libraries[role].wait_for(operand, handle)
    with ExitStack() as entered:
        for each in {id(each): each for each in libraries.values()}.values():
            if each.CURRENT_STREAMS and each.current_stream(ordinal) != handle:
                entered.enter_context(each.on_stream(handle, ordinal))
        return _multiplied(request, libraries, context, handle)


def _multiplied(
    request: RaggedRequest, libraries: Mapping[str, GpuLibrary], context: Context, stream: int
) -> tuple[Operand, Prepared | None]:
    operands = dict(request.operands)
    for role in ("a", "b", "bias", "residual"):
        if role in operands and not _fits(role, operands[role]):
            operands[role] = libraries[role].copied(
                operands[role], operands[role].view.shape, by_columns=False
            )
    if "out" not in operands:
        shape = (request.rows, request.n)
        operands["out"] = request.library.empty(
            operands["a"], shape, request.terms.out_dtype, stream
        )
    targets = {role: operands[role] for role in ("out", "auxiliary") if role in operands}
    for role, target in targets.items():
        if not _fits(role, target):
            operands[role] = libraries[role].empty_like(target, by_columns=False)
            # Rows past the last offset stay as they are, too.
            libraries[role].assign(operands[role], target)
    prepared = prepare(replace(request, operands=operands), context)
    ends = None if isinstance(request.offsets, GpuOffsets) else request.offsets
    address = request.offsets.address if isinstance(request.offsets, GpuOffsets) else 0
    prepared.run({role: each.address for role, each in operands.items()}, ends, address, stream)
    for role, target in targets.items():
        if operands[role] is not target:
            libraries[role].assign(target, operands[role])
    in_place = all(operands[role] is each for role, each in request.operands.items())
    result = targets["out"]
    return result, prepared if in_place else None


def _fits(role: str, operand: Operand) -> bool:
    """Whether an operand lies so that kernels read it in place."""
    shape, strides = operand.view.shape, operand.view.strides
    if operand.view.empty:
        return True
    if role == "bias":
        return strides[-1] == 1 and (len(shape) == 1 or strides[0] == shape[1])
    if role == "b":
        apart = shape[0] == 1 or strides[0] > 0
        return apart and (_in_lines(shape[1:], strides[1:]) or _in_columns(operand))
    return _in_lines(shape, strides)


def _in_lines(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    (lines, length), (down, across) = shape, strides
    return (length == 1 or across == 1) and (lines == 1 or down >= length)


def _in_columns(b: Operand) -> bool:
    (_, k, n), (_, down, across) = b.view.shape, b.view.strides
    return _in_lines((n, k), (across, down))


def prepare(request: RaggedRequest, context: Context) -> Prepared:
    """What computes calls like one whose operands are read and written in place.

    Raises:
        UnsupportedProblem, CompileError, CompilerMissing, DeviceError: as `ragged_matmul`.
    """
    operands, terms = request.operands, request.terms
    on_gpu = isinstance(request.offsets, GpuOffsets)
    launch: Launch | None = None
    if request.rows and request.n and request.groups:
        launch = _by_offsets(request, context)
        if launch is None and on_gpu:
            raise UnsupportedProblem(
                f"no kernel reads offsets on the GPU for this product of {terms.dtype}: "
                f"{_refusal(request, context)}; give the offsets in host memory, for which there "
                "are kernels for every type and board"
            )
        launch = launch or _by_ranges(request, context)
    residual = operands.get("residual")
    reach = {}
    for role, each in operands.items():
        first, end = each.extent
        reach[role] = first - each.address, end - each.address
    return Prepared(
        launch,
        context.ordinal,
        request.groups,
        (request.rows, request.n),
        None if terms.out_dtype == terms.dtype else terms.out_dtype,
        on_gpu,
        reach,
        residual is not None and same_memory(residual, operands["out"]),
    )


def problem_of(request: RaggedRequest) -> GemmProblem:
    """The problem of a launch that reads the offsets, of operands that kernels read in place."""
    operands, terms = request.operands, request.terms
    shape, strides = operands["b"].view.shape, operands["b"].view.strides
    transb = not _in_lines(shape[1:], strides[1:]) and _in_columns(operands["b"])
    # The matrices of B lie at multiples of what divides this.
    low = _stride_of_b(request) * operands["b"].item_bytes
    for role in ("a", "b", "out"):
        low |= operands[role].address
    return ragged_problem(
        *(request.rows, request.n, request.k, request.groups),
        alpha=terms.alpha,
        beta=terms.beta,
        lda=_leading(operands["a"].view.shape, operands["a"].view.strides),
        ldb=_leading(shape[1:], strides[1:], turned=transb),
        ldc=_leading(operands["out"].view.shape, operands["out"].view.strides),
        epilogue=terms.epilogue,
        transb=transb,
        dtype=terms.dtype,
        out_dtype=terms.out_dtype,
        precision=terms.precision,
        scales=terms.scales,
        alignment=alignment(low),
    )


def _stride_of_b(request: RaggedRequest) -> int:
    """Elements from a group's B to the next."""
    return request.operands["b"].view.strides[0] if request.groups > 1 else 0


def _leading(shape: tuple[int, ...], strides: tuple[int, ...], *, turned: bool = False) -> int:
    (lines, length), (down, _) = (shape[::-1], strides[::-1]) if turned else (shape, strides)
    return down if lines > 1 and length else max(length, 1)


def _by_offsets(request: RaggedRequest, context: Context) -> OffsetsLaunch | None:
    """The launch that reads the offsets; None where no kernel for that takes the product."""
    problem, operands = problem_of(request), request.operands
    choice = choose_ragged(problem, context.spec)
    if choice is None:
        return None
    config = choice.config
    plan = choice.kernel.plan(problem, config, context.spec)
    own = signature(
        OWN_BIAS if request.own_bias else SHARED_BIAS, scaled=bool(request.terms.scales)
    )
    plan = replace(plan, signature=(*own, *problem.epilogue.arguments))
    if isinstance(request.offsets, GpuOffsets) and request.offsets.element != "int":
        plan = replace(plan, entry=plan.entry.replace(", int,", f", {request.offsets.element},"))
    further = {
        role: Further(NOWHERE, _leading(operands[role].view.shape, operands[role].view.strides))
        for role in ("residual", "auxiliary")
        if role in operands
    }
    scales = {
        role: ScaleArray(NOWHERE, each.ld, each.step, each.stride)
        for role, each in request.scales.items()
    }
    nowhere = Operands(NOWHERE, NOWHERE, NOWHERE, **further, **scales)  # type: ignore[arg-type]
    whole = {"M": request.rows, "batch": request.groups, "stride_b": _stride_of_b(request)}
    arguments = {**bind_arguments(problem, nowhere), **whole, "offsets": 0}
    places = {name: (role, 0) for name, role in _ARGUMENTS.items() if role in operands}
    places["offsets"] = PLACES["offsets"]
    binary = binary_of(plan, context.spec)
    launch = PreparedLaunch(context, plan, binary, arguments, places)
    sizes = RowSizes(problem, config, plan, argument_offsets(binary, plan))
    return OffsetsLaunch(context, launch, sizes)


def _refusal(request: RaggedRequest, context: Context) -> str:
    problem = problem_of(request)
    kernel = next(
        (each for each in READING_OFFSETS if problem.dtype in each.dtypes), READING_OFFSETS[0]
    )
    found = kernel.supports(problem, kernel.default, context.spec)
    return found or "no configuration takes it"


def _by_ranges(request: RaggedRequest, context: Context) -> RangesLaunch:
    """Launches by a table, for any type, board and layout."""
    operands, groups = request.operands, request.groups
    b = operands["b"]
    one = replace(b, view=replace(b.view, shape=b.view.shape[1:], strides=b.view.strides[1:]))
    members = {**operands, "b": one}
    group_bytes = {"b": b.view.strides[0] * b.item_bytes if groups > 1 else 0}
    if "bias" in operands and request.terms.epilogue.bias != "row":
        bias = operands["bias"]
        group_bytes["bias"] = 0
        if request.own_bias:
            group_bytes["bias"] = bias.view.strides[0] * bias.item_bytes
            view = replace(bias.view, shape=bias.view.shape[1:], strides=bias.view.strides[1:])
            members["bias"] = replace(bias, view=view)
    for role, scales in request.scales.items():
        each = operands[role]
        view = replace(each.view, shape=each.view.shape[1:], strides=each.view.strides[1:])
        members[role] = replace(each, view=view)
        if role == "scale_b" or not scales.ld:
            group_bytes[role] = scales.stride * each.item_bytes
    terms = request.terms
    if terms.beta:
        members["c"] = members["out"]
    places = {role: tuple(Extents.of([each]).places[0].tolist()) for role, each in members.items()}
    return RangesLaunch(context, terms, places, group_bytes, problem_of(request).transb)
