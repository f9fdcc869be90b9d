import json

import pytest

from gemmkit.errors import TuningError
from gemmkit.trials.entry import ProblemClass
from gemmkit.trials.kernel_tuner import read_cache, write_caches, write_results


@pytest.fixture
def entries(make_entry):
    return [
        make_entry(time_us=1500.0, samples=7),
        make_entry(config={"BM": 8, "BN": 32}, outcome="uncompiled", time_us=None, reason="no"),
        make_entry(config={"BM": 16, "BN": 64}, outcome="wrong", time_us=None),
    ]


def test_a_cache_has_what_kernel_tuner_asks_for(tmp_path, entries):
    path = tmp_path / "cache.json"
    assert write_caches(path, entries) == {path: 3}
    text = path.read_text()
    found = json.loads(text)
    assert found["schema_version"] == "1.1.0"
    assert found["device_name"] == "H100"
    assert found["kernel_name"] == "naive"
    assert found["problem_size"] == [64, 64, 64]
    assert found["objective"] == "time"
    assert found["tune_params_keys"] == ["BM", "BN"]
    assert found["tune_params"] == {"BM": [8, 16, 32], "BN": [32, 64]}
    assert list(found["cache"]) == ["32,32", "8,32", "16,64"]
    times = [line["time"] for line in found["cache"].values()]
    assert times == [1.5, "CompilationFailedConfig", "InvalidConfig"]
    needed = {"compile_time", "verification_time", "benchmark_time", "strategy_time"}
    needed |= {"framework_time", "timestamp", "time", "BM", "BN"}
    assert all(needed <= line.keys() for line in found["cache"].values())
    # It takes the last three characters away to append to the file.
    assert text.endswith("}\n}")


def test_a_cache_of_gemmkit_comes_back_as_it_was(tmp_path, entries):
    path = tmp_path / "cache.json"
    write_caches(path, entries)
    assert read_cache(path) == entries


def test_several_kernels_and_problems_get_a_file_each(tmp_path, make_entry):
    wide = ProblemClass(m=1, n=64, k=64, aligned=True)
    lower = ProblemClass(m=64, n=64, k=64, aligned=True, layout="nt", precision="tf32")
    some = [make_entry(), make_entry(problem=wide), make_entry(epilogue="bias+relu")]
    some.append(make_entry(problem=lower))
    written = write_caches(tmp_path / "cache.json", some)
    assert sorted(path.name for path in written) == [
        "cache-h100-132sm-naive-1x64x64.json",
        "cache-h100-132sm-naive-64x64x64-NT-fp32-precision-tf32.json",
        "cache-h100-132sm-naive-64x64x64-bias-relu.json",
        "cache-h100-132sm-naive-64x64x64.json",
    ]


def foreign(**changes):
    """A cache as Kernel Tuner itself would write it."""
    return {
        "device_name": "NVIDIA H100 80GB HBM3",
        "kernel_name": "naive",
        "problem_size": [512, 256, 128],
        "tune_params_keys": ["BM", "BN"],
        "tune_params": {"BM": [8, 16], "BN": [32]},
        "objective": "time",
        "cache": {
            "8,32": {"BM": 8, "BN": 32, "time": 0.25, "times": [0.2, 0.3], "GFLOP/s": 1.0},
            "16,32": {"BM": 16, "BN": 32, "time": "RuntimeFailedConfig"},
        },
    } | changes


def test_a_foreign_cache_is_stale_from_the_start(tmp_path, store):
    path = tmp_path / "cache.json"
    path.write_text(json.dumps(foreign()))
    good, bad = read_cache(path)
    assert good.gpu == "h100-132sm"
    assert good.problem == ProblemClass(m=512, n=256, k=128, aligned=True)
    assert (good.outcome, good.time_us, good.samples) == ("ok", 250.0, 2)
    assert good.config == {"BM": 8, "BN": 32}
    assert (bad.outcome, bad.time_us) == ("unlaunched", None)
    assert store.staleness(good) == "other source"


def test_a_cache_that_is_still_open_is_read(tmp_path):
    path = tmp_path / "cache.json"
    path.write_text(json.dumps(foreign()).removesuffix("}}") + ",\n")
    assert len(read_cache(path)) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kernel_name": "matmul"}, "is not of a kernel of gemmkit: unknown kernel 'matmul'"),
        ({"tune_params_keys": ["BM", "warps"]}, "'naive' has no key warps"),
        ({"problem_size": 4096}, "problem_size must be .*, not 4096"),
        ({"device_name": "Radeon"}, "gemmkit does not know the GPU 'Radeon'"),
        ({"cache": {"8": {"BM": 8}}}, "an entry cannot be read"),
        ({"cache": 1}, "is not a Kernel Tuner cache"),
    ],
)
def test_a_cache_that_cannot_be_meant_is_one_clear_error(tmp_path, changes, message):
    path = tmp_path / "cache.json"
    path.write_text(json.dumps(foreign(**changes)))
    with pytest.raises(TuningError, match=message):
        read_cache(path)


def test_t4_results(tmp_path, entries):
    path = tmp_path / "results.json"
    assert write_results(path, entries) == 3
    found = json.loads(path.read_text())
    assert found["schema_version"] == "1.0.0"
    good, uncompiled, wrong = found["results"]
    assert good["configuration"]["kernel"] == "naive"
    assert good["configuration"]["BM"] == 32
    assert (good["invalidity"], good["correctness"]) == ("correct", 1)
    assert good["times"]["runtimes"] == [1.5]
    assert good["measurements"][0] == {"name": "time", "value": 1.5, "unit": "ms"}
    assert uncompiled["invalidity"] == "compile"
    assert (wrong["invalidity"], wrong["correctness"]) == ("correctness", 0)
