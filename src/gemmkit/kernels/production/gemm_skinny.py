"""How `gemm_skinny` is launched: products of at most 16 rows or columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gemmkit.dtypes import FLOAT_BYTES
from gemmkit.gpu import WARP_SIZE, GpuSpec
from gemmkit.kernels import loads
from gemmkit.kernels.cut import Cut, steps_of
from gemmkit.kernels.grids import batch_grid
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.limits import SKINNY
from gemmkit.kernels.mainloops.short_sides import streamed
from gemmkit.kernels.plan import LAYOUTS, FewerStages, LaunchShape, TileConfig, ceil_div
from gemmkit.kernels.production.arguments import SPLIT_SIGNATURE, access, launch_shape, named
from gemmkit.kernels.production.schedule import schedule_argument
from gemmkit.kernels.rules import STATIC_SHARED_BYTES
from gemmkit.kernels.work import Work
from gemmkit.problem import GemmProblem

# A thread's piece of the streamed matrix is 4 x 4 floats, so a warp reads 512 a step.
PIECE = 16
WARP_PIECE = WARP_SIZE * PIECE

# Threads that may have 128 registers each.
MAX_THREADS = 512

# Columns, and rows that are not aligned, up to which pieces on their way stay in registers.
IN_REGISTERS, UNALIGNED_IN_REGISTERS = 8, 4

# Registers besides those for sums, lines and pieces: addresses mostly, by floats per access.
OTHER_REGISTERS = {4: 40, 1: 72}

PAD = 4


@dataclass(frozen=True, slots=True)
class Form:
    """How the kernel goes about the small side, of `side` rows or (`tall`) columns.

    The streamed matrix is contiguous along k (`k_major`) or along the long side, the small one
    along k (`small_k_major`) or along the small side. Lines of the small one along k may be
    `staged` in shared memory; pieces of the streamed one on their way are there too, in a `ring`,
    or in registers. Of the streamed matrix `width` floats are read at once, of the small one
    `small_width`.
    """

    side: int
    tall: bool
    k_major: bool
    small_k_major: bool
    staged: bool
    ring: bool
    width: int = 4
    small_width: int = 4

    @classmethod
    def of(cls, problem: GemmProblem) -> Form:
        """That of a problem: what needs the fewest instructions for each byte that streams."""
        tall, side = is_tall(problem), padded_side(problem)
        stride_a, stride_b, _ = problem.strides
        a = _Matrix(problem.m, problem.lda, stride_a, k_major=not problem.transa)
        b = _Matrix(problem.n, problem.ldb, stride_b, k_major=problem.transb)
        large, small = (a, b) if tall else (b, a)
        along = problem.k if large.k_major else large.extent
        width = _vector(along | large.ld | large.stride)
        single = small.extent == 1
        # A single column without gaps is a line along k already.
        small_k_major = small.k_major or (single and small.ld == 1)
        small_width = 1
        if small_k_major:
            small_width = _vector(problem.k | small.stride | (0 if single else small.ld))
        if large.k_major:
            staged, ring = not (single and small_k_major), side > IN_REGISTERS
            if not staged:
                small_width = min(small_width, width)
        elif small_k_major:
            staged = ring = width == small_width == 4 or side > UNALIGNED_IN_REGISTERS
        else:
            staged, ring = True, width == 4 or side > UNALIGNED_IN_REGISTERS
        return cls(side, tall, large.k_major, small_k_major, staged, ring, width, small_width)

    @property
    def piece(self) -> int:
        """Floats of the streamed matrix that a thread has at a time."""
        return 2 * PIECE if self.ring and not self.k_major else PIECE

    def threads(self, config: TileConfig) -> int:
        """Threads of a block."""
        return config["BN"] * config["BK"] // self.piece

    def stage_bytes(self, config: TileConfig) -> int:
        """Shared bytes of a stage: pieces that registers do not hold, and the staged lines."""
        pieces = config["BN"] * config["BK"] if self.ring else 0
        if not self.staged:
            lines = 0
        elif self.k_major or not self.small_k_major:
            lines = self.side * (config["BK"] + PAD)
        else:  # each warp has its own, in whole vectors of all lanes
            length = WARP_SIZE * self.piece // neighbors(config, k_major=False)
            vectors = ceil_div(self.side * length, WARP_SIZE * self.small_width)
            lines = vectors * self.threads(config) * self.small_width
        return FLOAT_BYTES * (pieces + lines)

    def sum_bytes(self, config: TileConfig) -> int:
        """Shared bytes of the sums that the warps along k leave for each other."""
        read = neighbors(config, k_major=self.k_major)
        warps = config["BK"] // (read if self.k_major else WARP_SIZE * self.piece // read)
        return FLOAT_BYTES * warps * self.side * config["BN"]


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A or B: its extent besides k, its leading dimension, and its stride in a batch."""

    extent: int
    ld: int
    stride: int
    k_major: bool


