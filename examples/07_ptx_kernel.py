"""PTX is a kernel too, whatever wrote it: nvcc, clang, a code generator, or a hand.

PTX does not say what its parameters mean, nor how it is launched: both are given here. Findings and
counters then refer to lines of the PTX, or of the source where it has line information.
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
