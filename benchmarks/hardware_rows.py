"""Hold the counting rules against a GPU: random requests of one warp, predicted, then measured.

Each row is one request: what kind of access, and the 32 lanes' byte offsets (negative: the lane is
not active). `--predict` writes what `gemmkit.emulator.counters.rules` says of each; without it, on
a machine with a GPU and `ncu`, one launch for each row repeats the request, and what was counted
is written beside the predictions. The rows follow from the seed alone.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compare_ncu import read_rows, run

from gemmkit.emulator.counters import rules

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "tests" / "emulator" / "data"

LANES = 32
REPEATS = 64
SHARED_BYTES = 32 << 10
GLOBAL_BYTES = 1 << 20
# Tag banks follow address bits below this alignment.
ALIGNMENT = 2 << 20
KINDS = (
    *("lds4", "lds8", "lds16", "sts4", "sts8", "sts16", "ldm1", "ldm2", "ldm4"),
    *("cpa4", "cpa8", "cpa16", "ldg4", "ldg8", "ldg16", "stg4", "stg8", "stg16"),
)
COLUMNS = ("wavefronts", "conflicts", "sectors", "lines", "tag_wavefronts")

_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared"
_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared"
_GLOBAL = {
    "sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op",
    "lines": "l1tex__t_set_accesses_pipe_lsu_mem_global_op",
    "tag_wavefronts": "l1tex__t_output_wavefronts_pipe_lsu_mem_global_op",
}
METRICS = (
    *(f"{_WAVEFRONTS}{each}.sum" for each in ("", "_op_ld", "_op_st", "_op_misc")),
    *(f"{_CONFLICTS}_op_{each}.sum" for each in ("ld", "st", "ldgsts")),
    *(f"{name}_{each}.sum" for name in _GLOBAL.values()
      for each in ("ld", "st", "ldgsts_cache_access")),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One request. `source` holds the global side of cp.async."""

    number: int
    kind: str
    pattern: str
    offsets: tuple[int, ...]
    source: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of a lane's access; of ldmatrix, the matrices."""
        return int(self.kind[3:])

    @property
    def active(self) -> list[bool]:
        return [offset >= 0 for offset in self.offsets]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=288, help=f"{len(KINDS)} kinds in turn")
    parser.add_argument("--seed", type=int, default=2027)
    parser.add_argument("--predict", action="store_true", help="write the predictions only")
    parser.add_argument("--launch", action="store_true", help="launch the rows, and nothing else")
    parser.add_argument("--results", type=Path, default=DATA / "h100_random_rows.csv")
    parser.add_argument("--log", type=Path, default=Path("hardware_rows_ncu.csv"))
    parser.add_argument("--ncu", default="ncu", help="the profiler's command")
    arguments = parser.parse_args()
    rows = make_rows(arguments.rows, arguments.seed)
    if arguments.launch:
        launch(rows)
        return
    write(arguments.results, rows, None)
    if arguments.predict:
        return
    run([
        arguments.ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control",
        "none", "--log-file", str(arguments.log), "--metrics", ",".join(METRICS),
        sys.executable, __file__, "--launch", "--rows", str(arguments.rows),
        "--seed", str(arguments.seed),
    ])  # fmt: skip
    found = read_rows(arguments.log.read_text("utf-8").splitlines(), METRICS)
    if [name for name, _ in found] != [row.kind for row in rows]:
        raise SystemExit(f"ncu saw {len(found)} kernels where {len(rows)} were launched")
    measured = [per_request(row, counts) for row, (_, counts) in zip(rows, found, strict=True)]
    write(arguments.results, rows, measured)
    missed = [
        (row.number, row.kind, row.pattern, name)
        for row, seen in zip(rows, measured, strict=True)
        for name, value in predict(row).items()
        if seen[name] != value
    ]
    print(f"{len(rows)} rows, {len(missed)} figures that are not as predicted:", *missed, sep="\n")


# --- rows -------------------------------------------------------------------------------------


def make_rows(count: int, seed: int) -> list[Row]:
    """Random requests, every kind in turn."""
    rng = random.Random(seed)
    return [_make_row(number, KINDS[number % len(KINDS)], rng) for number in range(count)]


