"""Users' own kernels: a CUDA C++ file, PTX or a numba function becomes a `Kernel`."""
