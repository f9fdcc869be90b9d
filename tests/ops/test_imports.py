"""What `import gemmkit` and the operations load, and what they leave until it is used."""

import subprocess
import sys

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