def _vector(elements: int) -> int:
    """Floats per access where extents and distances have these bits."""
    return 4 if elements % 4 == 0 else 1


# The forms that take the most shared memory.
_LARGEST = tuple(
    Form(SKINNY, tall=False, k_major=large, small_k_major=small, staged=True, ring=True)
    for large in (False, True)
    for small in (False, True)
)


def is_tall(problem: GemmProblem) -> bool:
    """Whether B's columns are the small side, so that A streams."""
    return problem.n <= SKINNY


def padded_side(problem: GemmProblem) -> int:
    """The small side, rounded up to a power of two."""
    return 1 << (max(problem.n if is_tall(problem) else problem.m, 1) - 1).bit_length()


def accepts(problem: GemmProblem, _: GpuSpec) -> str | None:
    """The reason why a problem is not skinny, or None."""
    if min(problem.m, problem.n) <= SKINNY:
        return None
    return f"it takes products of at most {SKINNY} rows or columns"


def rule(config: TileConfig, gpu: GpuSpec) -> str | None:
    """The reason why a configuration is refused on a board, or None."""
    return next(_reasons(config, gpu), None)


def _reasons(config: TileConfig, gpu: GpuSpec) -> Iterator[str]:
    if gpu.capability.major < 8:
        yield f"cp.async needs compute capability 8.0; {gpu.name} has {gpu.capability}"
    for key, value in config.as_dict().items():
        if value < 1:
            yield f"{key} = {value}: values must be 1 or more"
    for key in ("BN", "BK", "WN"):
        if config[key] & (config[key] - 1):
            yield f"{key} = {config[key]} is not a power of two"
    if not PIECE <= config["WN"] <= WARP_PIECE // 4:
        yield f"WN = {config['WN']}: a warp reads {PIECE} to {WARP_PIECE // 4} neighbors of a row"
    for along, across, piece in (("BN", "BK", 2 * WARP_PIECE), ("BK", "BN", WARP_PIECE)):
        needed = piece // min(config["WN"], config[along])
        if config[across] < needed:
            yield f"{across} = {config[across]} is less than the {needed} lines that a warp reads"
    threads = config["BN"] * config["BK"] // PIECE
    if threads > MAX_THREADS:
        yield f"{threads} threads per block are more than {MAX_THREADS}, of 128 registers"
    stages = 2 * max(form.stage_bytes(config) for form in _LARGEST)
    sums = max(form.sum_bytes(config) for form in _LARGEST)
    needed, limit = max(stages, sums) + STATIC_SHARED_BYTES, gpu.capability.max_shared_per_block
    if needed > limit:
        what = "its sums" if sums > stages else "two stages"
        yield f"{what} take {needed} bytes of shared memory; {gpu.name} allows {limit}"


def neighbors(config: TileConfig, *, k_major: bool) -> int:
    """Floats of a row that a warp reads together; a tile may be narrower than `WN`."""
    return min(config["WN"], config["BK" if k_major else "BN"])


