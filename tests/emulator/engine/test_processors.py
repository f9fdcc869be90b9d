"""Code is compiled for processors that the tests do not run on."""

import platform
import subprocess
import sys

import pytest

# LLVM ends the process where it finds no instruction, so a process of its own compiles.
FOR_AVX512 = """
from dataclasses import replace
from gemmkit.emulator.codegen import native
from gemmkit.emulator.codegen.compile import compile_kernel
from gemmkit.emulator.codegen.compiled import KernelText
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem

here = native.host()
features = ",".join(f"+avx512{each}" for each in ("f", "bw", "cd", "dq", "vl"))
there = replace(here, cpu="sapphirerapids", features=f"{here.features},{features}")
native.host = lambda: there
kernel, board = find_kernel("gemm_fp16x3"), find_board("h100")
problem = GemmProblem(64, 64, 64, precision="fp32")
config = kernel.configure({"BM": 64, "BN": 32, "BK": 64, "stages": 2, "consumers": 1})
binary = compile_plan(kernel.plan(problem, config, board), board.arch, assemble=False)
for each in (binary, binary.before):
    text = KernelText(each.ptx, each.entry, "", (9, 0))
    compile_kernel(text, "run", sanitize=True, quick=True)
print("compiled")
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="these are x86's")
def test_sanitized_code_is_compiled_for_avx512():
    done = subprocess.run(
        [sys.executable, "-c", FOR_AVX512], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "compiled\n"), done.stderr
