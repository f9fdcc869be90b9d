"""The launches of a tile: a product of panels for each chunk of k, and the rounding at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from gemmkit.devices.patches import ROLES
from gemmkit.devices.streamed import ReadyLaunch, StreamedDevice
from gemmkit.dtypes import FLOAT_BYTES, Dtype
from gemmkit.epilogue import Epilogue
from gemmkit.gpu import GpuSpec
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import LaunchPlan
from gemmkit.kernels.rounding import rounding
from gemmkit.ops.carriers import chosen_on_emulator, chosen_on_gpu
from gemmkit.ops.compiled import binary_of, step_numbers, step_places
from gemmkit.ops.operands import WIDEST_ACCESS, View
from gemmkit.ops.placement import Copied, Step, Terms, place
from gemmkit.ops.streamed.sizes import StreamProblem, Tiling
from gemmkit.problem import GemmProblem
from gemmkit.scales import UNSCALED


@dataclass(frozen=True, slots=True)
class StepShape:
    """One product of panels: how many matrices and their sizes, and whether it is the first or the
    last of its tile's sums."""

    products: int
    rows: int
    columns: int
    depth: int
    first: bool
    last: bool


def step_shapes(problem: StreamProblem, tiling: Tiling) -> list[StepShape]:
    """All shapes of steps that occur, of whole tiles and panels first."""

    def sizes(total: int, own: int) -> list[int]:
        rest = total % own if own else 0
        return ([own] if own <= total else []) + ([rest] if rest else [])

    chunks = tiling.chunks(problem)
    found = []
    for products in sizes(problem.batch, tiling.group):
        for rows in sizes(problem.m, tiling.m):
            for columns in sizes(problem.n, tiling.n):
                for depth in sizes(problem.k, tiling.k) or [0]:
                    ends = [(True, True)] if chunks == 1 else [(True, False), (False, True)]
                    ends += [(False, False)] if chunks > 2 else []
                    found += [StepShape(products, rows, columns, depth, *end) for end in ends]
    return found


def steps_of(
    shape: StepShape,
    problem: StreamProblem,
    tiling: Tiling,
    terms: Terms,
    scales: Mapping[str, View],
) -> tuple[Step, ...]:
    """The launches of a step, for operands in a device's memory as `Tiling` lays them out.

    α and the scales count in each; β counts in the first, and later ones add to what is there; the
    epilogue counts in the last.
    """
    wide = tiling.widened(problem)
    item = tiling.accumulator_item(problem)
    own: Dtype = "float32" if wide else terms.out_dtype
    terms = replace(terms, out_dtype=own)
    if not shape.first:
        terms = replace(terms, beta=1.0)
    if not shape.last:
        terms = replace(terms, epilogue=Epilogue())
    if not shape.depth:
        terms = replace(terms, scales=UNSCALED)
    products, rows, columns, depth = shape.products, shape.rows, shape.columns, shape.depth
    ld_a, ld_b = tiling.pitch_a(problem) // problem.item, tiling.pitch_b(problem) // problem.item
    ld_c = tiling.pitch_c(item) // item
    tile = View((products, rows, columns), (rows * ld_c, ld_c, 1))
    views = {
        "a": _panel((products, rows, depth), ld_a, problem.columns_a, problem.shared_a),
        "b": _panel((products, depth, columns), ld_b, problem.columns_b, problem.shared_b),
        "out": tile,
    }
    if terms.epilogue.residual:
        views["residual"] = tile
    if terms.epilogue.auxiliary:
        views["auxiliary"] = tile
    for role, view in scales.items() if terms.scales else ():
        kind = terms.scales.a if role == "scale_a" else terms.scales.b
        own_shape = kind.shape(rows if role == "scale_a" else columns, depth)
        sides = own_shape if role == "scale_a" else own_shape[::-1]
        stride = view.strides[0] if view.shape[0] > 1 else 0
        views[role] = View((products, *sides), (stride, *view.strides[1:]))
    placed = place(views, terms)
    assert not isinstance(placed, Copied), placed
    return placed


