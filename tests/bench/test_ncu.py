"""`benchmarks/compare_ncu.py` reads what Nsight Compute prints."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "compare_ncu.py"

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


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("compare_ncu", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rows(script):
    assert script.read_rows(TABLE.splitlines(), [REQUESTS, SECTORS]) == [
        ("void naive<32, 32>(int, int)", {REQUESTS: 67108864.0, SECTORS: 167772160.0}),
        ("vectorized", {REQUESTS: 2097152.0}),
    ]


def test_only_metrics_that_the_profiler_knows(script):
    query = f"Device GH100\n{REQUESTS.rsplit('.', 1)[0]}   Counter  # of requests\nother  Counter\n"
    assert script.choose_metrics(query) == [REQUESTS, *script.LAUNCH]
