"""What a launch is made of: configurations, signatures, sources and plans."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Literal

from gemmkit.cxx.expressions import Expression
from gemmkit.dtypes import Dtype
from gemmkit.errors import UnsupportedType, UsageError

if TYPE_CHECKING:
    from gemmkit.kernels.group_table import GroupTable
    from gemmkit.kernels.offsets_table import OffsetsTable
    from gemmkit.kernels.operand_copies import OperandCopy
    from gemmkit.kernels.tensor_maps import MapRule, PlannedMap

Dim3 = tuple[int, int, int]

# Every name a kernel parameter may have; a device binds each to a value.
ARGUMENT_NAMES = ("M", "N", "K", "alpha", "A", "lda", "B", "ldb", "beta", "C", "ldc", "bias")

LEADING_DIMENSIONS = ("lda", "ldb", "ldc")

Signature = tuple[str, ...]

# The signature that rungs share, and that of those whose blocks work together on a result.
SGEMM_SIGNATURE: Signature = ARGUMENT_NAMES
SCRATCH_ARGUMENTS: Signature = ("workspace", "semaphores")
SCRATCH_SIGNATURE: Signature = (*SGEMM_SIGNATURE, *SCRATCH_ARGUMENTS)

# What comes last in the signature of kernels that take batches.
BATCH_ARGUMENTS: Signature = ("batch", "stride_a", "stride_b", "stride_c")

# And of those that add a residual, scale, or keep the argument of the activation.
EPILOGUE_ARGUMENTS: Signature = (
    *("residual", "ldr", "stride_r", "auxiliary", "ldx", "stride_x"),
    "scale",
)

# Those of scales of A and of B: address, and elements between those of lines, of chunks of k, and
# of products.
SCALE_ARGUMENTS: Signature = (
    *("scale_a", "scale_a_ld", "scale_a_step", "scale_a_stride"),
    *("scale_b", "scale_b_ld", "scale_b_step", "scale_b_stride"),
)

# The table of products of different shapes in global memory, their number, and the tiles of all.
TABLE_ARGUMENTS: Signature = ("groups", "group_count", "tile_count")

# Where the rows of ragged groups end, in global memory.
OFFSETS = "offsets"

# Of an A whose rows are gathered from several GPUs while they are multiplied: flags of the other
# ranks' shares, the first row of this one's own, rows of each share, and how many ranks there are.
# Its own rows, which lie apart, reach the kernel through the tensor map of "own".
ARRIVAL_ARGUMENTS: Signature = ("arrived", "first_row", "share_rows", "ranks")
OWN_ROWS: Signature = ("own", "own_rows", "own_ld")

# Tensor maps of A, B and C of gemmkit's own kernels; a launch that does without one passes zeros.
MAP_ARGUMENTS: Signature = ("map_a", "map_b", "map_c")

# And those of what their epilogues read and keep besides.
FURTHER_MAP_ARGUMENTS: Signature = ("map_residual", "map_auxiliary")

# How A and B lie in memory, by BLAS's letters, for kernels that read all of them in place.
LAYOUTS = ("nn", "nt", "tn", "tt")


@dataclass(frozen=True, slots=True)
class TileConfig:
    """How a product is divided; a kernel uses some of the keys, and the others are None.

    BM×BN is the block's tile of C and BK its step along k; WM×WN a warp's tile; TM×TN a thread's;
    `stages` the number of tiles in flight; `split_k` the blocks that share the k of one tile, and
    `slice_k` the groups of warps in a block that share each step of it. `consumers` are the
    warpgroups of a block that multiply, `pingpong` the tiles that they have in hand, in equal
    shares, so that one is written back while another is multiplied; `accumulators` the sets of
    registers in which tensor cores make the sums of a chunk of k, so that those of one are promoted
    while they make the next; `cluster_m` × `cluster_n` ×
    `cluster_k` the blocks of a cluster, of which those along k share a tile. The last two do not
    change traffic, but the code of the inner loop: `interleave` is the number of places in a step
    where its copies are issued, `order` the order of an outer product (see `outer_product` in
    fragment.cuh).

    Raises:
        UsageError: a key is not a positive integer.
    """

    BM: int | None = None
    BN: int | None = None
    BK: int | None = None
    WM: int | None = None
    WN: int | None = None
    TM: int | None = None
    TN: int | None = None
    stages: int | None = None
    split_k: int | None = None
    slice_k: int | None = None
    consumers: int | None = None
    pingpong: int | None = None
    accumulators: int | None = None
    cluster_m: int | None = None
    cluster_n: int | None = None
    cluster_k: int | None = None
    interleave: int | None = None
    order: int | None = None

    def __post_init__(self) -> None:
        for key in _KEYS:
            value = getattr(self, key)
            if value is not None and (type(value) is not int or value < 1):
                object.__setattr__(self, key, _positive(key, value))

    def as_dict(self) -> dict[str, int]:
        """The keys in use with their values."""
        return {key: value for key in _KEYS if (value := getattr(self, key)) is not None}

    def __getitem__(self, key: str) -> int:
        value: int | None = getattr(self, key)
        if value is None:
            raise KeyError(key)
        return value

    def __str__(self) -> str:
        return ",".join(f"{key}={value}" for key, value in self.as_dict().items())


_KEYS = tuple(each.name for each in dataclasses.fields(TileConfig))


def _positive(key: str, value: object) -> int:
    """The number as Python's.

    Raises:
        UnsupportedType: it is not an integer.
        UsageError: it is less than 1.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UnsupportedType(
            f"{key} = {value!r} is of type {type(value).__name__}: use a positive integer"
        )
    if value < 1:
        raise UsageError(f"{key} = {value}: values must be 1 or more")
    return int(value)