def _panel(shape: tuple[int, int, int], ld: int, by_columns: bool, shared: bool) -> View:
    products, rows, columns = shape
    inner = (1, ld) if by_columns else (ld, 1)
    stride = (columns if by_columns else rows) * ld
    return View(shape, (0 if shared and products > 1 else stride, *inner))


def chosen(problem: GemmProblem, spec: GpuSpec, emulated: bool) -> tuple[LaunchPlan, Binary]:
    """The launch that dispatch chooses for a step, and its code."""
    return (chosen_on_emulator if emulated else chosen_on_gpu)(problem, spec)


@lru_cache(maxsize=512)
def scratch_of(problem: GemmProblem, spec: GpuSpec, emulated: bool) -> tuple[int, int]:
    """Bytes of workspace and number of semaphores of the launch for a step; nothing is compiled."""
    from gemmkit.dispatch.choose import choose

    choice = choose(problem, spec, emulated=emulated)
    plan: LaunchPlan | None = choice.kernel.plan(problem, choice.config, spec)
    workspace = semaphores = 0
    while plan is not None:
        workspace = max(workspace, plan.workspace_bytes)
        semaphores = max(semaphores, plan.semaphores)
        plan = plan.before
    return workspace, semaphores


class TileLaunches:
    """The launches of one device's tiles, made when they are first needed; for one thread.

    `terms` are those of the product, `scales` the views of the scales that lie on the device, and
    `scratch` the addresses of workspace and semaphores there.
    """

    def __init__(
        self,
        device: StreamedDevice,
        problem: StreamProblem,
        tiling: Tiling,
        terms: Terms,
        scales: Mapping[str, View],
        scratch: tuple[int, int],
    ) -> None:
        self._device, self._problem, self._tiling = device, problem, tiling
        self._scales, self._scratch = scales, scratch
        self._terms = on_device(terms, device)
        self._steps: dict[StepShape, list[ReadyLaunch]] = {}
        self._roundings: dict[tuple[int, int], ReadyLaunch] = {}

    def multiply(self, shape: StepShape, addresses: Mapping[str, int]) -> None:
        """Put a step's launches on the compute stream; addresses are those of operands by role.

        Raises:
            GemmkitError: as compiling and launching raise.
        """
        launches = self._steps.get(shape)
        if launches is None:
            launches = self._steps[shape] = [self._ready(step) for step in self._steps_of(shape)]
        ordered = [addresses.get(role, 0) for role in ROLES]
        for launch in launches:
            launch.run(ordered, self._scratch)

    def _steps_of(self, shape: StepShape) -> tuple[Step, ...]:
        return steps_of(shape, self._problem, self._tiling, self._terms, self._scales)

    def _ready(self, step: Step) -> ReadyLaunch:
        plan, binary = chosen(step.problem, self._device.spec, self._device.emulated)
        return self._device.ready(plan, binary, step_numbers(step), step_places(step))

    def round(self, rows: int, columns: int, source: int, target: int) -> None:
        """Put the rounding of a tile, from one address to another, on the compute stream.

        Raises:
            GemmkitError: as compiling and launching raise.
        """
        launch = self._roundings.get((rows, columns))
        if launch is None:
            dtype, item = self._terms.out_dtype, self._problem.out_item
            pitches = self._tiling.pitch_c(FLOAT_BYTES), self._tiling.pitch_c(item)
            plan = rounding(rows, columns, pitches[0] // FLOAT_BYTES, pitches[1] // item, dtype)
            spec, emulated = self._device.spec, self._device.emulated
            binary = binary_of(plan, spec, assemble=not emulated)
            places = {"A": ("a", 0), "C": ("out", 0)}
            launch = self._device.ready(plan, binary, {}, places)
            self._roundings[rows, columns] = launch
        launch.run([{"a": source, "out": target}.get(role, 0) for role in ROLES], (0, 0))


def on_device(terms: Terms, device: StreamedDevice) -> Terms:
    """The terms with the alignment that a device's kernels are chosen for."""
    # On the emulator that of elements alone, which spares further kernels.
    least = max(terms.item_bytes("a"), terms.item_bytes("out"))
    return replace(terms, alignment=least if device.emulated else WIDEST_ACCESS)
