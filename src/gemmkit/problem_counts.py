"""`ProblemCounts`: the operations, results and bytes of a problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmkit.dtypes import FLOAT_BYTES, ITEM_BYTES
from gemmkit.problem_matrices import BROADCAST
from gemmkit.scales import NONE

if TYPE_CHECKING:
    from gemmkit.dtypes import Dtype
    from gemmkit.epilogue import Epilogue
    from gemmkit.groups import Groups
    from gemmkit.scales import Scales


class ProblemCounts:
    """What `GemmProblem` has besides its sizes and types: operations, results, and bytes of memory:
    of an element, and of all that is read and written, each counted once."""

    __slots__ = ()

    if TYPE_CHECKING:
        m: int
        n: int
        k: int
        beta: float
        batch: int
        stride_a: int
        stride_b: int
        epilogue: Epilogue
        groups: Groups | None
        dtype: Dtype
        scales: Scales

        @property
        def result_dtype(self) -> Dtype:
            """As in `GemmProblem`."""

    @property
    def item_bytes(self) -> int:
        """Bytes per element of A and B."""
        return ITEM_BYTES[self.dtype]

    @property
    def out_item_bytes(self) -> int:
        """Bytes per element of C."""
        return ITEM_BYTES[self.result_dtype]

    @property
    def flops(self) -> int:
        """Floating-point operations, 2·m·n·k per product (a multiply-add counts as two)."""
        if self.groups is not None:
            return 2 * self.groups.multiply_adds
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def results(self) -> int:
        """Elements of C, of all products."""
        if self.groups is not None:
            return self.groups.results
        return self.m * self.n * self.batch

    @property
    def intensity(self) -> float:
        """Arithmetic intensity in FLOP per byte of `minimal_bytes`; 0 for an empty problem."""
        return self.flops / self.minimal_bytes if self.minimal_bytes else 0.0

    @property
    def minimal_bytes(self) -> int:
        """Bytes to read A, B and their scales and write C once each, to read C if β ≠ 0, and to
        read and write what the epilogue takes and leaves.

        In groups, A and B of an empty C are not read.
        """
        if self.groups is not None:
            words = self.groups.operand_elements
        else:
            matrices_a, matrices_b = (
                min(self.batch, 1) if stride == BROADCAST else self.batch
                for stride in (self.stride_a, self.stride_b)
            )
            words = matrices_a * self.m * self.k + matrices_b * self.k * self.n
        return self.item_bytes * words + self.scale_bytes + self.added_bytes + self.written_bytes

    @property
    def scale_shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """How many scales A and B of one product have, along their lines (rows of A, columns of B)
        and along k; (0, 0) of an operand that has none."""
        a, b = self.scales.a, self.scales.b
        return (
            a.shape(self.m, self.k) if a != NONE else (0, 0),
            b.shape(self.n, self.k) if b != NONE else (0, 0),
        )

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales of all products."""
        if not self.scales:
            return 0
        if self.groups is not None:
            m, n, k = self.groups.table[:3]
            numbers = (
                lines * 0 + along * chunks
                for kind, lines in ((self.scales.a, m), (self.scales.b, n))
                if kind != NONE
                for along, chunks in (kind.shape(lines, k),)
            )
            return FLOAT_BYTES * sum(int(each.sum()) for each in numbers)
        counts = (
            min(self.batch, 1) if stride == BROADCAST else self.batch
            for stride in (self.stride_a, self.stride_b)
        )
        shapes = zip(counts, self.scale_shapes, strict=True)
        return FLOAT_BYTES * sum(count * lines * chunks for count, (lines, chunks) in shapes)

    @property
    def added_bytes(self) -> int:
        """Bytes to read what is added to A·B, once: C if β ≠ 0, the residual, and the bias, which
        the products of a batch share."""
        epilogue, words = self.epilogue, 0
        if epilogue.bias and self.results:
            row = epilogue.bias == "row"
            sizes = (self.m, self.n) if self.groups is None else self.groups.table[:2].sum(axis=1)
            words = int(sizes[0 if row else 1])
        return self.out_item_bytes * (words + ((self.beta != 0) + epilogue.residual) * self.results)

    @property
    def written_bytes(self) -> int:
        """Bytes to write C, and the auxiliary output if there is one."""
        return self.out_item_bytes * (1 + self.epilogue.auxiliary) * self.results

    @property
    def stored_bytes(self) -> int:
        """Bytes of all matrices and the bias, without padding: what memory has to hold."""
        again = 0 if self.beta == 0 else self.out_item_bytes * self.results
        return self.minimal_bytes - again
