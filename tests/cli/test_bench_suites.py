"""`gemmkit bench --suite`: what is asked of the comparison, what is taken up, what is refused."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import Result

from gemmkit import nn
from gemmkit.bench import compare as compare_module
from gemmkit.bench.peers import LIBRARIES
from gemmkit.bench.run import problem_record
from gemmkit.bench.suites import LAYER_SUITES, SUITES
from gemmkit.cli import comparison
from gemmkit.cli.output import read_existing
from gemmkit.errors import UsageError
from gemmkit.gpu import BOARDS
from gemmkit.record import DeviceRecord, PeerRecord, Record, SustainedRecord, TimeRecord

TIME = TimeRecord(
    median=10.0, p20=10.0, p80=10.0, minimum=10.0, mean=10.0, maximum=10.0, samples=5
)  # fmt: skip

SUSTAINED = SustainedRecord(
    burst_us=TIME,
    sustained_us=msgspec.structs.replace(TIME, median=20.0),
    joules=0.007,
    conditions=None,
)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch, make_record: Callable[..., Record]) -> dict[str, Any]:
    """A GPU that needs no hardware and what `compare` is asked on it.

    `stop_after` breaks off like Ctrl-C, `wrong` spoils the results.
    """
    asked: dict[str, Any] = {"stop_after": None, "wrong": False}

    def compare(  # type: ignore[no-untyped-def]
        tasks, choose, *, device, against, seed, progress, functions, sustained
    ):
        asked.update(tasks=tasks, against=against, choose=choose, functions=functions)
        seen = SUSTAINED if sustained else None
        for number, task in enumerate(tasks):
            if number == asked["stop_after"]:
                raise KeyboardInterrupt
            peers = tuple(
                PeerRecord(
                    vendor=name,
                    choice="default",
                    name=name,
                    candidates=1,
                    time_us=TIME,
                    tflops=1.0,
                    speedup=1.25,
                    correct=True,
                    max_error=1e-6,
                    error_ratio=0.1,
                    sustained=seen,
                )
                for name in against
            )
            progress.finished(
                make_record(
                    suite=task.suite,
                    problem=problem_record(task.problem),
                    device=DeviceRecord(kind="cuda", gpu="H100"),
                    time_us=TIME,
                    tflops=1.0,
                    peers=peers,
                    ratio_to_cublas=1.25,
                    seed=seed,
                    environment={"against": list(against)},
                    correct=not asked["wrong"],
                    sustained=seen,
                )
            )

    monkeypatch.setattr(compare_module, "compare", compare)
    device = types.SimpleNamespace(spec=BOARDS["h100"], kind="cuda")
    monkeypatch.setattr(comparison, "timed_device", lambda _kind, _gpu: device)
    return asked


def shapes(heard: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each.suite, each.problem.shape) for each in heard["tasks"]]


def test_suites_shapes_and_peers(call: Callable[..., Result], heard: dict[str, Any]) -> None:
    words = ("--suite", "skinny,off-tile", "--shape", "64", "--against", "torch,cublas")
    result = call("bench", *words, "--profile")
    assert result.exit_code == 0, result.stderr
    asked = shapes(heard)
    assert asked[0] == ("skinny", "1x4096x4096")
    assert ("off-tile", "1023x1023x1023") in asked
    assert asked[-1] == ("", "64x64x64")
    assert heard["against"] == ("torch", "cublas")
    for title in ("skinny (", "off-tile (", "other shapes", "Percent of the board's peaks"):
        assert title in result.stdout


def test_types_and_layouts(call: Callable[..., Result], heard: dict[str, Any]) -> None:
    words = ("--suite", "skinny", "--shape", "64", "--dtype", "fp16,bf16", "--layout", "NT,col")
    result = call("bench", *words, "--out-dtype", "float32", "--epilogue", "bias+silu")
    assert result.exit_code == 0, result.stderr
    problems = [each.problem for each in heard["tasks"]]
    assert len(problems) == 4 * 11
    kinds = {(each.dtype, each.out_dtype, each.layout) for each in problems}
    assert kinds == {(x, "float32", y) for x in ("float16", "bfloat16") for y in ("nt", "ttt")}
    assert {str(each.epilogue) for each in problems} == {"bias+silu"}
    for kind in ("fp16 to fp32 NT", "bf16 to fp32 col-NN"):
        assert f"skinny (M of 1 to 16 rows, N = K), {kind}, on H100" in result.stdout
    assert call("bench", "--suite", "typed").exit_code == 0
    assert len({(each.problem.dtype, each.problem.layout) for each in heard["tasks"]}) == 9


def test_layers_are_compared_with_pytorch(
    call: Callable[..., Result], heard: dict[str, Any]
) -> None:
    assert call("bench", "--suite", "layers").exit_code == 0
    assert heard["against"] == ("torch",)
    assert heard["functions"] is nn
    assert all(each.layer is not None for each in heard["tasks"])
    assert call("bench", "--suite", "layers,skinny").exit_code == 0
    assert heard["against"] == ("cublas", "torch")


def test_cublas_is_the_peer_by_default(call: Callable[..., Result], heard: dict[str, Any]) -> None:
    assert call("bench", "--suite", "square").exit_code == 0
    assert heard["against"] == ("cublas",)


def test_a_named_kernel_runs_everywhere(call: Callable[..., Result], heard: dict[str, Any]) -> None:
    words = ("--shape", "64", "--against", "cublas", "--config", "BM=16", "--epilogue", "bias")
    assert call("bench", "naive", *words).exit_code == 0
    (pick,) = heard["choose"](None, None)
    assert (pick.kernel.name, pick.config["BM"]) == ("naive", 16)
    (task,) = heard["tasks"]
    assert str(task.problem.epilogue) == "bias"


def test_without_a_kernel_dispatch_picks(
    call: Callable[..., Result], heard: dict[str, Any]
) -> None:
    assert call("bench", "--suite", "square").exit_code == 0
    problem = heard["tasks"][0].problem
    (choice,) = heard["choose"](problem, BOARDS["h100"])
    assert choice.kernel.supports(problem, choice.config, BOARDS["h100"]) is None
    assert choice.reason


def test_what_was_written_is_taken_up(
    call: Callable[..., Result], heard: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "seen.json"
    words = ("bench", "--suite", "off-tile", "--json", path)
    heard["stop_after"] = 3
    assert call(*words).exit_code == 130
    assert len(read_existing(str(path))) == 3
    # A machine that lost its power in the middle of a line.
    path.write_text(path.read_text() + '{"kernel":"na')
    heard["stop_after"] = None
    result = call(*words, "--resume")
    assert result.exit_code == 0, result.stderr
    assert "3 of 8 problems are in" in result.stderr
    assert shapes(heard)[0][1] == "2047x2047x2047"
    assert len(heard["tasks"]) == 5
    assert len(read_existing(str(path))) == 8
    assert "1000³" in result.stdout, "the table has the former records too"
    assert call(*words, "--resume", "--against", "cublas,torch").exit_code == 0
    assert len(heard["tasks"]) == 8, "records without a peer that is asked for do not count"
    heard["tasks"] = []
    assert call("bench", "naive", *words[1:], "--resume").exit_code == 0
    assert heard["tasks"] == [], "all of them are of that kernel"
    assert call("bench", "warp_tiled", *words[1:], "--resume").exit_code == 0
    assert len(heard["tasks"]) == 8
    assert call(*words, "--resume", "--seed", 5).exit_code == 0
    assert len(heard["tasks"]) == 8


def test_records_of_other_boards_do_not_count(
    call: Callable[..., Result], heard: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "seen.json"
    assert call("bench", "--suite", "off-tile", "--json", path).exit_code == 0
    elsewhere = DeviceRecord(kind="cuda", gpu="A100")
    moved = [msgspec.structs.replace(each, device=elsewhere) for each in read_existing(str(path))]
    path.write_text("".join(f"{each.to_json()}\n" for each in moved))
    result = call("bench", "--suite", "off-tile", "--json", path, "--resume")
    assert result.exit_code == 0
    assert len(heard["tasks"]) == 8


def test_a_wrong_result_exits_with_1(call: Callable[..., Result], heard: dict[str, Any]) -> None:
    heard["wrong"] = True
    assert call("bench", "--suite", "off-tile").exit_code == 1


def test_a_file_of_something_else_is_not_taken_up(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"kernel": 1}\n')
    with pytest.raises(UsageError, match="not a file of records"):
        read_existing(str(path))
    assert read_existing(str(tmp_path / "missing.json")) == []
    with pytest.raises(UsageError, match="cannot resume from"):
        read_existing(str(tmp_path))


@pytest.mark.parametrize("text", ["one line without an end", "{}\nnotes", '{"kernel": 1}\n{"kern'])
def test_a_file_of_something_else_stays_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes"
    path.write_text(text)
    with pytest.raises(UsageError, match="not a file of records"):
        read_existing(str(path))
    assert path.read_text() == text


def test_without_a_shape_a_named_kernel_runs_at_1024(
    call: Callable[..., Result], heard: dict[str, Any]
) -> None:
    assert call("bench", "naive", "--against", "cublas").exit_code == 0
    assert shapes(heard) == [("", "1024x1024x1024")]


def test_help_names_all_suites_and_peers(call: Callable[..., Result]) -> None:
    # click may break a line after a hyphen.
    text = " ".join(call("bench", "--help").output.split()).replace("- ", "-")
    assert f"these suites: {', '.join([*SUITES, *LAYER_SUITES])}." in text
    assert f"same run: {', '.join(LIBRARIES)}." in text


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "name a kernel or a file"),
        (("--suite", "squares"), "did you mean square"),
        (("--suite", "square", "--against", "blas"), "unknown peer 'blas'"),
        (("--suite", "square", "--resume"), "name it with --json FILE"),
        (("--suite", "square", "--config", "BM=8"), "--config is for one kernel"),
        (("--against", "cublas"), "name a kernel, a --suite or a --shape"),
        (("--suite", "square", "--device", "emulator"), "the emulator does not measure time"),
        (("--suite", "square", "--dtype", "float17"), "unknown dtype 'float17'"),
        (("--suite", "square", "--layout", "NT,XN"), "unknown layout 'XN'"),
        (("--suite", "square,layers", "--dtype", "float16"), "layers are measured as they are"),
        (("naive", "--suite", "layers"), "layers are measured as they are"),
    ],
)
def test_bad_usage(call: Callable[..., Result], words: tuple[str, ...], reason: str) -> None:
    result = call("bench", *words)
    assert result.exit_code == 2
    assert reason in result.stderr


def test_without_a_gpu_it_says_what_works(
    call: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gemmkit.devices import choose

    monkeypatch.setattr(choose, "gpu_problem", lambda: "the driver finds no GPU")
    result = call("bench", "--suite", "square")
    assert result.exit_code == 2
    assert "the driver finds no GPU" in result.stderr
    assert "`gemmkit which MxNxK`" in result.stderr


def test_the_power_limit_has_a_table_of_its_own(
    call: Callable[..., Result], heard: dict[str, Any], tmp_path: Path
) -> None:
    seen = tmp_path / "seen.json"
    words = ("bench", "--shape", "64", "--against", "cublas", "--json", str(seen))
    assert "at the power limit" not in call(*words).stdout
    result = call(*words, "--sustained", "2", "--resume")
    assert result.exit_code == 0, result.stderr
    assert "After a rest, and at the power limit, on H100" in result.stdout
    assert "geometric mean 1.000" in result.stdout
    (before, after) = read_existing(str(seen))
    assert before.sustained is None, "a record without it is measured again"
    assert after.sustained == after.peers[0].sustained == SUSTAINED
    for seconds, message in (("0", "is not in the range"), ("inf", "inf is not a finite number")):
        refused = call("bench", "--shape", "64", "--sustained", seconds)
        assert refused.exit_code == 2
        assert message in refused.stderr


def test_a_named_kernel_has_its_own_layout(
    call: Callable[..., Result], heard: dict[str, Any]
) -> None:
    words = ("bench", "gemm_wgmma", "--shape", "64", "--against", "cublas")
    for given, layout in (((), "nn"), (("--layout", "NT"), "nt"), (("--layout", "TN"), "tn")):
        result = call(*words, *given)
        assert result.exit_code == 0, result.stderr
        assert [each.problem.layout for each in heard["tasks"]] == [layout]
