"""What the examples share: check a kernel, count, and print the counters that explain it."""

from __future__ import annotations

import gemmkit
from gemmkit import Counters, Kernel

# Neither divides by any tile, so that every edge is met.
AWKWARD = ["33x65x17", "70x40x50"]


def show(kernel: Kernel, size: int, *names: str) -> Counters:
    """Print whether `kernel` is right, and these of its counters at size x size x size."""
    print(f"{kernel.name}: {kernel.idea}")
    for record in gemmkit.check(kernel, AWKWARD):
        problem = record.problem
        print(f"  {problem.m}x{problem.n}x{problem.k}: {record.verdict}")
        for finding in record.findings:
            print(f"    {finding.message}")
    counters = gemmkit.count(kernel, size)
    print(f"  at {size}x{size}x{size} on an emulated {counters.record.device.gpu}:")
    for name in names:
        try:
            value = f"{getattr(counters, name):12,g}"
        except gemmkit.GemmkitError:
            value = "   not known: pip install 'gemmkit[ptx]' brings ptxas, which tells"
        print(f"    {name.replace('_', ' '):26} {value}")
    results = size * size
    loads = counters["ptx__data_bytes_mem_global_op_ld.sum"] / 4 / results
    print(f"    {'global loads/result':26} {loads:12,g}")
    shared = counters["ptx__data_bytes_mem_shared_op_ld.sum"] / 4 / results
    if shared:
        print(f"    {'shared loads/result':26} {shared:12,g}")
    return counters
