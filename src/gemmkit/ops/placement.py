"""From views of matrices to launches: layouts, leading dimensions and batches that tell them.

Whatever lies in rows or columns is read where it is; what does not is named, to be copied first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

from gemmkit.dtypes import FLOAT_BYTES, ITEM_BYTES, Dtype, Precision, bias_type
from gemmkit.epilogue import Bias, Epilogue
from gemmkit.errors import UnsupportedProblem
from gemmkit.ops.operands import WIDEST_ACCESS, View
from gemmkit.problem import BROADCAST, GemmProblem
from gemmkit.scales import UNSCALED, ScaleKind, Scales

LARGEST_LD = 2**31 - 1

# What a GPU copies in the time that the host needs for one more launch, roughly.
BYTES_A_LAUNCH = 4 << 20

Views = Mapping[str, View]

SCALE_ROLES = ("scale_a", "scale_b")
# What products must share to be one of more rows.
_SHARED = ("b", "scale_b")

# In the transposed product, C^T = B^T A^T, operands and bias change places.
_MIRRORED = {"a": "b", "b": "a", "scale_a": "scale_b", "scale_b": "scale_a"}
OTHER_BIAS: Mapping[str, Bias] = {"": "", "column": "row", "row": "column"}


@dataclass(frozen=True, slots=True)
class Step:
    """One launch: the problem, and where each matrix begins, in elements from its element 0.

    `operands` are the roles of the problem's A and B: b and a where the transposed product is
    computed. `ldr`, `stride_r`, `ldx` and `stride_x` are those of residual and auxiliary output;
    `scales` has the ld, step and stride of a `ScaleArray` for A and B, of those that have scales.
    """

    problem: GemmProblem
    offsets: Mapping[str, int]
    operands: tuple[str, str] = ("a", "b")
    ldr: int = 0
    stride_r: int = 0
    ldx: int = 0
    stride_x: int = 0
    scales: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Copied:
    """An operand that cannot be read or written in place, and why.

    A copy of it must be row-major, or with `by_columns` each matrix column-major; `whole` asks for
    one that is repeated where it broadcasts.
    """

    role: str
    reason: str
    by_columns: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Terms:
    """What a product is besides its matrices; `alignment` is that of all addresses, in bytes.

    `prepared` are the roles of prepared operands: "a", "b" or "ab".
    """

    dtype: Dtype = "float32"
    out_dtype: Dtype = "float32"
    alpha: float = 1.0
    beta: float = 0.0
    epilogue: Epilogue = field(default_factory=Epilogue)
    alignment: int = 256
    precision: Precision = "ieee"
    prepared: str = ""
    scales: Scales = UNSCALED

    def item_bytes(self, role: str) -> int:
        """Bytes of an element of a matrix, or of a scale."""
        if role in SCALE_ROLES:
            return FLOAT_BYTES
        if role == "bias":
            return ITEM_BYTES[bias_type(self.out_dtype)]
        return ITEM_BYTES[self.dtype if role in ("a", "b") else self.out_dtype]


@dataclass(frozen=True, slots=True)
class _Axis:
    """A dimension of the stack, with the stride of each matrix along it."""

    size: int
    strides: Mapping[str, int]


def place(views: Views, terms: Terms) -> tuple[Step, ...] | Copied:
    """The launches that compute a product, or the operand that must be copied before.

    Args:
        views: stacks of matrices, all equally deep, by role: a, b, out, and where there are such
            residual, auxiliary, scale_a and scale_b.
        terms: what else the product is.

    Raises:
        UnsupportedProblem: rows lie further apart than a kernel can tell.
    """
    if views["out"].empty:
        return ()
    mirrored = not _in_rows(views["out"]) and _in_rows(_flipped(views["out"]))
    if mirrored:
        views = {_MIRRORED.get(role, role): _flipped(view) for role, view in views.items()}
        turned = OTHER_BIAS[str(terms.epilogue.bias)]
        prepared = "".join(sorted(_MIRRORED[role] for role in terms.prepared))
        scales = terms.scales.transposed if terms.scales else UNSCALED
        epilogue = replace(terms.epilogue, bias=turned)
        terms = replace(terms, epilogue=epilogue, prepared=prepared, scales=scales)
    placed = _place(views, terms)
    if mirrored and isinstance(placed, Copied):
        role = _MIRRORED.get(placed.role, placed.role)
        return replace(placed, role=role, by_columns=not placed.by_columns)
    if mirrored and not isinstance(placed, Copied):
        return tuple(replace(step, operands=("b", "a"), offsets=_renamed(step)) for step in placed)
    return placed


def _place(views: Views, terms: Terms) -> tuple[Step, ...] | Copied:
    for role in ("out", "auxiliary", "residual"):
        if role in views and not _in_rows(views[role], repeated=role == "residual"):
            return Copied(role, "its rows are not contiguous", whole=role == "residual")
    for role in ("a", "b"):
        if layout_of(views[role]) is None:
            return Copied(role, "neither its rows nor its columns are contiguous")
    axes, matrices = _folded(_merged(_axes(views)), _matrices(views), terms)
    batch, loops = _batch_axis(axes, matrices["out"])
    launches = prod(axis.size for axis in loops)
    if launches > 1 and (stopping := _in_the_way(views, terms, launches)):
        reason = f"its stack would take {launches} launches"
        return Copied(stopping, reason, whole=True)
    return tuple(_steps(matrices, terms, batch, loops))


# --- single matrices ----------------------------------------------------------------------------


def _flipped(view: View) -> View:
    """The same matrices, transposed."""
    (*stack, rows, columns), (*steps, down, across) = view.shape, view.strides
    return View((*stack, columns, rows), (*steps, across, down))


def _renamed(step: Step) -> dict[str, int]:
    return {_MIRRORED.get(role, role): offset for role, offset in step.offsets.items()}


def _in_rows(view: View, *, repeated: bool = False) -> bool:
    """Whether a matrix is written, or (`repeated`) read, row by row, each contiguous."""
    (rows, columns), (down, across) = view.shape[-2:], view.strides[-2:]
    if columns > 1 and across != 1:
        return False
    return rows <= 1 or down >= (0 if repeated else columns)


def layout_of(view: View) -> tuple[bool, int] | None:
    """Whether it is the transpose that lies in memory row by row, and the leading dimension."""
    (rows, columns), (down, across) = view.shape[-2:], view.strides[-2:]
    if rows == 0 or columns == 0:
        return False, max(columns, 1)
    for transposed, sides, steps in (
        (False, (rows, columns), (down, across)),
        (True, (columns, rows), (across, down)),
    ):
        lines, length = sides
        if length == 1 or steps[1] == 1:
            ld = steps[0] if lines > 1 else length
            if ld >= length:
                return transposed, ld
    return None


def _row_pitch(view: View, role: str) -> int:
    """The leading dimension of a matrix in rows."""
    (rows, columns), (down, _) = view.shape[-2:], view.strides[-2:]
    return _checked(down if rows > 1 else max(columns, 1), role)


def _checked(ld: int, role: str) -> int:
    if ld > LARGEST_LD:
        raise UnsupportedProblem(
            f"rows of {role} lie {ld:,} elements apart; kernels take leading dimensions up to "
            f"{LARGEST_LD:,}: copy it"
        )
    return ld


# --- stacks -------------------------------------------------------------------------------------


def _matrices(views: Views) -> dict[str, View]:
    return {role: View(view.shape[-2:], view.strides[-2:]) for role, view in views.items()}


def _axes(views: Views) -> list[_Axis]:
    """Dimensions of the stack that count, those of the longest strides of the result first."""
    found = [
        _Axis(size, {role: view.strides[place] for role, view in views.items()})
        for place, size in enumerate(views["out"].shape[:-2])
        if size != 1
    ]
    return sorted(found, key=lambda axis: -axis.strides["out"])


def _merged(axes: Iterable[_Axis]) -> list[_Axis]:
    """Neighboring dimensions as one where every matrix goes on as if they were."""
    done: list[_Axis] = []
    for axis in axes:
        outer = done[-1] if done else None
        if outer and all(
            step == axis.size * axis.strides[role] for role, step in outer.strides.items()
        ):
            done[-1] = _Axis(outer.size * axis.size, axis.strides)
        else:
            done.append(axis)
    return done


def _folded(
    axes: list[_Axis], views: dict[str, View], terms: Terms
) -> tuple[list[_Axis], dict[str, View]]:
    """Products that share B as one of more rows, where A and the results lie row on row."""
    if terms.epilogue.bias == "row":
        return axes, views
    for axis in reversed(axes):
        taller = {
            role: _taller(view, axis.size, axis.strides[role])
            for role, view in views.items()
            if role not in _SHARED
        }
        if "scale_a" in views:
            taller["scale_a"] = _taller_scales(views["scale_a"], axis, terms.scales.a)
        shared = {role: views[role] for role in _SHARED if role in views}
        if not any(axis.strides[role] for role in shared) and all(taller.values()):
            whole = {role: view for role, view in taller.items() if view} | shared
            written = all(_in_rows(whole[role]) for role in ("out", "auxiliary") if role in whole)
            if written and layout_of(whole["a"]) is not None:
                rest = [each for each in axes if each is not axis]
                return _folded(rest, whole, terms)
    return axes, views


def _taller(view: View, size: int, stride: int) -> View | None:
    """That many matrices as one, if the rows of each follow those of the one before."""
    (rows, columns), (down, across) = view.shape, view.strides
    if rows == 1:
        down = stride
    elif stride != rows * down:
        return None
    return View((size * rows, columns), (down, across))


def _taller_scales(view: View, axis: _Axis, kind: ScaleKind) -> View | None:
    """The same of the scales of A: one for all, or one for each row."""
    stride = axis.strides["scale_a"]
    if kind.lines == 1:
        return _taller(view, axis.size, stride)
    return view if kind.lines == 0 and stride == 0 else None


def _batch_axis(axes: list[_Axis], out: View) -> tuple[_Axis | None, list[_Axis]]:
    """The largest dimension that a strided batch can tell, and the others."""
    (rows, columns), (down, _) = out.shape, out.strides
    reach = (rows - 1) * down + columns if rows > 1 else columns

    def tells(axis: _Axis) -> bool:
        step = axis.strides["out"]
        inside = step >= columns and (axis.size - 1) * step + columns <= down
        in_order = all(stride >= 0 for stride in axis.strides.values())
        return in_order and (step >= reach or (rows > 1 and inside))

    batch = max(filter(tells, axes), key=lambda axis: axis.size, default=None)
    return batch, [axis for axis in axes if axis is not batch]


def _in_the_way(views: Views, terms: Terms, launches: int) -> str | None:
    """The operand whose copy would spare most launches, if that is worth it."""
    results = {role: views[role] for role in ("out", "auxiliary") if role in views}
    if len(_merged(_axes(results))) > 1:
        return None
    for role in ("a", "b", "residual"):
        view = views.get(role)
        if view is None or view.is_tight:
            continue
        alone = len(_merged(_axes({**results, role: view}))) > 1
        backwards = any(step < 0 for step in view.strides[:-2])
        copied = 2 * prod(view.shape) * terms.item_bytes(role)
        if (alone or backwards) and copied < launches * BYTES_A_LAUNCH:
            return role
    return None


# --- launches -----------------------------------------------------------------------------------


def _steps(views: Views, terms: Terms, batch: _Axis | None, loops: list[_Axis]) -> Iterator[Step]:
    problem = _problem(views, terms, batch, loops)
    more: dict[str, int] = {}
    aligned = True
    for role, ld, stride in (("residual", "ldr", "stride_r"), ("auxiliary", "ldx", "stride_x")):
        if role in views:
            repeated = role == "residual" and views[role].strides[0] == 0
            more[ld] = 0 if repeated else _row_pitch(views[role], role)
            more[stride] = batch.strides[role] if batch else 0
            # Tensor maps tell of rows at multiples of 16 bytes, which are not all the same.
            apart = (more[ld] | more[stride]) * problem.out_item_bytes
            aligned &= not repeated and apart % WIDEST_ACCESS == 0
    if not aligned:
        problem = replace(problem, further_aligned=False)
    scales = {}
    for role, kind in zip(SCALE_ROLES, (terms.scales.a, terms.scales.b), strict=True):
        if role in views:
            down, across = views[role].strides
            of_lines, of_chunks = (down, across) if role == "scale_a" else (across, down)
            scales[role] = (
                of_lines if kind.lines else 0,
                of_chunks if kind.of_chunks else 0,
                batch.strides[role] if batch else 0,
            )
    for place in product(*(range(axis.size) for axis in loops)):
        offsets = {
            role: sum(index * axis.strides[role] for index, axis in zip(place, loops, strict=True))
            for role in views
        }
        yield Step(problem, offsets, ("a", "b"), **more, scales=scales)


def _problem(views: Views, terms: Terms, batch: _Axis | None, loops: list[_Axis]) -> GemmProblem:
    a, b, out = (views[role] for role in ("a", "b", "out"))
    # Copies have been asked for where there is no layout.
    (transa, lda), (transb, ldb) = layout_of(a) or (False, 0), layout_of(b) or (False, 0)
    strides = batch.strides if batch else {"a": 0, "b": 0, "out": 0}
    alignment = terms.alignment
    for axis in loops:
        for role, stride in axis.strides.items():
            if role in SCALE_ROLES:
                continue
            step = abs(stride) * terms.item_bytes(role)
            alignment = min(alignment, step & -step) if step else alignment
    return GemmProblem(
        m=out.shape[0],
        n=out.shape[1],
        k=a.shape[1],
        alpha=terms.alpha,
        beta=terms.beta,
        lda=_checked(lda, "a"),
        ldb=_checked(ldb, "b"),
        ldc=_row_pitch(out, "out"),
        epilogue=terms.epilogue,
        batch=batch.size if batch else 1,
        stride_a=strides["a"] or BROADCAST,
        stride_b=strides["b"] or BROADCAST,
        stride_c=strides["out"],
        transa=transa,
        transb=transb,
        dtype=terms.dtype,
        out_dtype=terms.out_dtype,
        alignment=alignment,
        precision=terms.precision,
        prepared=terms.prepared,
        scales=terms.scales,
    )
