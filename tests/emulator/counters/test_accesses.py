"""What each access counted, and the array it belongs to."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from gemmkit.bench.workload import Workload
from gemmkit.devices.choose import open_device
from gemmkit.emulator.counters.accesses import DYNAMIC, Accesses
from gemmkit.emulator.counters.tally import Tally
from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.parser import parse
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import LADDER, find_kernel
from gemmkit.kernels.fitting import fitting, in_types_of
from gemmkit.problem import GemmProblem


def launched(name: str, size: int = 128):
    device, kernel = open_device("emulator", "h100"), find_kernel(name)
    problem = in_types_of(kernel, GemmProblem(size, size, size))
    problem = fitting(kernel, problem, device.spec)
    plan = kernel.plan(problem, kernel.default, device.spec)
    launch, verdict = Workload(problem, device, 0).run(
        compile_plan(plan, device.spec.arch, assemble=False), plan
    )
    assert verdict.correct
    return launch


@pytest.mark.parametrize("name", [kernel.name for kernel in LADDER])
@pytest.mark.sample(8)
def test_accesses_add_up_to_the_metrics(name: str) -> None:
    launch = launched(name)
    totals: Counter[str] = Counter()
    for each in launch.accesses:
        assert each.ideal_sectors <= each.sectors
        assert each.ideal_wavefronts == each.wavefronts - each.conflicts
        assert each.instructions in (0, each.requests)
        if each.kind == "atomic":
            continue  # the metrics are of loads and stores
        way = "st" if each.kind == "store" else "ld"
        if each.space == "global":
            for field, what in (
                ("requests", "requests"),
                ("sectors", "sectors"),
                ("tag_wavefronts", "output_wavefronts"),
            ):
                metric = f"l1tex__t_{what}_pipe_lsu_mem_global_op_{way}.sum"
                totals[metric] += getattr(each, field)
        else:
            totals[f"smsp__sass_inst_executed_op_shared_{way}.sum"] += each.instructions
            metric = f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{way}.sum"
            totals[metric] += each.wavefronts
    assert totals
    seen = Counter({name: launch.counters[name] for name in totals})
    # ldmatrix has a metric of its own.
    seen["smsp__sass_inst_executed_op_shared_ld.sum"] += launch.counters.get(
        "smsp__sass_inst_executed_op_ldsm.sum", 0
    )
    assert seen == totals


def test_arrays_of_a_tiled_kernel() -> None:
    touched = {(each.array, each.space, each.kind)
               for each in launched("shared_tiling").accesses if each.requests}  # fmt: skip
    assert touched == {
        ("A", "global", "load"),
        ("B", "global", "load"),
        ("C", "global", "store"),
        *((tile, "shared", kind) for tile in ("As", "Bs") for kind in ("load", "store")),
    }


def test_copies_and_dynamic_shared_memory() -> None:
    touched = {(each.array, each.space, each.kind)
               for each in launched("async_copy").accesses if each.requests}  # fmt: skip
    assert touched == {
        ("A", "global", "copy"),
        ("B", "global", "copy"),
        ("C", "global", "store"),
        (DYNAMIC, "shared", "load"),
    }


def test_merged_loads_count_once() -> None:
    ptx = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k()
{
    .reg .b32 %r<5>;
    .reg .f32 %f<5>;
    .shared .align 4 .b8 tile[512];
    mov.u32 %r1, %tid.x;
    shl.b32 %r2, %r1, 4;
    mov.u32 %r3, tile;
    add.s32 %r4, %r3, %r2;
    ld.shared.f32 %f1, [%r4+8];
    ld.shared.f32 %f2, [%r4];
    ld.shared.f32 %f3, [%r4+4];
    ret;
}
"""
    flow = ControlFlow.of(parse(ptx).kernels["k"])
    tally = Tally.zeros(8)
    tally.requests[5], tally.wavefronts[5] = 7, 28
    found = Accesses(flow).counts(tally, lambda _: "")
    assert [each.number for each in found] == [4, 5, 6]
    assert [each.requests for each in found] == [7, 7, 7]
    assert [each.instructions for each in found] == [0, 7, 0]
    assert {each.array for each in found} == {"tile"}
    assert np.sum([each.wavefronts for each in found]) == 28
