"""Code is loaded contiguously, however fragmented the process's memory is."""

import subprocess
import sys

import pytest

# Ranges of more than 64 KiB are free only on the far side of a gap of 8 GiB, and smaller holes on
# this side: sections placed separately would be farther apart than the code's 32-bit relocations
# reach.
FAR_APART = """
import ctypes
from gemmkit.emulator.codegen.native import LoadedCode, compile_ir

mmap = ctypes.CDLL(None).mmap
mmap.restype = ctypes.c_size_t
mmap.argtypes = [ctypes.c_size_t, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_size_t]

def reserve(nbytes):
    private_anonymous_noreserve = 0x4022
    return mmap(0, nbytes, 0, private_anonymous_noreserve, -1, 0)

stores = "\\n".join(f"store volatile i32 {i}, ptr %p" for i in range(20_000))
code = compile_ir(
    "@table = private constant [3 x i32] [i32 5, i32 6, i32 7] "
    "define i32 @pick(i64 %i, ptr %p) {" + stores +
    "\\n%e = getelementptr i32, ptr @table, i64 %i\\n%x = load i32, ptr %e\\nret i32 %x }",
    clean=False,
)
wall = reserve(8 << 30)
while reserve(1 << 16) > wall:
    pass
loaded = LoadedCode(code, ["pick"])
pick = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p)(loaded.addresses["pick"])
room = ctypes.c_int32()
print(pick(2, ctypes.addressof(room)), room.value)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the flags are Linux's, and how it finds room")
def test_sections_of_code_lie_together_in_scattered_memory():
    done = subprocess.run(
        [sys.executable, "-c", FAR_APART], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "7 19999\n"), done.stderr
