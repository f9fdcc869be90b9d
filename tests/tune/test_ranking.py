import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from gemmkit.dispatch.choose import choose
from gemmkit.epilogue import Epilogue
from gemmkit.errors import DeviceError, UsageError
from gemmkit.gpu import BOARDS, find_board
from gemmkit.kernels.catalog import tunable_kernels
from gemmkit.problem import GemmProblem
from gemmkit.report.tuning import predicted_table
from gemmkit.tune import predicted
from gemmkit.tune.predicted import rank_by_prediction

H100 = BOARDS["h100"]
CUBE = GemmProblem(256, 256, 256)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Threads in place of processes, and a model that likes short steps along k."""

    def predict(kernel, problem, spec, *, config, cache_dir):
        if config["BM"] == 128:
            raise DeviceError("the model cannot say")
        return SimpleNamespace(
            microseconds=float(config["BK"] + config["BM"]),
            tflops=1.0,
            limiter="latency",
            occupancy=SimpleNamespace(waves_per_sm=0.5),
        )

    monkeypatch.setattr("gemmkit.analysis.model.predict", predict)
    monkeypatch.setattr(
        predicted, "ProcessPoolExecutor", lambda workers, mp_context: ThreadPoolExecutor(workers)
    )


def test_all_are_ranked_where_time_allows():
    told = []
    found = rank_by_prediction(
        CUBE,
        H100,
        budget=30.0,
        kernels=["warp_tiled"],
        within=1e9,
        told=lambda count, label, time_us: told.append((count, time_us)),
    )
    times = [each.prediction.microseconds for each in found]
    assert times == sorted(times)
    assert len(found) > 20
    assert all(each.candidate.config["BM"] != 128 for each in found)
    assert told[-1] == (len(found), times[0])
    table = predicted_table(found, CUBE.shape, H100.name)
    assert len(table.rows) == 10
    assert "Nothing was measured" in table.footnotes[0]


def test_one_at_least_is_ranked_however_short_the_budget():
    found = rank_by_prediction(CUBE, H100, budget=0.0, kernels=["warp_tiled"])
    assert len(found) >= 1


def test_what_no_kernel_takes_is_refused():
    with pytest.raises(UsageError, match="no configuration is left to predict for 0x8x8"):
        rank_by_prediction(GemmProblem(0, 8, 8), H100, budget=1.0, kernels=["warp_tiled"])


@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem(7, 64, 64, batch=2),
        GemmProblem(64, 64, 64, transa=True),
        GemmProblem(64, 64, 64, epilogue=Epilogue(residual=True)),
    ],
)
@pytest.mark.sample(3)
def test_boards_without_cp_async_rank_the_kernel_that_they_launch(problem):
    t4 = find_board("t4")
    found = rank_by_prediction(problem, t4, budget=0.0)
    assert {each.candidate.kernel.name for each in found} == {"typed"}
    assert choose(problem, t4, store=None).kernel.name == "typed"


def test_kernels_that_are_ranked_where_the_usual_ones_serve():
    names = [each.name for each in tunable_kernels([GemmProblem(64, 64, 64)], find_board("t4"))]
    assert "warp_tiled" in names
    assert "typed" not in names


def test_an_interrupt_leaves_no_process(monkeypatch):
    monkeypatch.setattr(predicted, "ProcessPoolExecutor", ProcessPoolExecutor)
    monkeypatch.setattr(predicted, "usable_cores", lambda: 1)

    def interrupt(*_):
        assert multiprocessing.active_children()
        raise KeyboardInterrupt

    begun = multiprocessing.active_children()
    with pytest.raises(KeyboardInterrupt):
        rank_by_prediction(
            GemmProblem(16, 16, 16), H100, budget=30.0, kernels=["naive"], told=interrupt
        )
    assert multiprocessing.active_children() == begun
