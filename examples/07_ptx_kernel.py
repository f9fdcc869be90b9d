"""A kernel in PTX, from any source: nvcc, clang, a code generator, or written by hand.

PTX says neither what its parameters mean nor how it is launched, so both are given here. Findings
and counters refer to lines of the PTX, or of the source if the PTX has line information.
"""

from pathlib import Path

from showing import show

from gemmkit import Kernel

kernel = Kernel.from_ptx(
    Path(__file__).with_name("naive.ptx"),
    args="M,N,K,A,B,C",
    grid="(N+31)/32,(M+7)/8",
    block="32,8",
)
show(kernel, 128, "load_requests", "sectors_per_request", "registers", "occupancy")
