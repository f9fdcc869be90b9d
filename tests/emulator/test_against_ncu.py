"""The emulator's counts, and the compiler's figures, equal those of Nsight Compute on a GPU."""

import json
from functools import cache
from pathlib import Path

import pytest

from gemmkit.bench.run import run_kernel
from gemmkit.devices.choose import open_device
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.trials.freshness import source_digest

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
FILES = sorted(RESULTS.glob("*-ncu.json"))
EQUAL = (
    *(f"l1tex__t_{what}_pipe_lsu_mem_global_op_{how}.sum"
      for what in ("requests", "sectors", "bytes") for how in ("ld", "st")),
    *(f"smsp__sass_inst_executed_op_shared_{how}.sum" for how in ("ld", "st")),
    *(f"smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_{how}.sum" for how in ("ld", "st")),
    "smsp__sass_l1tex_t_requests_pipe_lsu_mem_global_op_ldgsts_cache_access.sum",
    "smsp__sass_l1tex_t_requests_pipe_lsu_mem_global_op_ldgsts_cache_bypass.sum",
)  # fmt: skip
COPY_WAVEFRONTS = "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
LARGE = ("512x512x512", "1024x1024x1024")
TAG_WAVEFRONTS = "l1tex__t_output_wavefronts_pipe_lsu_mem_global_op_{}.sum"


def launches():
    measured = [json.loads(path.read_text("utf-8")) for path in FILES]
    return [
        pytest.param(each["gpu"], launch, id=f"{each['gpu']}-{launch['kernel']}-{launch['shape']}")
        for each in measured
        for launch in each["launches"]
    ]


def emulated(gpu, launch):
    """The record of a launch like a measured one."""
    return run(gpu, launch["kernel"], launch["shape"], tuple(launch["config"].items()))


@cache
def run(gpu, name, shape, config):
    kernel, problem = find_kernel(name), GemmProblem.from_shape(shape)
    config = kernel.configure(dict(config))
    record = run_kernel(kernel, problem, open_device("emulator", gpu), config=config)
    assert record.correct
    return record


def test_there_are_measurements():
    assert FILES, "benchmarks/compare_ncu.py has not been run, or its results are not committed"


@pytest.mark.parametrize(("gpu", "launch"), launches())
@pytest.mark.sample(13)
def test_counts_of_memory(gpu, launch):
    measured, counted = launch["metrics"], emulated(gpu, launch).counters
    held = {name: measured[name] for name in EQUAL if name in measured}
    assert len(held) >= 10
    assert {name: counted[name] for name in held} == held
    copies = measured.get(COPY_WAVEFRONTS, 0)
    if launch["kernel"] == "warp_reduce":
        # It waits for DRAM in each step. What is measured beyond the count is no whole number per
        # block, so it depends on when the parts of a request arrive.
        assert copies == pytest.approx(counted[COPY_WAVEFRONTS], rel=0.17)
    else:
        assert copies == counted[COPY_WAVEFRONTS]
    # Arbitration adds to the wavefronts, mostly to those of the few stores.
    loads, stores = (WAVEFRONTS.format(how) for how in ("ld", "st"))
    assert measured[loads] == pytest.approx(counted[loads], rel=0.02)
    both = measured[loads] + measured[stores]
    assert both == pytest.approx(counted[loads] + counted[stores], rel=0.02)
    # Cache misses add to the wavefronts of the tag stage, most if a small product reads each line
    # once. Which lines share a tag bank depends on a matrix's address, unless it is large; most of
    # all for stores to a small one.
    tags = TAG_WAVEFRONTS.format("ld")
    least = 1.0 if launch["shape"] in LARGE else 0.97
    most = 1.21 if launch["shape"] == "16x257x129" else 1.08
    assert least * counted[tags] <= measured[tags] <= most * counted[tags]
    tags = TAG_WAVEFRONTS.format("st")
    if launch["shape"] in LARGE:
        assert counted[tags] <= measured[tags] <= 1.08 * counted[tags]


@pytest.mark.parametrize(("gpu", "launch"), launches())
@pytest.mark.sample(17)
def test_resources_and_occupancy(gpu, launch):
    if launch.get("source") != source_digest(find_kernel(launch["kernel"])):
        pytest.skip("registers were read of an earlier version of the kernel")
    record, measured = emulated(gpu, launch), launch["metrics"]
    found, resources, spec = record.occupancy, record.resources, find_board(gpu)
    # A kernel whose default has changed since has different code.
    same = launch["config"] == find_kernel(launch["kernel"]).default.as_dict()
    if same and launch["compiler"] == record.environment["compiler"]:
        assert resources.registers == measured["launch__registers_per_thread"]
    shared = [measured[f"launch__shared_mem_per_block_{part}"] for part in ("static", "dynamic")]
    assert resources.shared_bytes == sum(shared)
    limits = {
        name: measured[f"launch__occupancy_limit_{name}"]
        for name in ("blocks", "registers", "shared_mem", "warps")
    }
    assert found.blocks_per_sm == min(limits.values())
    assert limits["blocks"] == spec.capability.max_blocks_per_sm
    percent = measured["sm__maximum_warps_per_active_cycle_pct"]
    assert 100 * found.theoretical == pytest.approx(percent, abs=0.01)
    waves = measured["launch__waves_per_multiprocessor"]
    assert found.waves_per_sm == pytest.approx(waves, abs=0.005)
