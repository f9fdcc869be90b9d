"""The emulated GPU at run time: device memory, blocks of warps, host threads, and faults."""