# A file of its own for the expression of a custom epilogue: messages about it quote its own lines.
EXPRESSION_FILE = "custom epilogue"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """What a kernel is compiled from: CUDA C++, or the PTX that another front end made.

    Python is what such a front end read; a plan never has it.

    `name` is how messages and line tables call it. `include_dirs` are searched for included
    files; `options` go to the compiler as they are. `assertions` are compiled after the text: what
    must be true of a kernel's parameters, by `element_types`. `expression`, a user's own
    epilogue, is what the text includes by the name `EXPRESSION_FILE`.
    """

    text: str
    name: str
    language: Literal["cuda", "ptx", "python"] = "cuda"
    include_dirs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    assertions: str = ""
    expression: str = ""


# The type of a field that is a tensor map.
MAP_FIELD = "tensor map"


@dataclass(frozen=True, slots=True)
class FieldPlace:
    """Where a scalar or a tensor map lies in a struct: `size` bytes at `offset`, `type` in PTX's
    words."""

    offset: int
    size: int
    type: str
    pointer: bool = False


@dataclass(frozen=True, slots=True)
class StructPlace:
    """A kernel parameter that is a struct: `size` and `alignment` in bytes, its scalars in order.

    `declared` is the parameter as the source declares it, `line` (`file:line`) where its kernel is
    declared.
    """

    declared: str
    size: int
    alignment: int
    fields: tuple[FieldPlace, ...]
    line: str = ""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything a compiler and a device need; it follows from kernel, problem and config alone.

    `entry` is the C++ name expression of the instantiated kernel, or its symbol in PTX. An empty
    `grid` (a zero in it) means there is nothing to launch. `shared_bytes` is dynamic shared memory.
    Each entry of `signature` is an argument's name, a number, or an expression over such names.
    Where the kernel takes structs by value, `structs` has an entry for each of its parameters, and
    `signature` one for each field in place of such a struct.
    `workspace_bytes` is global memory whose content does not matter. `semaphores` is the number of
    32-bit counters in global memory, one per tile that several blocks share: they are zero before
    the first launch, and each launch leaves them at zero.
    Blocks of a `dependent` launch may start before the kernel before it on the stream has ended;
    they wait for that themselves. A GPU is asked for `reserved_bytes` of dynamic shared memory per
    block where these are more.
    `residue` are the last rows and columns of C if blocks after those of its tiles compute them,
    `chunks` the parts of k that are accumulated separately; with `rasterized`, tiles come in groups
    of rows, column by column. `compute_dtype` and `tolerance` say how exact the result must
    be where that is not to be read from the kernel; `table` is the one in global memory from which
    the kernel reads its products, or where ragged groups end; `constants` are `__constant__` and
    `__device__` variables that are set before the launch, by name, and their bytes; those that the
    source initializes have none. `scalars` are the types of those of α and β that 16-bit parameters
    take: PTX does not show them. `tensor_maps` are those that the signature names. `before` is a
    launch that comes first, on the same arguments: what it leaves in the workspace, this one reads,
    and `purpose` says in which form it leaves operands there. Besides names, a signature has
    addresses there, as `workspace + 256`. `prepared` are copies of operands in memory of their own,
    which launches read and do not make. `copied_in_place` are operands whose addresses in the
    signature are those of copies in the workspace. `fewer_stages` is for those who explain it.
    """

    kernel: str
    source: SourceFile
    entry: str
    grid: Dim3
    block: Dim3
    signature: Signature
    shared_bytes: int = 0
    cluster: Dim3 = (1, 1, 1)
    workspace_bytes: int = 0
    semaphores: int = 0
    residue: tuple[int, int] = (0, 0)
    chunks: int = 1
    rasterized: bool = False
    structs: tuple[StructPlace | None, ...] = ()
    compute_dtype: str = ""
    tolerance: float | None = None
    constants: tuple[tuple[str, bytes], ...] = ()
    scalars: tuple[tuple[str, Dtype], ...] = ()
    table: GroupTable | OffsetsTable | None = None
    tensor_maps: tuple[PlannedMap, ...] = ()
    before: LaunchPlan | None = None
    purpose: str = ""
    prepared: tuple[PreparedCopy, ...] = ()
    copied_in_place: tuple[str, ...] = ()
    dependent: bool = False
    reserved_bytes: int = 0
    fewer_stages: FewerStages | None = None

    @property
    def requested_bytes(self) -> int:
        """Dynamic shared memory per block that a GPU is asked for."""
        return max(self.shared_bytes, self.reserved_bytes)

    @property
    def arguments(self) -> str:
        """The signature in one line, the fields of a struct in braces."""
        texts, shown = iter(self.signature), []
        for struct in self.structs or (None,) * len(self.signature):
            if struct is None:
                shown.append(next(texts))
            else:
                shown.append("{" + ", ".join(next(texts) for _ in struct.fields) + "}")
        return ", ".join(shown)

    @property
    def instances(self) -> tuple[tuple[SourceFile, str], ...]:
        """What is compiled for it: source and entry of each launch. Plans that agree in them have
        the same binary."""
        earlier = () if self.before is None else self.before.instances
        made = (instance for each in self.prepared for instance in each.maker.instances)
        return (*made, *earlier, (self.source, self.entry))

    @property
    def copied(self) -> tuple[str, ...]:
        """The operands of which the kernel reads copies in the workspace, by tensor maps or by
        addresses in its signature."""
        copies = (each.copy for each in self.tensor_maps)
        by_maps = (each.operand for each in copies if each is not None and not each.is_prepared)
        return (*by_maps, *self.copied_in_place)

    @property
    def threads_per_block(self) -> int:
        """Threads in one block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        """Blocks in the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True, slots=True)
class FewerStages:
    """The `number` of a launch's stages where these are fewer than its configuration says, and in a
    few words why."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class PreparedCopy:
    """A copy of A or of B, the `operand`, in `nbytes` of memory whose address is the argument
    `name`.

    The launch `maker` fills it. `form` tells copies of one operand apart: kernels that read the
    same form share the copy, whatever their tiles and the other side of the product are.
    """

    operand: str
    form: str
    nbytes: int
    maker: LaunchPlan

    @property
    def name(self) -> str:
        """The argument that is its address."""
        return f"prepared_{self.operand.lower()}"


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """The part of a plan that each kernel works out for itself.

    `tensor_maps` are those of gemmkit's own kernels, whose boxes depend on the configuration.
    `before` is the launch that leaves `copies` of operands in the workspace, of which maps are made
    then; with `in_place` the signature has their addresses and pitches too, in place of those of
    the operands. `prepared` are those among them that launches do not make. `entry` and
    `signature` are those of another function of the kernel's file, where the problem needs that.
    """

    template: tuple[int | str, ...]
    grid: Dim3
    block: Dim3
    shared_bytes: int = 0
    cluster: Dim3 = (1, 1, 1)
    workspace_bytes: int = 0
    semaphores: int = 0
    residue: tuple[int, int] = (0, 0)
    chunks: int = 1
    rasterized: bool = False
    table: GroupTable | OffsetsTable | None = None
    tensor_maps: tuple[MapRule, ...] = ()
    before: LaunchPlan | None = None
    copies: tuple[OperandCopy, ...] = ()
    prepared: tuple[PreparedCopy, ...] = ()
    in_place: bool = False
    entry: str = ""
    signature: Signature = ()
    dependent: bool = False
    reserved_bytes: int = 0
    fewer_stages: FewerStages | None = None


def ceil_div(numerator: int, denominator: int) -> int:
    """The quotient, rounded up."""
    return -(-numerator // denominator)


def names_in(signature: Signature, maps: Iterable[MapRule] = ()) -> frozenset[str]:
    """Every name of the vocabulary that a signature uses, by itself or through tensor maps."""
    names = (Expression.parse(text).names for text in signature)
    return frozenset().union(*names, *(each.passes for each in maps))
