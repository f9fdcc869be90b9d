"""`grouped_matmul` by a kernel whose table has tensor maps, on a GPU that the emulator plays."""

from __future__ import annotations

import numpy as np
import pytest

import gemmkit
from emulated_gpu import GpuArray, install
from emulated_groups import Tables
from gemmkit.dispatch.choose import Choice
from gemmkit.kernels import group_maps
from gemmkit.kernels.catalog import find_kernel
from gemmkit.ops import grouped_gpu, grouped_product

KERNEL = find_kernel("grouped_wgmma")
CONFIG = KERNEL.configure(
    {"BM": 64, "BN": 32, "BK": 64, "stages": 2, "consumers": 1, "pingpong": 1, "cluster_m": 1}
)
SIZES = [(70, 40, 72), (0, 8, 8), (3, 16, 64), (5, 24, 0)]


@pytest.fixture
def gpu(monkeypatch):
    gpu, _ = install(monkeypatch)
    tables = Tables(gpu)
    monkeypatch.setattr("gemmkit.devices.tensor_maps.driver_encoded", gpu.encode)
    monkeypatch.setattr(grouped_gpu, "context_of", lambda ordinal: gpu)
    monkeypatch.setattr(grouped_gpu, "tables_of", lambda context: tables)
    choice = Choice(KERNEL, CONFIG, "for the test", "heuristic", 1.0)
    monkeypatch.setattr(grouped_gpu, "choose_alike", lambda problem, spec: choice)
    group_maps.forget_maps()
    yield gpu
    # They are of this GPU.
    group_maps.forget_maps()


def whole(*shape, seed=0):
    values = np.random.default_rng([seed, *shape]).integers(-1, 2, shape)
    return GpuArray.of(values.astype(np.float16))


def same(results, a, b):
    for result, x, y in zip(results, a, b, strict=True):
        np.testing.assert_array_equal(result.values, x.values @ y.values)


def test_maps_are_made_once_and_moved_to_each_call_s_arrays(gpu, monkeypatch):
    def operands(seed):
        return (
            [whole(m, k, seed=seed) for m, _, k in SIZES],
            [whole(k, n, seed=seed + 1) for _, n, k in SIZES],
        )

    a, b = operands(0)
    same(gemmkit.grouped_matmul(a, b), a, b)
    # A and B of two products, and C of three.
    assert len(gpu._maps) == 7
    monkeypatch.setattr(grouped_product, "read_groups", None)  # a warm call does without
    other_a, other_b = operands(5)
    same(gemmkit.grouped_matmul(other_a, other_b), other_a, other_b)
    assert len(gpu._maps) == 7
    assert len(gpu.launches) == 2


def test_maps_of_other_numbers_of_rows_are_made_once(gpu):
    b = [whole(72, 40, seed=number) for number in range(3)]
    made = []
    for rows in ((3, 70, 5), (5, 3, 9), (9, 0, 70), (70, 5, 3)):
        a = [whole(m, 72, seed=m) for m in rows]
        same(gemmkit.grouped_matmul(a, b), a, b)
        made.append(len(gpu._maps))
    # One of all B; of A and C one for each number of rows.
    assert made == [7, 9, 9, 9]


def test_other_numbers_of_rows_change_the_table_alone(gpu, monkeypatch):
    """Also where products of the first call were empty, and rows are padded."""
    wide = whole(100, 80, seed=2)
    b = [whole(72, 40, seed=number) for number in range(4)]
    weights = gemmkit.prepare_groups(b)
    for given in (b, weights):
        gpu.launches.clear()
        # A first call, the first of its family, and then those that a class has.
        for rows in ((3, 0, 70, 5), (0, 3, 69, 6), (70, 5, 3, 0), (1, 0, 2, 75), (68, 8, 1, 1)):
            starts = np.cumsum((0, *rows[:-1]))
            a = [wide[start : start + m, :72] for start, m in zip(starts, rows, strict=True)]
            with monkeypatch.context() as patch:
                if len(gpu.launches) >= 2:
                    # Neither is chosen nor planned anew.
                    patch.setattr(grouped_gpu, "choose_alike", None)
                same(gemmkit.grouped_matmul(a, given), a, b)
        assert len(gpu.launches) == 5
        assert len({grid for grid, _ in gpu.launches}) > 1