def cut(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Cut:
    """At most `split_k` parts of k, and no more than give every SM a block."""
    BN, tall = config["BN"], is_tall(problem)
    long = problem.m if tall else problem.n
    tiles = ceil_div(long, BN) * problem.batch if min(problem.m, problem.n) else 0
    depth = ceil_div(problem.k, config["BK"])
    parts = max(1, min(config["split_k"], depth, gpu.sm_count // max(tiles, 1)))
    rows, columns = (BN, problem.n) if tall else (problem.m, BN)
    steps = ceil_div(steps_of(problem, config), parts) if tiles else 0
    return Cut(rows, columns, tiles, tiles * parts, steps, 1, parts)


def work(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> Work:
    """What its blocks ask of an SM: the large matrix, once."""
    form, found = Form.of(problem), cut(problem, config, gpu)
    stages = stages_of(form, config, gpu)
    shared_bytes = _shared_bytes(form, config, stages) + STATIC_SHARED_BYTES
    thin = min(problem.m, problem.n)
    return streamed(found, config, form.threads(config), shared_bytes, thin, k_major=form.k_major)


def _shared_bytes(form: Form, config: TileConfig, stages: int) -> int:
    return max((stages + 1) * form.stage_bytes(config), form.sum_bytes(config))


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """The parts of k as `cut` has them.

    There are fewer stages than asked for where registers or shared memory do not hold them.
    """
    form = Form.of(problem)
    BN, BK = config["BN"], config["BK"]
    stages = stages_of(form, config, gpu)
    found = cut(problem, config, gpu)
    tiles, parts = found.tiles // max(problem.batch, 1), found.parts
    left = found.tiles if parts > 1 else 0
    shape = launch_shape(
        (
            named(
                "SkinnyTile",
                {
                    "side": form.side,
                    "tall": form.tall,
                    "k_major": form.k_major,
                    "small_k_major": form.small_k_major,
                    "staged": form.staged,
                    "ring": form.ring,
                    "BN": BN,
                    "BK": BK,
                    "WN": neighbors(config, k_major=form.k_major),
                    "stages": stages,
                    "pad": PAD,
                    "threads": form.threads(config),
                },
            ),
            access(form.width, form.small_width, 1),
            schedule_argument(problem),
        ),
        batch_grid(tiles, parts, problem.batch),
        form.threads(config),
        _shared_bytes(form, config, stages),
    )
    reason = "registers or shared memory do not hold more"
    return replace(
        shape,
        workspace_bytes=FLOAT_BYTES * left * parts * form.side * BN,
        semaphores=left,
        fewer_stages=FewerStages(stages, reason) if stages < config["stages"] else None,
    )


def stages_of(form: Form, config: TileConfig, gpu: GpuSpec) -> int:
    """The stages of a launch: those of the configuration, or as many as there is room for."""
    return min(config["stages"], _most_stages(form, config, gpu))


def _most_stages(form: Form, config: TileConfig, gpu: GpuSpec) -> int:
    """Steps that a thread's pieces can be ahead, by registers and shared memory."""
    most = config["stages"]
    if not form.ring:
        registers = gpu.capability.registers_per_sm // form.threads(config)
        # Of each small row four sums and four floats of a line, and a piece that is at work.
        pieces = (registers - OTHER_REGISTERS[form.width] - 8 * form.side) // PIECE
        most = max(1, pieces - 1)
    if stage := form.stage_bytes(config):
        room = gpu.capability.max_shared_per_block - STATIC_SHARED_BYTES
        most = min(most, room // stage - 1)
    return most


KERNEL = Kernel(
    name="gemm_skinny",
    rung=None,
    idea="A product of at most 16 rows or columns reads its large matrix once, copies always "
    "under way, with k shared by lanes, warps and blocks whose sums meet by shuffles.",
    default=TileConfig(BN=32, BK=256, WN=32, stages=2, split_k=128),
    space={
        "BN": (16, 32, 64, 128),
        "BK": (32, 64, 128, 256, 512),
        "WN": (16, 32, 64, 128),
        "stages": (1, 2, 3),
        "split_k": (1, 2, 4, 8, 16, 32, 128),
    },
    launch=launch,
    work=work,
    loads=loads.no_formula(loads.SHARED_K),
    rule=rule,
    signature=SPLIT_SIGNATURE,
    layouts=LAYOUTS,
    condition=accepts,
)
