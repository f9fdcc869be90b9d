"""`Groups`: the sizes of products of different shapes in one request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import log2
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemmkit.errors import UsageError

Sizes = NDArray[np.int64]

_NAMES = ("m", "n", "k", "lda", "ldb", "ldc")
# A cube or M, N and K, leading dimensions, and a count; and the form of batches.
_GROUP = re.compile(r"(\d+)(?:x(\d+)x(\d+))?(?::(\d+):(\d+):(\d+))?(?:\*(\d+))?", flags=re.ASCII)
_BATCH = re.compile(r"(\d+x\d+x\d+)x(\d+)", flags=re.ASCII)
# What the text of ragged groups begins with.
RAGGED = "ragged:"
# The smallest and the largest of the sizes that stand for any division of rows, of their mean.
SPREAD = (0.5, 1.5)
# Quantities, such as the mean of ragged groups, count as one where they round to the same power of
# 2^(1/2).
STEP_LOG2 = 0.5
# The most products in a text, with all its counts, and the most digits of a size.
MOST_IN_TEXT, MOST_DIGITS = 2**20, 18


@dataclass(frozen=True)
class Groups:
    """Sizes and leading dimensions of products; a leading dimension of 0 means contiguous rows.

    `packed` holds m, n, k, lda, ldb and ldc of all products as int64, one array after the other:
    bytes compare at the speed of memory and cache their hash. Use `of`, `parse` or `read` to make
    objects.

    Those that are `ragged` are rows of one A and of one C, one group after the other, as the tokens
    of a mixture of experts are; their B are a stack.
    """

    packed: bytes
    ragged: bool = False

    @classmethod
    def of(
        cls,
        m: ArrayLike,
        n: ArrayLike,
        k: ArrayLike,
        lda: ArrayLike = 0,
        ldb: ArrayLike = 0,
        ldc: ArrayLike = 0,
        *,
        ragged: bool = False,
    ) -> Groups:
        """Products of these sizes; a number applies to all products.

        Raises:
            UsageError: the arrays have different lengths, or a size is negative; the message
                names the product. Or the products are ragged and differ in more than m.
        """
        given = [np.asarray(each) for each in (m, n, k, lda, ldb, ldc)]
        count = given[0].size
        table = np.zeros((len(given), count), np.int64)
        for row, name, sizes in zip(table, _NAMES, given, strict=True):
            if sizes.ndim and sizes.size != count:
                raise UsageError(f"{name} has {sizes.size} entries where m has {count}")
            row[:] = sizes.reshape(-1)
        if count and table.min() < 0:
            row_number, number = (int(each[0]) for each in np.nonzero(table < 0))
            raise UsageError(
                f"product {number}: {_NAMES[row_number]} = {table[row_number, number]}: sizes must "
                "be 0 or more"
            )
        if ragged and count and (table[1:] != table[1:, :1]).any():
            row_number, number = (int(each[0]) for each in np.nonzero(table[1:] != table[1:, :1]))
            raise UsageError(
                f"product {number}: {_NAMES[1 + row_number]} differs from that of product 0, but "
                "ragged groups, which are rows of one A, may differ in m only"
            )
        return cls(table.tobytes(), ragged)

    @classmethod
    def listed(cls, shapes: Iterable[Sequence[int]]) -> Groups:
        """Products given as (m, n, k) or (m, n, k, lda, ldb, ldc).

        Raises:
            UsageError: one is neither, or has a negative size.
        """
        rows = [tuple(shape) for shape in shapes]
        for number, row in enumerate(rows):
            if len(row) not in (3, 6) or not all(
                isinstance(size, (int, np.integer)) for size in row
            ):
                raise UsageError(
                    f"product {number} is {row}: write (m, n, k) or (m, n, k, lda, ldb, ldc)"
                )
        table = [(*row, 0, 0, 0)[:6] for row in rows]
        return cls.of(*np.array(table, np.int64).reshape(-1, 6).T)

    @classmethod
    def parse(cls, text: str) -> Groups:
        """Read `MxNxK,MxNxK*COUNT,…`, the format of `str`.

        A single number means a cube. Leading dimensions follow a size as `:LDA:LDB:LDC`. The text
        of ragged groups begins with `ragged:`.

        Raises:
            UsageError: the text does not have this format, or exceeds `MOST_IN_TEXT` products; or
                groups are ragged and differ in more than m.
        """
        ragged = text.lower().lstrip().startswith(RAGGED)
        if ragged:
            text = text.lstrip()[len(RAGGED) :]
        rows: list[tuple[int, ...]] = []
        counts: list[int] = []
        for part in (each.strip() for each in text.lower().replace("×", "x").split(",")):
            batch = _BATCH.fullmatch(part)
            found = _GROUP.fullmatch(part if batch is None else f"{batch[1]}*{batch[2]}")
            if found is None or any(len(each or "") > MOST_DIGITS for each in found.groups()):
                raise UsageError(
                    f"'{part}' is not a group: write MxNxK or MxNxK*COUNT, comma-separated, for "
                    "example 512x512x512*4,128x64x32"
                )
            m, n, k, *rest, count = (None if each is None else int(each) for each in found.groups())
            side = m or 0
            sizes = (side, side if n is None else n, side if k is None else k)
            rows.append((*sizes, *(each or 0 for each in rest)))
            counts.append(1 if count is None else count)
        if sum(counts) > MOST_IN_TEXT:
            raise UsageError(
                f"{sum(counts):,} products are asked for: a text may have {MOST_IN_TEXT:,}"
            )
        table = np.repeat(np.array(rows, np.int64), counts, axis=0)
        return cls.of(*table.T, ragged=ragged)

    @classmethod
    def read(cls, path: Path) -> Groups:
        """Read a file with one group per line; `#` starts a comment. A line `ragged:` before them
        says that they are.

        Raises:
            UsageError: the file cannot be read, or a line is not a group; the message names it.
        """
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UsageError(f"{path} is not a text of groups") from None
        parts: list[str] = []
        ragged = ""
        for number, line in enumerate(lines, 1):
            part = line.partition("#")[0].strip().rstrip(",")
            if part.lower() == RAGGED and not parts:
                ragged = RAGGED
                continue
            if not part:
                continue
            try:
                cls.parse(part)
            except UsageError as error:
                raise UsageError(f"{path}:{number}: {error}") from None
            parts.append(part)
        if not parts:
            raise UsageError(f"{path} has no group: write MxNxK or MxNxK*COUNT on a line each")
        return cls.parse(ragged + ",".join(parts))

    @property
    def rows(self) -> int:
        """Rows of all products: of ragged ones those of their A."""
        return int(self.m.sum())

    def representative(self) -> Groups:
        """Of ragged groups with rows, those for which a choice is made that any division of as many
        rows gets, and of numbers with about the same mean: sizes around this."""
        step = row_class(self.rows, self.count)
        mean = 2 ** (step * STEP_LOG2)
        shares = np.linspace(*SPREAD, 2 * self.count + 1)[1::2] * mean
        ends = np.rint(np.cumsum(np.concatenate([[0.0], shares])))
        m = np.diff(ends).astype(np.int64)
        if not m.any():
            m[-1] = 1
        return Groups.of(m, *self.table[1:, 0].tolist(), ragged=True)

    @property
    def count(self) -> int:
        """The number of products."""
        return len(self.packed) // (8 * len(_NAMES))

    @cached_property
    def table(self) -> Sizes:
        """m, n, k, lda, ldb and ldc, each for all products; read-only."""
        return np.frombuffer(self.packed, np.int64).reshape(len(_NAMES), -1)

    @cached_property
    def m(self) -> Sizes:
        """Rows of A and C."""
        return self._row(0)

    @cached_property
    def n(self) -> Sizes:
        """Columns of B and C."""
        return self._row(1)

    @cached_property
    def k(self) -> Sizes:
        """Columns of A and rows of B."""
        return self._row(2)

    @cached_property
    def lda(self) -> Sizes:
        """Leading dimensions of A."""
        return self._row(3)

    @cached_property
    def ldb(self) -> Sizes:
        """Leading dimensions of B."""
        return self._row(4)

    @cached_property
    def ldc(self) -> Sizes:
        """Leading dimensions of C."""
        return self._row(5)

    def _row(self, number: int) -> Sizes:
        found: Sizes = self.table[number]
        return found

    @cached_property
    def largest(self) -> tuple[int, int, int]:
        """The largest m, n and k over all products; zeros if there are none."""
        m, n, k = (int(each) for each in self.table[:3].max(axis=1, initial=0))
        return m, n, k

    @cached_property
    def multiply_adds(self) -> int:
        """Multiply-adds of all products."""
        return int(self.table[:3].astype(float).prod(axis=0).sum())

    @cached_property
    def results(self) -> int:
        """Elements of all C."""
        return int(self.table[:2].astype(float).prod(axis=0).sum())

    @cached_property
    def operand_elements(self) -> int:
        """Elements of all A and B; those of an empty C do not count."""
        m, n, k = self.table[:3].astype(float)
        return int((((m > 0) & (n > 0)) * (m + n) * k).sum())

    def extents(self, transposed: Sequence[bool]) -> tuple[int, int, int]:
        """Of A, B and C the rows' lengths and leading dimensions in all products, or'd together.

        A power of two that divides one divides all of them. Matrices that are neither read nor
        written do not count. Leading dimensions must not be 0.

        Args:
            transposed: whether the memory of A, B and C holds the transpose.
        """
        return _extents(self, tuple(transposed))

    def tight(self, transposed: Sequence[bool]) -> Sizes:
        """The smallest leading dimensions of all A, B and C, given which are `transposed`."""
        transa, transb, transc = transposed
        rows = (
            self.m if transa else self.k,
            self.k if transb else self.n,
            self.m if transc else self.n,
        )
        return np.maximum(rows, 1)

    def pitched(self, transposed: Sequence[bool]) -> Groups:
        """The same groups with leading dimensions of 0 replaced by those of `tight`.

        Raises:
            UsageError: a leading dimension is smaller than the row; the message names the product.
        """
        least, pitches = self.tight(transposed), self.table[3:]
        if (pitches >= least).all():
            return self
        filled = np.where(pitches == 0, least, pitches)
        if (filled < least).any():
            which, number = (int(each[0]) for each in np.nonzero(filled < least))
            raise UsageError(
                f"product {number}: {_NAMES[3 + which]} = {filled[which, number]} is smaller than "
                f"a row of {least[which, number]} elements"
            )
        return self._with_pitches(filled)

    def unpitched(self, transposed: Sequence[bool]) -> Groups:
        """The same groups with leading dimensions equal to those of `tight` replaced by 0."""
        pitches = self.table[3:]
        return self._with_pitches(np.where(pitches == self.tight(transposed), 0, pitches))

    def repitched(self, transposed: Sequence[bool], changed: Sequence[bool]) -> Groups:
        """The same groups in the layout `changed`; the padding of rows is kept."""
        beyond = self.table[3:] - self.tight(transposed)
        return self._with_pitches(self.tight(changed) + beyond)

    def _with_pitches(self, pitches: Sizes) -> Groups:
        return Groups(np.concatenate([self.table[:3], pitches]).tobytes(), self.ragged)

    def sizes_only(self) -> Groups:
        """The same sizes with contiguous rows, sorted: the longest k first, equal ones together."""
        order = np.lexsort((self.n, self.m, -self.k))
        table = np.zeros_like(self.table)
        table[:3] = self.table[:3, order]
        return Groups(table.tobytes(), self.ragged)

    def __str__(self) -> str:
        """`MxNxK*COUNT,…`: equal neighbors are written once; `ragged:` comes first if they are."""
        table = self.table
        if not table.size:
            return ""
        new = np.flatnonzero(np.any(table[:, 1:] != table[:, :-1], axis=0)) + 1
        starts = np.concatenate([[0], new, [table.shape[1]]])
        return (RAGGED if self.ragged else "") + ",".join(
            _group_text(column, count)
            for column, count in zip(
                table[:, starts[:-1]].T.tolist(), np.diff(starts).tolist(), strict=True
            )
        )


def row_class(rows: int, groups: int) -> int:
    """Which numbers of rows of ragged groups count as one; there must be some of both."""
    return round(log2(rows / groups) / STEP_LOG2)


# Dispatch asks for each candidate.
@lru_cache(maxsize=64)
def _extents(groups: Groups, transposed: tuple[bool, ...]) -> tuple[int, int, int]:
    written = (groups.m > 0) & (groups.n > 0)
    read = written & (groups.k > 0)
    a, b, c = (
        int(np.bitwise_or.reduce(each[counts], initial=0))
        for each, counts in zip(
            groups.tight(transposed) | groups.table[3:], (read, read, written), strict=True
        )
    )
    return a, b, c


def _group_text(sizes: list[int], count: int) -> str:
    m, n, k, *pitches = sizes
    text = f"{m}x{n}x{k}"
    if any(pitches):
        text += "".join(f":{each}" for each in pitches)
    return text if count == 1 else f"{text}*{count}"
