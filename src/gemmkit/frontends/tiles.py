"""What tiles a kernel of a user's own cuts its problem into, as far as its launch and names say.

Nothing here decides what is right. It is only used to choose problems that are worth running.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from gemmkit.cxx.expressions import Number
from gemmkit.errors import UsageError
from gemmkit.frontends.launch_rule import LaunchRule
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import TileConfig, ceil_div
from gemmkit.kernels.rules import STATIC_SHARED_LIMIT
from gemmkit.kernels.sizes import SIZES, Multiples, SizeRule
from gemmkit.problem import GemmProblem

# Where nothing tells, and the least that makes a problem of more than a few threads.
ASSUMED_TILE, ASSUMED_STEP, LEAST = 128, 32, 16
# A constant beyond this is no tile.
LARGEST = 512
# While one size varies, the others are this.
_BESIDE = 768

_WORD = r"(?:block|tile|cta|threadblock|tb|bs|ts|b)"
_EXTENT = r"(?:size|dim|length|len|items|elems|width)?"
_AXES = {
    "M": re.compile(rf"k?(?:{_WORD}{_EXTENT}(?:m|rows?|y)|m{_WORD}{_EXTENT}){_EXTENT}"),
    "N": re.compile(rf"k?(?:{_WORD}{_EXTENT}(?:n|col(?:umn)?s?|x)|n{_WORD}{_EXTENT}){_EXTENT}"),
    "K": re.compile(rf"k?(?:{_WORD}{_EXTENT}k|k{_WORD}{_EXTENT}|kstep|stepk){_EXTENT}"),
}
_SQUARE = re.compile(
    rf"k?(?:(?:block|tile|ts|bs|tb|t){_EXTENT}|(?:tile|block)?(?:side|edge|width)|threads?per(?:side|dim))"
)
_STAGES = re.compile(
    r"k?(?:num|n|number(?:of)?)?(?:pipe(?:line)?)?(?:stages?|depth|buf(?:fer)?s?)(?:count|num)?"
)
# What code of circular buffers contains.
_ASYNCHRONOUS = re.compile(r"mbarrier|cp\.async|memcpy_async|cuda::(?:barrier|pipeline)")


@dataclass(frozen=True, slots=True)
class Tiles:
    """Rows, columns and step along k of a block's tile, and stages in flight.

    `multiples` is what M, N and K are multiples of in problems that the grid covers: more than 1
    where the grid leaves the rest of a division out, as `M/16` does. `buffered` is how much of k
    all stages hold at most, where their number is unknown and their memory is not; else it is 0.
    """

    rows: int
    columns: int
    step: int
    stages: int
    multiples: Multiples = (1, 1, 1)
    buffered: int = 0

    @property
    def enough(self) -> Tiles:
        """So many of them, where they are small, that a product is worth a run."""
        rows, columns = (tile * ceil_div(LEAST, tile) for tile in (self.rows, self.columns))
        return replace(self, rows=rows, columns=columns)


def tiles_of(kernel: Kernel, config: TileConfig) -> Tiles:
    """The tiles of a rung's configuration, or what can be seen of a user's kernel."""
    if not isinstance(kernel.launch, LaunchRule):
        return Tiles(
            config.BM or ASSUMED_TILE,
            config.BN or ASSUMED_TILE,
            config.BK or ASSUMED_STEP,
            config.stages or 0,
        )
    rule = kernel.launch
    named = dict(_named(rule.constants))
    sizes = kernel.sizes or SizeRule()
    steps = {name: _grid_step(rule, sizes, name) or _GridStep(0, floors=False) for name in SIZES}
    seen = {name: step.size for name, step in steps.items() if step.size > 1}
    square = named.get("square", 0)
    rows = seen.get("M") or named.get("M") or square or seen.get("N") or ASSUMED_TILE
    columns = seen.get("N") or named.get("N") or square or rows
    step = named.get("K") or square or seen.get("K") or min(rows, columns, ASSUMED_STEP)
    m, n, k = (steps[name].size if steps[name].floors else 1 for name in SIZES)
    return Tiles(rows, columns, step, named.get("stages", 0), multiples=(m, n, k))


def with_buffered(
    tiles: Tiles, kernel: Kernel, config: TileConfig, problem: GemmProblem, gpu: GpuSpec
) -> Tiles:
    """The tiles of a user's kernel with what its stages may hold, if their number is unknown.

    A stage has a tile of A and one of B, in dynamic shared memory as far as the launch requests it;
    a kernel that copies asynchronously may have them in static shared memory too. `problem` is one
    of the types of A and B.
    """
    if tiles.stages or not isinstance(kernel.launch, LaunchRule):
        return tiles
    try:
        nbytes = kernel.launch(problem, config, gpu).shared_bytes
    except UsageError:
        nbytes = 0
    text = kernel.file.text if kernel.file is not None else ""
    if not nbytes and _ASYNCHRONOUS.search(text):
        nbytes = STATIC_SHARED_LIMIT
    return replace(tiles, buffered=nbytes // ((tiles.rows + tiles.columns) * problem.item_bytes))


def block_tile(kernel: Kernel, config: TileConfig) -> tuple[int, int] | None:
    """Rows and columns of C that a block computes; None where the launch does not show both."""
    if not isinstance(kernel.launch, LaunchRule):
        return (config.BM, config.BN) if config.BM and config.BN else None
    sizes = kernel.sizes or SizeRule()
    rows, columns = (_grid_step(kernel.launch, sizes, name) for name in SIZES[:2])
    if rows is None or columns is None or min(rows.size, columns.size) < 1:
        return None
    return rows.size, columns.size


def _named(constants: Mapping[str, Number]) -> Iterator[tuple[str, int]]:
    """What constants say by their names: "M", "N" and "K" the tile, "square", and "stages"."""
    found: dict[str, int] = {}
    for name, value in constants.items():
        plain = name.replace("_", "").lower()
        if not isinstance(value, int) or not 1 < value <= LARGEST:
            continue
        for what, pattern in (*_AXES.items(), ("square", _SQUARE), ("stages", _STAGES)):
            if pattern.fullmatch(plain):
                found[what] = max(found.get(what, 0), value)
                break
    return iter(found.items())


@dataclass(frozen=True, slots=True)
class _GridStep:
    """How much a size grows until the grid gains blocks; whether the grid rounds down."""

    size: int
    floors: bool


def _grid_step(rule: LaunchRule, sizes: SizeRule, name: str) -> _GridStep | None:
    """The step of one size; None where the grid does not follow it regularly."""

    def blocks(size: int) -> int:
        values = dict.fromkeys(SIZES, size if sizes.only else _BESIDE) | {name: size}
        problem = GemmProblem(values["M"], values["N"], values["K"])
        x, y, z = rule.extents(problem)
        return x * y * z

    try:
        if blocks(1) == blocks(LARGEST + 1) == blocks(3 * LARGEST):
            return None
        growing = list(_growing(blocks))
        if len(growing) < 3 or len({after - before for before, after in pairwise(growing)}) != 1:
            return None
        size = growing[1] - growing[0]
        # `M/16` has no block for the first 15 rows; `max(M/16,1)` has one for 31.
        floors = growing[0] == 2 * size or (growing[0] == size and blocks(1) == 0)
    except UsageError:
        return None
    return _GridStep(size, floors=size > 1 and floors)


def _growing(blocks: Callable[[int], int]) -> Iterator[int]:
    """The first three sizes above 1 at which there are more blocks than one below."""
    found, before = 0, blocks(1)
    for size in range(2, 3 * LARGEST + 2):
        now = blocks(size)
        if now > before:
            yield size
            found += 1
        if found == 3:
            return
        before = now
