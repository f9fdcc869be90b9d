"""NumPy's matmul rules: which shape the result has, and which matrices are multiplied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest

from gemmkit.errors import UsageError
from gemmkit.ops.operands import View


@dataclass(frozen=True, slots=True)
class Shape:
    """A product by NumPy's rules: a stack of m×k by k×n, its result m×n.

    `vector_a` and `vector_b` say that an operand has one dimension, which the result lacks then.
    """

    stack: tuple[int, ...]
    m: int
    n: int
    k: int
    vector_a: bool = False
    vector_b: bool = False

    @classmethod
    def of(
        cls,
        a: tuple[int, ...],
        b: tuple[int, ...],
        *,
        transa: bool = False,
        transb: bool = False,
    ) -> Shape:
        """That of two operands of these shapes, or of their transposes.

        Raises:
            UsageError: they cannot be multiplied.
        """
        for name, shape in (("a", a), ("b", b)):
            if not shape:
                raise UsageError(f"{name} is a number; matmul takes arrays of 1 dimension or more")
        m, k = a[-2:] if len(a) > 1 else (1, a[0])
        inner, n = b[-2:] if len(b) > 1 else (b[0], 1)
        m, k = (k, m) if transa else (m, k)
        inner, n = (n, inner) if transb else (inner, n)
        if k != inner:
            raise UsageError(
                f"a of shape {a} has {k} {'rows' if transa else 'columns'} and b of shape {b} has "
                f"{inner} {'columns' if transb else 'rows'}: {_ops(transa, transb)} needs the "
                "same number of both"
            )
        stack = broadcast_shapes(a[:-2], b[:-2])
        if stack is None:
            raise UsageError(
                f"the stacks of a {a} and b {b} do not broadcast: sizes before the last two must "
                "be equal, or 1"
            )
        return cls(stack, m, n, k, len(a) == 1, len(b) == 1)

    @property
    def result(self) -> tuple[int, ...]:
        """The shape of the result."""
        rows = () if self.vector_a else (self.m,)
        return (*self.stack, *rows, *(() if self.vector_b else (self.n,)))

    @property
    def matrices(self) -> tuple[int, ...]:
        """The shape of the result with both sides."""
        return (*self.stack, self.m, self.n)

    def stacks(self, views: Mapping[str, View]) -> dict[str, View]:
        """Operands' views by role as stacks of matrices that are equally deep, for `place`.

        Raises:
            UsageError: as `whole` and `spread`.
        """
        found = {"a": self.left(views["a"]), "b": self.right(views["b"])}
        for role in ("out", "auxiliary"):
            if role in views:
                found[role] = self.whole(views[role], role)
        if "residual" in views:
            found["residual"] = self.spread(views["residual"], "residual")
        for role in ("scale_a", "scale_b"):
            if role in views:
                found[role] = self.scales(views[role], role)
        return found

    def scales(self, view: View, role: str) -> View:
        """Scales of an operand as a stack of matrices, as deep as the result's.

        Raises:
            UsageError: they do not broadcast to that.
        """
        missing = max(2 - len(view.shape), 0)
        shape, strides = (1,) * missing + view.shape, (0,) * missing + view.strides
        if broadcast_shapes(shape[:-2], self.stack) != self.stack:
            raise UsageError(
                f"{role} has the shape {view.shape}, of which the sizes before the last two do not "
                f"broadcast to the stack of the result, {self.stack}"
            )
        return broadcast(View(shape, strides), (*self.stack, *shape[-2:]))

    def left(self, a: View) -> View:
        """A as a stack of matrices, as deep as the result's; strides of 0 where it broadcasts."""
        shape, strides = a.shape, a.strides
        if self.vector_a:
            shape, strides = (1, *shape), (0, *strides)
        return broadcast(View(shape, strides), (*self.stack, self.m, self.k))

    def right(self, b: View) -> View:
        """B alike."""
        shape, strides = b.shape, b.strides
        if self.vector_b:
            shape, strides = (*shape, 1), (*strides, 0)
        return broadcast(View(shape, strides), (*self.stack, self.k, self.n))

    def whole(self, view: View, role: str) -> View:
        """An array of the result's shape as a stack of matrices.

        Raises:
            UsageError: it has another shape.
        """
        if view.shape != self.result:
            raise UsageError(f"{role} has the shape {view.shape}; the result has {self.result}")
        return self._sided(view)

    def spread(self, view: View, role: str) -> View:
        """The same of an array that is read, and may broadcast to the result's shape.

        Raises:
            UsageError: it does not.
        """
        if broadcast_shapes(view.shape, self.result) != self.result:
            raise UsageError(
                f"{role} has the shape {view.shape}, which does not broadcast to the result's "
                f"{self.result}"
            )
        return self._sided(broadcast(view, self.result))

    def _sided(self, view: View) -> View:
        shape, strides = view.shape, view.strides
        if self.vector_b:
            shape, strides = (*shape, 1), (*strides, 0)
        if self.vector_a:
            shape, strides = (*shape[:-1], 1, shape[-1]), (*strides[:-1], 0, strides[-1])
        return View(shape, strides)


def broadcast(view: View, shape: tuple[int, ...]) -> View:
    """The view repeated to a shape that it broadcasts to: strides of 0 where it is repeated."""
    missing = len(shape) - len(view.shape)
    sizes, strides = (1,) * missing + view.shape, (0,) * missing + view.strides
    return View(
        shape,
        tuple(
            0 if size == 1 and wanted != 1 else step
            for size, step, wanted in zip(sizes, strides, shape, strict=True)
        ),
    )


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape to which all of these broadcast, or None, whatever their number of dimensions."""
    found = []
    for sizes in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        wide = 1
        for size in sizes:
            if wide == 1:
                wide = size
            elif size not in (1, wide):
                return None
        found.append(wide)
    return tuple(reversed(found))


def _ops(transa: bool, transb: bool) -> str:
    """The product in BLAS's letters."""
    return f"{'aᵀ' if transa else 'a'}·{'bᵀ' if transb else 'b'}"
