"""`prepare_groups`: constant operands of `grouped_matmul`, made once for all products."""

from __future__ import annotations

import numpy as np
import pytest

import gemmkit
from emulated_gpu import STREAM, GpuArray, install
from gemmkit.dispatch.choose import Choice, choose
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.kernels.catalog import find_kernel
from gemmkit.ops import grouped_gpu, grouped_warm

KERNEL = find_kernel("grouped_fp16x3")
NARROW = {"BM": 64, "BN": 32, "BK": 64, "stages": 2, "consumers": 1}
SIZES = [(70, 40), (64, 33), (100, 5)]


class Tables(grouped_gpu.Tables):
    """Tables that need no copies through pinned memory."""

    def _copy(self, table, nbytes, stream, pool):
        address = pool.of(stream, False, nbytes, 0).workspace
        memory = self._context.device.memory.view(address, table.nbytes)
        memory[:] = table.view(np.uint8)
        return address


@pytest.fixture(scope="module")
def played():
    with pytest.MonkeyPatch.context() as patch:
        gpu, _ = install(patch)
        tables = Tables(gpu)
        patch.setattr(grouped_gpu, "context_of", lambda ordinal: gpu)
        patch.setattr(grouped_gpu, "tables_of", lambda context: tables)
        patch.setattr(grouped_gpu, "finish", lambda stream, context: gpu.finished.append(stream))

        def picked(problem, spec):
            if problem.precision != "fp32" or int(problem.groups.m.max(initial=0)) <= 8:
                return choose(problem, spec, emulated=True)
            return Choice(KERNEL, KERNEL.configure(NARROW), "picked", "heuristic", 1.0)

        patch.setattr(grouped_gpu, "choose_alike", picked)
        yield gpu


@pytest.fixture
def gpu(played):
    grouped_warm._ready.calls.forget()
    played.launches.clear()
    played.finished.clear()
    yield played
    played.capturing = 0


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def weights(seed=0):
    return [normal(k, n, seed=seed) for k, n in SIZES]


def on_gpu(arrays):
    return [GpuArray.of(each) for each in arrays]


def inputs(rows=(20, 0, 12), seed=1):
    return [normal(m, k, seed=seed) for m, (k, _) in zip(rows, SIZES, strict=True)]


def equal(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert np.array_equal(one.values, other.values)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.sample(1)
def test_results_are_those_without_preparation_to_the_bit(gpu, transposed):
    bs = on_gpu([each.T for each in weights()] if transposed else weights())
    prepared = gemmkit.prepare_groups(bs, transpose=transposed, precision="fp32", rows=64)
    assert (len(gpu.launches), gpu.finished) == (1, [STREAM])
    plain = [each.T for each in bs] if transposed else bs
    # Rows come and go, as tokens of experts do: what is prepared stays.
    for rows in ((20, 0, 12), (9, 30, 0)):
        xs = on_gpu(inputs(rows))
        wanted = gemmkit.grouped_matmul(xs, plain, precision="fp32")
        gpu.launches.clear()
        equal(gemmkit.grouped_matmul(xs, prepared), wanted)
        assert len(gpu.launches) == 2
        # A warm call, of other elements.
        xs = on_gpu(inputs(rows, seed=2))
        equal(
            gemmkit.grouped_matmul(xs, prepared),
            gemmkit.grouped_matmul(xs, plain, precision="fp32"),
        )
    assert len(prepared.forms) == 1
    assert len(gpu.finished) == 1
    parts = sum(-(-k // 32) * n for k, n in SIZES) * 128
    assert parts <= prepared.nbytes <= parts + 4 * sum(n for _, n in SIZES) + 256


def test_few_rows_are_multiplied_from_the_arrays_themselves(gpu):
    bs = on_gpu(weights())
    prepared = gemmkit.prepare_groups(bs, precision="fp32", rows=())
    assert "read in place" in repr(prepared)
    xs = on_gpu(inputs((1, 2, 3)))
    equal(gemmkit.grouped_matmul(xs, prepared), gemmkit.grouped_matmul(xs, bs))
    assert prepared.nbytes == 0
    xs = on_gpu(inputs())
    gpu.capturing = 1
    with pytest.raises(UsageError, match="bs is made at the first product of a kind"):
        gemmkit.grouped_matmul(xs, prepared)
    gpu.capturing = 0
    gemmkit.grouped_matmul(xs, prepared)
    assert prepared.nbytes > 0
    assert "1 form" in repr(prepared)


def test_operands_in_rows_and_columns_are_made_alike(gpu):
    values = weights()
    mixed = [GpuArray.of(values[0].T).T, *on_gpu(values[1:])]
    prepared = gemmkit.prepare_groups(mixed, precision="fp32", rows=64)
    xs = [GpuArray.of(inputs()[0].T).T, *on_gpu(inputs()[1:])]
    wanted = gemmkit.grouped_matmul(on_gpu(inputs()), on_gpu(values), precision="fp32")
    equal(gemmkit.grouped_matmul(xs, prepared), wanted)


def test_refresh_follows_a_change_in_place(gpu):
    bs, xs = on_gpu(weights()), on_gpu(inputs())
    prepared = gemmkit.prepare_groups(bs, precision="fp32", rows=64)
    for each, other in zip(bs, weights(seed=5), strict=True):
        each.values[...] = other
    prepared.refresh()
    equal(gemmkit.grouped_matmul(xs, prepared), gemmkit.grouped_matmul(xs, bs, precision="fp32"))


def test_what_does_not_go_together_is_refused(gpu):
    bs = on_gpu(weights())
    prepared = gemmkit.prepare_groups(bs, precision="fp32", rows=())
    assert (len(prepared), prepared.precision) == (3, "fp32")
    with pytest.raises(UsageError, match="bs were prepared for precision 'fp32', not 'tf32'"):
        gemmkit.grouped_matmul(on_gpu(inputs()), prepared, precision="tf32")
    with pytest.raises(UsageError, match=r"bs has 3 arrays and as_ has 2"):
        gemmkit.grouped_matmul(on_gpu(inputs()[:2]), prepared)
    with pytest.raises(UsageError, match="there is nothing to prepare"):
        gemmkit.prepare_groups([])
    with pytest.raises(UsageError, match=r"bs\[1\] has 3 dimensions"):
        gemmkit.prepare_groups([bs[0], GpuArray.of(normal(2, 70, 5))])
    with pytest.raises(UsageError, match=r"bs\[0\] is of float32 in GPU 0, and bs\[1\] of float16"):
        gemmkit.prepare_groups([bs[0], GpuArray.of(normal(70, 5).astype(np.float16))])
    with pytest.raises(UnsupportedType, match="b is what prepare_groups made"):
        gemmkit.matmul(on_gpu(inputs())[0], prepared)
    with pytest.raises(UnsupportedType, match=r"bs\[0\] is a prepared operand"):
        gemmkit.prepare_groups([gemmkit.prepare(bs[0], rows=())])
    with pytest.raises(UsageError, match="prepared operands are what"):
        gemmkit.PreparedGroups()


def test_host_arrays_are_multiplied_as_they_are():
    values, xs = weights(), inputs()
    prepared = gemmkit.prepare_groups(values, precision="fp32")
    assert prepared.nbytes == 0
    prepared.refresh()
    found = gemmkit.grouped_matmul(xs, prepared, device="emulator")
    wanted = gemmkit.grouped_matmul(xs, values, precision="fp32", device="emulator")
    assert all(map(np.array_equal, found, wanted))
    with pytest.raises(UsageError, match="stream is for arrays on a GPU"):
        gemmkit.prepare_groups(values, stream=0)
