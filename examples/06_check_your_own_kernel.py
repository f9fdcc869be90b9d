"""A .cu file of your own: checked, counted, and checked again with a planted bug.

`gemmkit check` does the same from the command line:

    gemmkit check sgemm.cu --entry 'sgemm<64,64,8,8,4>' --grid '(N+63)/64,(M+63)/64' --block 128
"""

import tempfile
from pathlib import Path

import gemmkit
from gemmkit import Kernel

LAUNCH = {
    "entry": "sgemm<64,64,8,8,4>",  # the C++ name, with its template arguments
    "grid": "(N+63)/64,(M+63)/64",  # blocks along x, y, z
    "block": 128,
}
SHAPES = ["64x64x32", "65x33x17", "1x1x1"]


def check(path: Path) -> None:
    """Print what is wrong with the kernel of a file, if anything."""
    kernel = Kernel.from_file(path, **LAUNCH)
    for record in gemmkit.check(kernel, SHAPES):
        problem = record.problem
        print(f"{path.name}, {problem.m}x{problem.n}x{problem.k}: {record.verdict}")
        for finding in record.findings[:2]:
            print(f"    {finding.check}: {finding.message}")


own = Path(__file__).with_name("sgemm.cu")
check(own)

counters = gemmkit.count(Kernel.from_file(own, **LAUNCH), 256)
print(f"{counters.sectors_per_request:g} sectors per load request: the minimum for 32 floats is 4")
print(f"{counters.bank_conflicts:g} bank conflicts in {counters.shared_wavefronts:,} wavefronts")

# Without one half of the bounds check, columns past N are written into the next row.
with tempfile.TemporaryDirectory() as folder:
    broken = Path(folder) / "broken.cu"
    broken.write_text(own.read_text().replace("if (m < M && n < N)", "if (m < M)"))
    check(broken)
