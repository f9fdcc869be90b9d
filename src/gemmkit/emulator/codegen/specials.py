"""The special registers: a thread's coordinates and those of the launch."""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Value, literal
from gemmkit.emulator.codegen.layout import LANES, WARP, WORKER
from gemmkit.emulator.codegen.registers import THREAD_NUMBERS
from gemmkit.emulator.codegen.values import LaneNumber, Location, Scalar

_LAUNCH = {
    f"%{name}.{axis}": f"{field}_{axis}"
    for name, field in (
        ("ctaid", "block"),
        ("nctaid", "grid"),
        ("ntid", "threads"),
    )
    for axis in "xyz"
} | {
    "%nwarpid": "warp_count",
    "%total_smem_size": "shared_bytes",
    **{f"%cluster_nctaid.{axis}": f"cluster_{axis}" for axis in "xyz"},
    "%cluster_ctarank": "cluster_rank",
    "%cluster_nctarank": "cluster_blocks",
    "%is_explicit_cluster": "explicit_cluster",
}
# A block's or the grid's size over, or modulo, the cluster's.
_OF_CLUSTERS = {
    f"%{name}.{axis}": (f"{field}_{axis}", f"cluster_{axis}", operation)
    for name, field, operation in (
        ("clusterid", "block", "udiv"),
        ("nclusterid", "grid", "udiv"),
        ("cluster_ctaid", "block", "urem"),
    )
    for axis in "xyz"
}
# One SM, one grid, and clocks that stand still.
_CONSTANT = {
    **dict.fromkeys(("%smid", "%gridid", "%clock", "%clock64", "%globaltimer"), 0),
    "%nsmid": 1,
    "WARP_SZ": LANES,
}
LANE_MASKS = {"%lanemask_eq", "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge"}


def special(f: Function, name: str) -> Location:
    """The location of a special register's value, 32 bits, or code that reads it."""
    if name in THREAD_NUMBERS:
        return THREAD_NUMBERS[name]
    if name == "%laneid":
        return LaneNumber()
    if name in _CONSTANT:
        return Scalar(literal("i32", _CONSTANT[name]))
    worker, warp = Value("ptr", "%c"), Value("ptr", "%w")
    if name == "%warpid":
        return Scalar(f.load("i32", warp, WARP["index"]))
    if name in _OF_CLUSTERS:
        *fields, operation = _OF_CLUSTERS[name]
        whole, size = (f.load("i32", worker, WORKER[each]) for each in fields)
        return Scalar(f.binary(operation, whole, size))
    if name == "%dynamic_smem_size":
        whole, static = (
            f.load("i32", worker, WORKER[each]) for each in ("shared_bytes", "static_shared_bytes")
        )
        return Scalar(f.sub(whole, static))
    return Scalar(f.load("i32", worker, WORKER[_LAUNCH[name]]))


def lane_mask(f: Function, name: str, lane: Value) -> Value:
    """The `%lanemask` registers of a lane number: bits of the lanes equal to, below or above it."""
    own = f.shl(literal(lane.type, 1), lane)
    below = f.sub(own, 1)
    return {
        "eq": lambda: own,
        "lt": lambda: below,
        "le": lambda: f.or_(own, below),
        "gt": lambda: f.not_(f.or_(own, below)),
        "ge": lambda: f.not_(below),
    }[name.rsplit("_", 1)[1]]()
