"""Products over ranks as processes, with gloo and the emulator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gemmkit import distributed
from gemmkit.errors import DistributedError, UnsupportedProblem, UsageError
from gemmkit.gpu import BOARDS

torch = pytest.importorskip("torch")

if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no process groups", allow_module_level=True)

SCRIPTS = Path(__file__).resolve().parents[1]
MODELS, PANELS, SCALES = "rank_model_cases.py", "rank_panel_cases.py", "rank_scale_cases.py"


def ended(cases: str, ranks: int, folder: Path, script: str) -> list[tuple[int, str, str]]:
    """How each rank ends, and what it prints to either stream."""
    command = [sys.executable, str(SCRIPTS / script), cases]
    started = [
        subprocess.Popen(
            [*command, str(rank), str(ranks), str(folder / "ranks")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        printed = [each.communicate(timeout=200) for each in started]
    finally:
        for each in started:
            each.kill()
    return [(each.returncode, *texts) for each, texts in zip(started, printed, strict=True)]


def run(cases: str, ranks: int, folder: Path, script: str = "rank_cases.py") -> list[str]:
    """What each rank prints; none may fail."""
    found = ended(cases, ranks, folder, script)
    for rank, (status, _, said) in enumerate(found):
        assert status == 0, f"rank {rank}: {said[-3000:]}"
    return [out for _, out, _ in found]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_placements_strategies_and_gradients(ranks, tmp_path):
    cases = "placements,strategies" if ranks < 3 else "strategies"
    assert all("done" in each for each in run(cases, ranks, tmp_path))


def test_changes_and_refusals(tmp_path):
    assert all("done" in each for each in run("changes,refusals,warm,destroyed", 2, tmp_path))


@pytest.mark.parametrize(
    ("cases", "ranks"),
    [
        ("meshes,halves,added,errors,warm_errors,warm_panels,captured_panels", 2),
        ("added", 3),
        ("meshes,mesh_errors", 4),
    ],
)
def test_meshes_and_errors_of_one_rank(cases, ranks, tmp_path):
    assert all("done" in each for each in run(cases, ranks, tmp_path, PANELS))


@pytest.mark.parametrize(
    ("cases", "ranks"), [("warm_scales", 1), ("scales,warm_scales", 2), ("warm_scales", 3)]
)
def test_scales(cases, ranks, tmp_path):
    assert all("done" in each for each in run(cases, ranks, tmp_path, SCALES))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": "x"}, "is not a number"),
        ({"alpha": float("nan")}, "is not a finite number"),
        ({"epilogue": 3}, "give an Epilogue"),
        ({"strategy": 3}, "give a Strategy"),
        ({"beta": 1}, "beta = 1 needs c"),
    ],
)
def test_options_of_wrong_types(options, message):
    a = torch.zeros(2, 2)
    with pytest.raises(UsageError, match=message):
        distributed.matmul(a, a, placements=("R", "R"), **options)


def test_on_gpus_ranks_ask_again_when_the_whole_shape_is_another():
    from gemmkit.distributed.agreements import agree as all_agree
    from gemmkit.distributed.spread import SpreadProduct

    asked = []

    def agree(facts):
        asked.append(facts)
        return [facts, facts]

    class Team:
        size, board, symmetric, log = 2, BOARDS["h100"], None, None
        global_ranks = (0, 1)
        communicator = SimpleNamespace(agree=agree)

    team = Team()
    a, b = torch.zeros(3, 4), torch.zeros(4, 5)
    counts = []
    for rows in (6, 6, 5):
        all_agree(
            SpreadProduct(a, b, (team,), (("S(0)", "S(1)"),), ("S(1)",), whole=(rows, 4, 4, 10))
        )
        counts.append(len(asked))
    assert 0 < counts[0] == counts[1] < counts[2]


@pytest.mark.parametrize("scaled", [False, True])
def test_scales_of_what_is_gathered_are_counted_when_ranks_choose(scaled):
    from gemmkit.distributed.agreements import agree as all_agree
    from gemmkit.distributed.spread import SpreadProduct

    class Team:
        size, board, symmetric, log = 2, BOARDS["h100"], object(), None
        global_ranks = (0, 1)
        communicator = SimpleNamespace(agree=lambda facts: [facts, facts])

    a, b = (torch.zeros(each).to(torch.float8_e4m3fn) for each in ((8, 512), (512, 64)))
    given = {"scale_a": torch.ones(8, 1), "scale_b": torch.ones(1, 64)} if scaled else {}
    asked = SpreadProduct(a, b, (Team(),), (("S(0)", "S(1)"),), ("S(1)",), **given)
    assert all_agree(asked).strategy.means == ("collective" if scaled else "one-shot")


@pytest.mark.parametrize(
    ("dtype", "words", "result", "other", "message"),
    [
        ("bfloat16", ("S(0)", "S(1)"), "S(1)", "", None),
        ("bfloat16", ("S(0)", "S(1)"), "S(0)", "it has tuned", "'copies-fused': it has tuned"),
        ("float32", ("S(0)", "S(1)"), "S(1)", "", "'copies-fused': .* only 'gemm_wgmma' has a"),
        ("bfloat16", ("S(1)", "S(0)"), "S(0)", "", "'copies-fused': .* something else travels"),
        ("bfloat16", ("S(1)", "S(1)"), "S(1)", "", "'copies-fused': here panels of k travel"),
    ],
)
def test_all_ranks_refuse_one_launch_where_one_of_them_has_none(
    dtype, words, result, other, message
):
    from gemmkit.distributed.agreements import agree as all_agree
    from gemmkit.distributed.spread import SpreadProduct
    from gemmkit.distributed.strategy import Strategy

    class Team:
        size, board, symmetric, log = 2, BOARDS["h200"], None, None
        global_ranks = (0, 1)
        # What is wrong with a product is said in words, all else as JSON.
        communicator = SimpleNamespace(
            agree=lambda said: [said, said if said.startswith(("{", "[")) else other or said]
        )

        def means(self, strategy):
            return self.communicator

    kind = getattr(torch, dtype)
    k = 1024 if words == ("S(1)", "S(1)") else 512
    a, b = torch.empty(2048, 512, dtype=kind), torch.empty(k, 2048, dtype=kind)
    strategy = Strategy.parse("copies-fused")
    asked = SpreadProduct(a, b, (Team(),), (words,), (result,), strategy=strategy)
    if message is None:
        assert str(all_agree(asked).strategy) == "copies-fused"
    else:
        with pytest.raises(UnsupportedProblem, match=message):
            all_agree(asked)


@pytest.mark.parametrize(
    ("place", "other", "message"),
    [
        (1, "H200, compute capability 9.0", "differ in their GPU: rank 0 has H100, .* rank 1"),
        (2, "12.9", r"version of CUDA: rank 0 has 13\.0, rank 1 has 12\.9"),
        (3, "GPU-0", "two ranks use the same GPU"),
        (4, "12090", "CUDA driver: rank 0 has 13000, rank 1 has 12090"),
    ],
)
def test_ranks_on_different_gpus_or_drivers(place, other, message):
    from gemmkit.distributed.team import check_alike

    first = ["host", "H100, compute capability 9.0", "13.0", "GPU-0", "13000"]
    second = ["host", "H100, compute capability 9.0", "13.0", "GPU-1", "13000"]
    check_alike(["|".join(first), "|".join(second)])
    second[place] = other
    with pytest.raises(DistributedError, match=message):
        check_alike(["|".join(first), "|".join(second)])


def test_a_rank_that_dies(tmp_path):
    first, *_ = run("death", 2, tmp_path)
    assert "told: " in first
    assert "a rank has ended" in first


def test_dtensors(tmp_path):
    # What PyTorch's module of DTensors imports.
    pytest.importorskip("sympy")
    assert all("done" in each for each in run("layers,dtensors,styles", 4, tmp_path, MODELS))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="it needs 2 GPUs")
@pytest.mark.parametrize(
    "case", ["graphs", "changes", "summa", "shares", "scaled", "one_wrong", "one_shot", "fused"]
)
def test_on_gpus(case, tmp_path):
    assert all("done" in each for each in run(case, 2, tmp_path, "rank_gpu_cases.py"))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="it needs 2 GPUs")
@pytest.mark.parametrize("strategy", ["copies-1", "copies-fused", "one-shot"])
def test_on_gpus_a_rank_that_dies(strategy, tmp_path):
    first, _ = ended(f"death:{strategy}", 2, tmp_path, "rank_gpu_cases.py")
    status, _, said = first
    assert status == 1
    assert "did not end within 10 s" in said
    assert "rank 0 waits for rank 1, which may have ended" in said
