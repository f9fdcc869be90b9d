"""Groups beside libraries: what a row shows, and what limits a launch."""

import msgspec
import pytest

from gemmkit.analysis.limiters import filled
from gemmkit.bench.run import problem_record
from gemmkit.bench.suites import grouped
from gemmkit.gpu import find_board
from gemmkit.groups import Groups
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.plan import TileConfig
from gemmkit.problem import GemmProblem
from gemmkit.record import PeerRecord, TimeRecord
from gemmkit.report.comparison import comparison_tables, shape
from gemmkit.report.groups import groups_table, limiter

H100 = find_board("h100")
TILES = {**find_kernel("gemm_grouped").default.as_dict(), "BM": 64, "BN": 32, "BK": 16}


def timed(microseconds):
    return TimeRecord(**dict.fromkeys(TimeRecord.__struct_fields__, microseconds) | {"samples": 5})


@pytest.fixture
def record(make_record):
    """Of groups, at the given TFLOP/s."""

    def make(problem, tflops=1.0, config=TILES, **rest):
        return make_record(
            kernel="gemm_grouped",
            problem=problem_record(problem),
            device=msgspec.structs.replace(make_record().device, kind="cuda", gpu="H100"),
            config=config,
            suite="grouped",
            tflops=tflops,
            time_us=timed(problem.flops / tflops / 1e6),
            **rest,
        )

    return make


def peer(vendor, choice, speedup):
    return PeerRecord(
        vendor=vendor,
        choice=choice,
        name=choice,
        candidates=1,
        time_us=timed(1.0),
        tflops=1.0,
        speedup=speedup,
        correct=True,
        max_error=0.0,
        error_ratio=0.0,
    )


def test_a_row_shows_each_way_of_a_library(record):
    first, second, *_ = grouped().values()
    ways = peer("cublas", "batched", 1.25), peer("torch", "each", 30.0)
    table = groups_table([record(first, peers=ways), record(second, correct=False)], "")
    headings = [column.title.replace("\n", " ") for column in table.columns]
    rows = [[cell.text for cell in row.cells] for row in table.rows]
    seen = [dict(zip(headings, row, strict=True)) for row in rows]
    assert "× torch.bmm" not in headings
    assert seen[0]["products"] == "1000 × 32³"
    assert (seen[0]["× cuBLAS, batched"], seen[0]["× torch.mm"]) == ("1.25", "30.00")
    assert seen[0]["tile"] == "64×32"
    assert seen[1]["products"] == "4000 × 32³ WRONG"
    assert seen[1]["× torch.mm"] == "–"


def test_groups_have_a_table_of_their_own(record):
    problem = GemmProblem.of_groups("64x64x64*3")
    grouped = record(problem)
    single = record(GemmProblem(64, 64, 64))
    first, second = comparison_tables([grouped, single])
    assert len(first.rows) == len(second.rows) == 1
    assert first.columns[0].title == "products"
    # They are no cube, though m, n and k are equal.
    assert (shape(grouped), shape(single)) == ("64x64x64*3", "64³")


def test_how_full_tiles_are():
    config = TileConfig(**TILES)
    assert filled(Groups.parse("64x32x16*3,0x9x9"), config) == 1.0
    assert filled(Groups.parse("32x32x16,64x32x8"), config) == 0.5
    assert filled(Groups.parse("0x9x9"), config) is None
    assert filled(Groups.parse("9x9x9"), TileConfig(BM=8)) is None


def test_what_limits_a_launch(record):
    whole = GemmProblem.of_groups("2048x2048x2048*2")
    assert limiter(record(whole, 50.0), H100) == "fp32 units, 75 % of their peak"
    half = GemmProblem.of_groups("2048x2048x2048*2", dtype="bfloat16", out_dtype="bfloat16")
    wgmma = {"BM": 128, "BN": 256, "BK": 64, "stages": 4, "consumers": 2, "pingpong": 1}
    wgmma |= dict.fromkeys(("cluster_m", "cluster_n", "cluster_k"), 1)
    by_tensor_cores = msgspec.structs.replace(record(half, 700.0, wgmma), kernel="grouped_wgmma")
    assert limiter(by_tensor_cores, H100) == "tensor cores, 65 % of their peak"
    parts = GemmProblem.of_groups("2048x2048x2048*2", precision="fp32")
    in_parts = msgspec.structs.replace(record(parts, 220.0, wgmma), kernel="grouped_fp16x3")
    assert limiter(in_parts, H100) == "tensor cores, 62 % of their peak"
    narrow = GemmProblem.of_groups("64x16x1024*1000")
    assert limiter(record(narrow, 15.0), H100).endswith(" % of its bandwidth; tiles 50 % full")
    odd = GemmProblem.of_groups("64x32x1025*9")
    assert limiter(record(odd, 1.0), H100) == "copies of single floats"
    narrow = GemmProblem.of_groups("64x32x1025*9", dtype="float8_e4m3")
    assert limiter(record(narrow, 1.0), H100) == "copies of single elements"
    small = GemmProblem.of_groups("64x32x64*9")
    assert limiter(record(small, 1.0), H100) == "latency of short products"
    assert limiter(msgspec.structs.replace(record(small), time_us=None), H100) == "–"


def test_what_limits_a_launch_of_transposed_padded_matrices(record):
    # Leading dimensions that are valid for this layout alone.
    padded = GemmProblem.of_groups("64x32x1024:64:1024:32,32x64x512:36:512:64", "tt")
    assert problem_record(padded).results == 2 * 64 * 32
    assert limiter(record(padded, 1.0), H100) == "latency of short products"
