"""What `import gemmkit` and the operations load, and what they leave until it is used."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("cuda", "llvmlite", "matplotlib", "numba", "torch", "cupy", "jax", "rich", "click")


def loaded_after(statement):
    code = (
        f"{statement}\nimport sys; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_importing_gemmkit_loads_nothing_but_itself():
    assert not loaded_after("import gemmkit") & {*HEAVY, "numpy"}


def test_naming_matmul_loads_no_library_of_arrays_but_numpy():
    loaded = loaded_after("from gemmkit import gemm, matmul")
    assert "numpy" in loaded
    assert not loaded & set(HEAVY)


PRODUCT = """
import sys
sys.path.insert(0, {tests!r})
import numpy as np
import gemmkit
{before}
ones = np.ones((48, 48), np.float32)
gemmkit.matmul(ones, ones, device={device!r})
compiler = sys.modules.get("gemmkit.jit.nvrtc")
loaded = compiler is not None and compiler._load.cache_info().currsize
print(*sorted(sys.modules), *["libnvrtc"] * loaded)
"""

ON_A_FAKE_GPU = """
import fake_driver
import gemmkit.ops.carriers
fake_driver.install(setattr)
gemmkit.ops.carriers.gpu_problem = lambda: None
"""

# Compilers, parsers and libraries that a kernel from the cache does without.
IDLE = [
    *("subprocess", "numpy.ma", "difflib", "nvmath", "libnvrtc", "cuda.core"),
    *("gemmkit.jit.ptxas", "gemmkit.jit.diagnostics", "gemmkit.emulator.ptx.parser"),
    *("gemmkit.emulator.ptx.cfg", "gemmkit.emulator.codegen.compile", "gemmkit.kernels.fitting"),
]

# What looks for CUDA's libraries imports these itself.
OF_CUDA_PATHFINDER = {"subprocess", "difflib"}


@pytest.mark.parametrize(
    ("device", "before", "idle"),
    [
        ("emulator", "", {*IDLE, "cuda"}),
        ("cuda", ON_A_FAKE_GPU, {*IDLE, "llvmlite", "gemmkit.emulator"} - OF_CUDA_PATHFINDER),
    ],
)
def test_a_product_of_a_cached_kernel_loads_no_compiler(device, before, idle):
    tests = str(Path(__file__).parents[1])
    script = PRODUCT.format(tests=tests, before=before, device=device)
    for _ in ("to fill the cache", "from the cache"):
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "gemmkit.ops.host" in loaded
    assert sorted(loaded & idle) == []
