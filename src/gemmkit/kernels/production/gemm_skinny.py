"""How `gemm_skinny` is launched: products of at most 16 rows or columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gemmkit.dtypes import FLOAT_BYTES
from gemmkit.gpu import WARP_SIZE, GpuSpec
from gemmkit.kernels.cut import Cut, steps_of
from gemmkit.kernels.grids import batch_grid
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.mainloops.short_sides import streamed
from gemmkit.kernels.plan import SKINNY, LaunchShape, TileConfig, ceil_div
from gemmkit.kernels.production.arguments import access, launch_shape, named, signature
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

    Its lines along k may be `staged` in shared memory, and the pieces of the streamed matrix be on
    their way there too, in a `ring`; without, these are in registers. Of the streamed matrix
    `width` floats are read at once, of the small one `small_width`.
    """

    side: int
    tall: bool
    staged: bool
    ring: bool
    width: int = 4
    small_width: int = 4

    @classmethod
    def of(cls, problem: GemmProblem) -> Form:
        """That of a problem: what needs the fewest instructions for each byte that streams."""
        tall, side = is_tall(problem), padded_side(problem)
        stride_a, stride_b, _ = problem.strides
        by_a, by_b = problem.lda | stride_a, problem.ldb | stride_b
        width = 4 if (problem.k | by_a if tall else problem.n | by_b) % 4 == 0 else 1
        if tall:
            # A single column without gaps is a line along k already.
            staged, ring = problem.n > 1 or problem.ldb > 1, side > IN_REGISTERS
            small_width = width if staged or stride_b % 4 == 0 else 1
        else:
            small_width = 4 if (problem.k | by_a) % 4 == 0 else 1
            staged = ring = width == small_width == 4 or side > UNALIGNED_IN_REGISTERS
        return cls(side, tall, staged, ring, width, small_width)

    @property
    def piece(self) -> int:
        """Floats of the streamed matrix that a thread has at a time."""
        return 2 * PIECE if self.ring and not self.tall else PIECE

    def threads(self, config: TileConfig) -> int:
        """Threads of a block."""
        return config["BN"] * config["BK"] // self.piece

    def stage_bytes(self, config: TileConfig) -> int:
        """Shared bytes of a stage: pieces that registers do not hold, and the staged lines."""
        pieces = config["BN"] * config["BK"] if self.ring else 0
        if not self.staged:
            lines = 0
        elif self.tall:
            lines = self.side * (config["BK"] + PAD)
        else:  # each warp has its own, in whole vectors of all lanes
            length = WARP_SIZE * self.piece // neighbours(config, tall=False)
            vectors = ceil_div(self.side * length, WARP_SIZE * self.small_width)
            lines = vectors * self.threads(config) * self.small_width
        return FLOAT_BYTES * (pieces + lines)

    def sum_bytes(self, config: TileConfig) -> int:
        """Shared bytes of the sums that the warps along k leave for each other."""
        read = neighbours(config, tall=self.tall)
        warps = config["BK"] // (read if self.tall else WARP_SIZE * self.piece // read)
        return FLOAT_BYTES * warps * self.side * config["BN"]


# The forms that take the most shared memory.
_LARGEST = tuple(Form(SKINNY, tall=tall, staged=True, ring=True) for tall in (False, True))


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
    return (
        f"it takes products of at most {SKINNY} rows or columns; 'gemm_split_k' and 'gemm_tiled' "
        "take any"
    )


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
        yield f"WN = {config['WN']}: a warp reads {PIECE} to {WARP_PIECE // 4} neighbours of a row"
    for along, across, piece in (("BN", "BK", 2 * WARP_PIECE), ("BK", "BN", WARP_PIECE)):
        needed = piece // min(config["WN"], config[along])
        if config[across] < needed:
            yield f"{across} = {config[across]} is less than the {needed} lines that a warp reads"
    threads = config["BN"] * config["BK"] // PIECE
    if threads > MAX_THREADS:
        yield f"{threads} threads a block are more than {MAX_THREADS}, of 128 registers"
    stages = 2 * max(form.stage_bytes(config) for form in _LARGEST)
    sums = max(form.sum_bytes(config) for form in _LARGEST)
    needed, limit = max(stages, sums) + STATIC_SHARED_BYTES, gpu.capability.max_shared_per_block
    if needed > limit:
        what = "its sums" if sums > stages else "two stages"
        yield f"{what} take {needed} bytes of shared memory; {gpu.name} allows {limit}"


def sums_per_thread(problem: GemmProblem) -> int:
    """Of four results in each row of the small side, as a piece of 4 x 4 gives."""
    return 4 * padded_side(problem)


def neighbours(config: TileConfig, *, tall: bool) -> int:
    """Floats of a row that a warp reads together; a tile may be narrower than `WN`."""
    return min(config["WN"], config["BK" if tall else "BN"])


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
    stages = min(config["stages"], _most_stages(form, config, gpu))
    shared_bytes = _shared_bytes(form, config, stages) + STATIC_SHARED_BYTES
    thin = min(problem.m, problem.n)
    return streamed(found, config, form.threads(config), shared_bytes, thin)


def _shared_bytes(form: Form, config: TileConfig, stages: int) -> int:
    return max((stages + 1) * form.stage_bytes(config), form.sum_bytes(config))


def launch(problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchShape:
    """The parts of k as `cut` has them.

    There are fewer stages than asked for where registers or shared memory do not hold them.
    """
    form = Form.of(problem)
    BN, BK = config["BN"], config["BK"]
    stages = min(config["stages"], _most_stages(form, config, gpu))
    found = cut(problem, config, gpu)
    tiles, parts = found.tiles // max(problem.batch, 1), found.parts
    left = found.tiles if parts > 1 else 0
    shape = launch_shape(
        problem,
        (
            named(
                "SkinnyTile",
                {
                    "side": form.side,
                    "tall": form.tall,
                    "staged": form.staged,
                    "ring": form.ring,
                    "BN": BN,
                    "BK": BK,
                    "WN": neighbours(config, tall=form.tall),
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
    return replace(
        shape, workspace_bytes=FLOAT_BYTES * left * parts * form.side * BN, arrivals=left
    )


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
    rule=rule,
    signature=signature("workspace", "arrivals"),
    condition=accepts,
)
