"""Shared by the examples: check a kernel, count, and print the relevant counters."""

from __future__ import annotations

import gemmkit
from gemmkit import Counters, Kernel

# No dimension is a multiple of a tile, so every edge is tested.
EDGE_CASES = ["33x65x17", "70x40x50"]


def show(kernel: Kernel, size: int, *names: str) -> Counters:
    """Print whether `kernel` is right, and the named counters at size x size x size."""
    print(f"{kernel.name}: {kernel.idea}")
    for record in gemmkit.check(kernel, EDGE_CASES):
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
            value = "   unknown: needs ptxas, from pip install 'gemmkit[ptx]'"
        print(f"    {name.replace('_', ' '):26} {value}")
    results = size * size
    loads = counters["ptx__data_bytes_mem_global_op_ld.sum"] / 4 / results
    print(f"    {'global loads/result':26} {loads:12,g}")
    shared = counters["ptx__data_bytes_mem_shared_op_ld.sum"] / 4 / results
    if shared:
        print(f"    {'shared loads/result':26} {shared:12,g}")
    return counters
