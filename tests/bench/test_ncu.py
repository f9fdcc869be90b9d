"""`benchmarks/compare_ncu.py` and its twin for asynchronous instructions read what Nsight Compute
prints."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"

TABLE = f"""==PROF== Connected to process 71
==PROF== Profiling "naive" - 0: 0%....100% - 1 pass
"ID","Process ID","Kernel Name","Block Size","{REQUESTS}","{SECTORS}"
"","","","","",""
"0","71","void naive<32, 32>(int, int)","(32, 32, 1)","67,108,864","167772160"
"1","71","vectorized","(256, 1, 1)","2097152","n/a"
==PROF== Disconnected from process 71
"""


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def script():
    return loaded("compare_ncu")


@pytest.fixture(scope="module")
def asynchronous():
    before = sys.path.copy()
    yield loaded("compare_ncu_asynchronous")
    sys.path[:] = before


def test_rows(script):
    assert script.read_rows(TABLE.splitlines(), [REQUESTS, SECTORS]) == [
        ("void naive<32, 32>(int, int)", {REQUESTS: 67108864.0, SECTORS: 167772160.0}),
        ("vectorized", {REQUESTS: 2097152.0}),
    ]


def test_only_metrics_that_the_profiler_knows(script):
    query = f"Device GH100\n{REQUESTS.rsplit('.', 1)[0]}   Counter  # of requests\nother  Counter\n"
    assert script.choose_metrics(query) == [REQUESTS, *script.LAUNCH]


OF_HMMA = "sm__inst_executed_pipe_tensor_op_hmma.sum"
OF_IMMA = "sm__inst_executed_pipe_tensor_op_imma.sum"
ASYNCHRONOUS = f"""==PROF== Connected to process 71
"ID","Kernel Name","{OF_IMMA}","{OF_HMMA}","ptx__inst_executed_op_mbarrier.sum"
"","","inst","inst",""
"0","k","0","1,020","3"
"1","k","8","n/a","3"
==PROF== Disconnected from process 71
"""


def test_metrics_of_named_launches(asynchronous):
    assert asynchronous.measured(["mma", "wgmma"], ASYNCHRONOUS.splitlines()) == [
        {"name": "mma", "metrics": {OF_HMMA: 1020}},
        {"name": "wgmma", "metrics": {OF_IMMA: 8}},
    ]
    with pytest.raises(SystemExit, match="ncu saw 2 kernels where 1 were launched"):
        asynchronous.measured(["mma"], ASYNCHRONOUS.splitlines())


def test_a_profiler_that_lacks_metrics(asynchronous):
    query = [f"{name.removesuffix('.sum')}  Counter" for name in asynchronous.WANTED]
    asynchronous.check_metrics("\n".join(query))
    name = asynchronous.WANTED[-1]
    with pytest.raises(SystemExit, match=f"does not have for this GPU: {re.escape(name)}$"):
        asynchronous.check_metrics("\n".join(query[:-1]))