def _make_row(number: int, kind: str, rng: random.Random) -> Row:
    family, unit = kind[:3], int(kind[3:])
    if family == "ldm":
        pattern, offsets = _offsets(rng, 16, 4096)
        return Row(number, kind, pattern, tuple(offsets))
    window = rng.choice([512, 4096, SHARED_BYTES // 2])
    if family in ("ldg", "stg"):
        window = rng.choice([1024, 1 << 14, GLOBAL_BYTES // 2])
    pattern, offsets = _offsets(rng, unit, window)
    source: list[int] = []
    if family == "cpa":
        other, source = _offsets(rng, unit, rng.choice([512, 4096, 1 << 16]))
        pattern = f"{pattern} from {other}"
    mask, active = _mask(rng)
    offsets = [offset if on else -1 for offset, on in zip(offsets, active, strict=True)]
    return Row(number, kind, f"{pattern}, {mask}", tuple(offsets), tuple(source))


def _offsets(rng: random.Random, unit: int, window: int) -> tuple[str, list[int]]:
    """The lanes' offsets, multiples of `unit` bytes; a name for the pattern."""
    start = rng.randrange(32) * unit
    kind = rng.choice(["random", "stride", "tile", "pairs", "groups", "permuted"])
    if kind == "random":
        return kind, [rng.randrange(window // unit) * unit for _ in range(LANES)]
    if kind == "stride":
        step = rng.choice([1, 1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33]) * unit
        return f"stride {step} from {start}", [start + lane * step for lane in range(LANES)]
    if kind == "tile":
        across = rng.choice([2, 4, 8, 16])
        pitch = rng.choice([rng.randrange(1, 65) * unit, 128, 144, 256, 512, 528])
        pitch = -(-pitch // unit) * unit
        return f"tile of {across} across, pitch {pitch} from {start}", [
            start + lane // across * pitch + lane % across * unit for lane in range(LANES)
        ]
    if kind == "pairs":
        bit = rng.choice([1, 2, 3, 4])
        some = [rng.randrange(window // unit) * unit for _ in range(LANES)]
        return f"pairs by bit {bit}", [some[lane & ~bit] for lane in range(LANES)]
    if kind == "groups":
        size, step = rng.choice([2, 4, 8, 16, 32]), rng.randrange(1, 40) * unit
        return f"groups of {size}, {step} apart from {start}", [
            start + lane // size * step for lane in range(LANES)
        ]
    order = rng.sample(range(LANES), LANES)
    return f"permuted from {start}", [start + place * unit for place in order]


def _mask(rng: random.Random) -> tuple[str, list[bool]]:
    kind = rng.choice(["all", "all", "all", "random", "first", "even", "block"])
    some = rng.randrange(1, LANES)
    active: Mapping[str, Callable[[int], bool]] = {
        "all": lambda _: True,
        "random": lambda _: rng.random() < 0.6,
        "first": lambda lane: lane < some,
        "even": lambda lane: lane % 2 == 0,
        "block": lambda lane: lane // 8 % 2 == 1,
    }
    lanes = [active[kind](lane) for lane in range(LANES)]
    if not any(lanes):
        lanes[some] = True
    return f"{kind} lanes" if kind != "first" else f"first {some} lanes", lanes


# --- predictions ------------------------------------------------------------------------------


def predict(row: Row) -> dict[str, int]:
    """What the rules say of one request."""
    family, active = row.kind[:3], row.active
    if family in ("lds", "sts"):
        both = rules.shared_wavefronts(row.offsets, active, row.nbytes, store=family == "sts")
    elif family == "ldm":
        both = rules.matrix_wavefronts(row.offsets[: rules.MATRIX_ROWS * row.nbytes])
    elif family == "cpa":
        both = rules.copy_wavefronts(row.offsets, row.source, active, row.nbytes)
        return _shared(both) | _global(row.source, active, row.nbytes)
    else:
        return _global(row.offsets, active, row.nbytes)
    return _shared(both)


def _shared(both: tuple[int, int]) -> dict[str, int]:
    return dict(zip(COLUMNS, both, strict=False))


def _global(offsets: Sequence[int], active: Sequence[bool], nbytes: int) -> dict[str, int]:
    addresses = [offset for offset, on in zip(offsets, active, strict=True) if on]
    return {
        "sectors": rules.global_sectors(addresses, nbytes),
        "lines": rules.global_lines(addresses, nbytes),
        "tag_wavefronts": rules.tag_wavefronts(addresses, nbytes),
    }


# --- measurements -----------------------------------------------------------------------------


def per_request(row: Row, counts: Mapping[str, float]) -> dict[str, float]:
    """ncu's counts of one launch, by column, for each of its repetitions."""
    family = row.kind[:3]
    if family == "cpa":
        parts = [f"{_WAVEFRONTS}{each}.sum" for each in ("", "_op_ld", "_op_st", "_op_misc")]
        whole, *others = (counts[each] for each in parts)
        totals = {
            "wavefronts": whole - sum(others),
            "conflicts": counts[f"{_CONFLICTS}_op_ldgsts.sum"],
        } | {name: counts[f"{each}_ldgsts_cache_access.sum"] for name, each in _GLOBAL.items()}
    elif family in ("ldg", "stg"):
        totals = {name: counts[f"{each}_{family[:2]}.sum"] for name, each in _GLOBAL.items()}
    else:
        way = "st" if family == "sts" else "ld"
        totals = {
            "wavefronts": counts[f"{_WAVEFRONTS}_op_{way}.sum"],
            "conflicts": counts[f"{_CONFLICTS}_op_{way}.sum"],
        }
    return {name: round(total / REPEATS, 4) for name, total in totals.items()}


def write(path: Path, rows: Sequence[Row], measured: Sequence[Mapping[str, float]] | None) -> None:
    """The rows with what is predicted and, once it is known, what was measured."""
    head = ["id", "kind", "pattern", *(f"predicted_{each}" for each in COLUMNS)]
    head += [*(f"measured_{each}" for each in COLUMNS), "offsets", "source"]
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(head)
        for place, row in enumerate(rows):
            guess, seen = predict(row), measured[place] if measured is not None else {}
            figures = [each.get(name, "") for each in (guess, seen) for name in COLUMNS]
            sides = [" ".join(map(str, side)) for side in (row.offsets, row.source)]
            table.writerow([row.number, row.kind, row.pattern, *figures, *sides])


# --- kernels ----------------------------------------------------------------------------------


def source_of(kind: str) -> str:
    """CUDA C++ of a kernel that makes one kind of request, again and again, by one warp.

    Every lane's offset is a kernel parameter, so that nothing else touches memory. `step` is 0, a
    fact that the compiler must not know, or it would make the request once.
    """
    family, size = kind[:3], int(kind[3:])
    sides = ("o", "s") if family == "cpa" else ("o",)
    parameters = ", ".join(f"int {side}{lane}" for side in sides for lane in range(LANES))
    chosen = "\n".join(
        f"  int {side} = {side}0;\n"
        + "\n".join(f"  if (lane == {lane}) {side} = {side}{lane};" for lane in range(1, LANES))
        for side in sides
    )
    return f"""
extern "C" __global__ void {kind}(char* data, int step, {parameters}) {{
  __shared__ alignas(1024) char shared[{SHARED_BYTES}];
  const int lane = threadIdx.x;
{chosen}
  if (o < 0) return;
  unsigned seen = 0, at = static_cast<unsigned>(__cvta_generic_to_shared(shared)) + o;
  const char* from = data + {sides[-1]};
#pragma unroll 1
  for (int i = 0; i < {REPEATS}; ++i) {{
    unsigned word0 = i, word1 = i, word2 = i, word3 = i;
    {_statement(family, size)}
    seen ^= word0 ^ word1 ^ word2 ^ word3;
    at += step, from += step;
  }}
  if (seen == 0x80000001u) shared[lane] = 1, data[lane] = shared[31 - lane];
}}
"""


def _statement(family: str, size: int) -> str:
    """The request as inline PTX."""
    if family == "cpa":
        # Without the wait, many copies of lines that are not there yet would be under way.
        copy = f"cp.async.ca.shared.global [%0], [%1], {size}; cp.async.wait_all;"
        return f'asm volatile("{copy}" ::"r"(at), "l"(from) : "memory");'
    words = size if family == "ldm" else size // 4
    places = ", ".join(f"%{place}" for place in range(words))
    names = [f"word{place}" for place in range(words)]
    place = '"l"(from)' if family in ("ldg", "stg") else '"r"(at)'
    space = "global" if family in ("ldg", "stg") else "shared"
    vector = "" if words == 1 else f".v{words}"
    registers = f"{{{places}}}"
    if family == "ldm":
        text = f"ldmatrix.sync.aligned.m8n8.x{words}.shared.b16 {registers}, [%{words}];"
    elif family in ("lds", "ldg"):
        registers = registers if vector else "%0"
        text = f"ld.{space}{vector}.b32 {registers}, [%{words}];"
    else:
        moved = ", ".join(f"%{place}" for place in range(1, words + 1))
        moved = f"{{{moved}}}" if vector else moved
        values = ", ".join(f'"r"({name})' for name in names)
        return (
            f'asm volatile("st.{space}{vector}.b32 [%0], {moved};" ::{place}, {values} : "memory");'
        )
    outputs = ", ".join(f'"=r"({name})' for name in names)
    return f'asm volatile("{text}" : {outputs} : {place} : "memory");'


def launch(rows: Sequence[Row]) -> None:
    """One launch for each row, in order."""
    import numpy as np
    from cuda.core import LaunchConfig, ObjectCode
    from cuda.core import launch as start

    from gemmkit.devices.cuda import CudaDevice
    from gemmkit.jit.compiler import compile_kernel

    device = CudaDevice()
    kernels = {}
    for kind in KINDS:
        binary = compile_kernel(source_of(kind), kind, device.spec.arch)
        kernels[kind] = ObjectCode.from_cubin(binary.cubin).get_kernel(kind)
    buffer = device.empty(2 * ALIGNMENT + GLOBAL_BYTES)
    data = -(-buffer.address // ALIGNMENT) * ALIGNMENT
    config = LaunchConfig(grid=1, block=LANES)
    for row in rows:
        offsets = [np.int32(offset) for offset in (*row.offsets, *row.source)]
        start(device.stream, config, kernels[row.kind], np.uint64(data), np.int32(0), *offsets)
        device.stream.sync()


if __name__ == "__main__":
    main()
