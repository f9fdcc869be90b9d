"""Every rung on a real GPU: edge cases, BLAS rules, epilogues, and the sanitizer's tools."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gemmkit.bench.run import run_kernel
from gemmkit.devices.cuda import CudaDevice
from gemmkit.epilogue import Epilogue
from gemmkit.kernels.catalog import LADDER
from gemmkit.kernels.fitting import fitting, in_types_of
from gemmkit.problem import GemmProblem

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]

PROBLEMS = {
    "tile multiples": GemmProblem(256, 512, 128),
    "one more": GemmProblem(257, 513, 129),
    "one less": GemmProblem(255, 511, 127),
    "primes": GemmProblem(211, 307, 101),
    "one element": GemmProblem(1, 1, 1),
    "row": GemmProblem(1, 1000, 300),
    "column": GemmProblem(1000, 1, 300),
    "no rows": GemmProblem(0, 64, 64),
    "no columns": GemmProblem(64, 0, 64),
    "no products": GemmProblem(65, 66, 0, beta=0.5),
    "no products, no C": GemmProblem(65, 66, 0),
    "k below the tile": GemmProblem(130, 140, 3),
    "tall": GemmProblem(70_000, 5, 7),
    "padded rows": GemmProblem(130, 140, 66, lda=80, ldb=148, ldc=160),
    "odd rows": GemmProblem(128, 128, 64, lda=65, ldb=131, ldc=129),
    "padded, beta": GemmProblem(130, 140, 66, -0.5, 2.0, lda=67, ldb=141, ldc=143),
    "alpha 0": GemmProblem(100, 90, 80, alpha=0.0, beta=0.5),
    "alpha and beta 0": GemmProblem(100, 90, 80, alpha=0.0),
    "alpha, beta": GemmProblem(192, 192, 192, alpha=1.5, beta=-0.25),
    "deep": GemmProblem(64, 64, 20_000),
}


@pytest.fixture(scope="module")
def device():
    return CudaDevice()


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
@pytest.mark.parametrize("kernel", LADDER, ids=lambda kernel: kernel.name)
def test_rung(device, kernel, problem):
    problem = fitting(kernel, in_types_of(kernel, problem), device.spec)
    record = run_kernel(kernel, problem, device, time=False)
    assert record.correct, record.check


@pytest.mark.parametrize("epilogue", ["bias", "relu", "bias+relu"])
@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("kernel", LADDER[1:], ids=lambda kernel: kernel.name)
def test_fused_epilogues(device, kernel, beta, epilogue):
    problem = GemmProblem(130, 141, 67, 1.5, beta, epilogue=Epilogue.parse(epilogue))
    problem = fitting(kernel, in_types_of(kernel, problem), device.spec)
    record = run_kernel(kernel, problem, device, time=False)
    assert record.correct, record.check


@pytest.mark.parametrize("kernel", LADDER, ids=lambda kernel: kernel.name)
def test_several_configurations(device, kernel):
    """The ends of the configuration space and some in between."""
    configurations = list(kernel.configurations(device.spec))
    chosen = configurations[:: max(1, len(configurations) // 6)] + configurations[-1:]
    problem = fitting(kernel, in_types_of(kernel, GemmProblem(150, 170, 90)), device.spec)
    for config in chosen:
        record = run_kernel(kernel, problem, device, config=config, time=False)
        assert record.correct, f"{config}: {record.check}"


def test_a_time_is_a_time(device):
    record = run_kernel(LADDER[1], GemmProblem(512, 512, 512), device)
    assert record.time_us is not None
    assert 0 < record.time_us.minimum <= record.time_us.median <= record.time_us.maximum
    assert record.peak_fraction is not None
    assert 0 < record.peak_fraction < 1


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_sanitizer_is_clean(tool):
    sanitizer = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin"
    )
    if sanitizer is None:
        pytest.skip("needs compute-sanitizer, which comes with the CUDA toolkit")
    script = ROOT / "benchmarks" / "launch_once.py"
    shapes = "129x133x67,128x128x64,1x1x1,40x300x5"
    # cuda.core asks for the current context before there is one, which is no error of a kernel.
    quiet = ("--report-api-errors", "no") if tool == "memcheck" else ()
    done = subprocess.run(
        [
            *(sanitizer, "--tool", tool, "--error-exitcode", "9", *quiet),
            *(sys.executable, str(script), "--shapes", shapes),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("=========")]
    assert done.returncode == 0, "\n".join(said[:60]) + done.stderr[-2000:]
    assert "ERROR SUMMARY: 0 errors" in done.stdout or "0 hazards" in done.stdout
    assert done.stdout.count('"correct": true') == 4 * len(LADDER)
