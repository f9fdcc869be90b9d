"""Groups through a whole comparison: the emulator computes, the clock is made up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gemmkit.bench import compare as compare_module
from gemmkit.bench.baseline import Way
from gemmkit.bench.compare import Pick, compare
from gemmkit.bench.groups import EACH, GROUPED, single_products
from gemmkit.bench.peers import LIBRARIES, Library
from gemmkit.bench.tasks import Task
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.record import Record
from gemmkit.report.comparison import comparison_tables
from gemmkit.storage import layouts

TEXT = "33x20x40*2,5x7x9,0x4x4"
KERNEL = find_kernel("gemm_grouped")
TILES = KERNEL.configure(
    {"BM": 16, "BN": 32, "BK": 16, "WM": 16, "WN": 32, "TM": 4, "TN": 4, "stages": 2}
    | {"interleave": 1, "order": 2}
)


class Timed(EmulatedDevice):
    """Launches of the emulator, each said to take 10 µs, and those of peers what they say."""

    kind = "cuda"
    stream = "the stream"

    def work(self, binary, plan, arguments):
        def run(_stream):
            self.launch(binary, plan, arguments)

        run.microseconds = 10.0
        return run

    def record(self, works, kept=()):
        class Replay:
            def microseconds(self):
                return sum(work.microseconds for work in works)

        return Replay()


class OneByOne:
    """A library that multiplies the products one after the other, right or wrong."""

    name = "peer"

    def __init__(self, device, wrong=False):
        self.device, self.wrong = device, wrong

    def candidates(self, problem, arguments):
        def way(microseconds):
            return [self._work(problem, each, microseconds) for each in arguments]

        return {"grouped": Way(way(12.0), choice=GROUPED), "each": Way(way(50.0), choice=EACH)}

    def _work(self, problem, bound, microseconds):
        def matrix(layout, address):
            seen = self.device.memory.view(address, 4 * layout.size).view(np.float32)
            return layout.view(seen)[0]

        def run(_stream):
            for product, own in single_products(problem, bound):
                a, b, c = (
                    matrix(each, own[name])
                    for name, each in zip("ABC", layouts(product), strict=True)
                )
                c[...] = a @ b + self.wrong

        run.microseconds = microseconds
        return run


@pytest.fixture
def device(fakes, monkeypatch):
    monkeypatch.setattr(compare_module, "copy_gb_per_s", lambda _device: 800.0)
    monkeypatch.setattr(compare_module, "management_probes", lambda _stream: {})
    # Nothing but one set of matrices is worth emulating.
    return Timed(replace(find_board("h100"), l2_bytes=1))


@pytest.mark.parametrize("wrong", [False, True])
def test_groups_are_judged_and_timed_beside_libraries(device, monkeypatch, wrong):
    library = Library(lambda _device: OneByOne(device, wrong), "")
    monkeypatch.setitem(LIBRARIES, "cublas", library)
    problem = GemmProblem.of_groups(TEXT)
    (record,) = compare(
        [Task(problem, "grouped")],
        lambda *_: (Pick(KERNEL, TILES, "small tiles"),),
        device=device,
        against=("cublas",),
        seconds=0.01,
    )
    assert record.correct, record.check
    assert (record.problem.groups, record.kernel) == (TEXT, "gemm_grouped")
    assert record.tflops == pytest.approx(problem.flops / 10.0 / 1e6)
    found = {each.choice: (each.speedup, each.correct) for each in record.peers}
    assert found == {GROUPED: (pytest.approx(1.2), not wrong), EACH: (5.0, not wrong)}
    assert record.ratio_to_cublas == pytest.approx(1.2)
    # 33 × 20 of two products is in 3 tiles each of 16 × 32, 5 × 7 in one.
    assert record.profile.tile_share == pytest.approx(problem.results / (7 * 16 * 32))
    assert Record.from_json(record.to_json()) == record
    assert "1.20" in comparison_tables([record])[0].to_text().plain


def test_ragged_groups_are_compared_by_the_kernel_that_reads_where_they_end(device):
    kernel = find_kernel("ragged_wgmma")
    config = kernel.configure({"BM": 64, "BN": 32, "BK": 64, "stages": 2, "consumers": 1})
    text = "ragged:33x40x64*2,0x40x64,5x40x64"
    problem = GemmProblem.of_groups(text, "nt", dtype="bfloat16")
    (record,) = compare(
        [Task(problem, "ragged")],
        lambda *_: (Pick(kernel, config, "small tiles"),),
        device=device,
        against=(),
        seconds=0.01,
    )
    assert record.correct, record.check
    assert (record.problem.groups, record.kernel) == (text, "ragged_wgmma")
    assert record.tflops == pytest.approx(problem.flops / 10.0 / 1e6)
    # Three groups with rows are in a tile of rows each, and in two of columns.
    assert record.profile.tile_share == pytest.approx(problem.results / (6 * 64 * 32))
    assert Record.from_json(record.to_json()) == record
    table = comparison_tables([record])[0].to_text().plain
    assert "ragged:33x40x64*2,0x40x64,5x40x64" in table
