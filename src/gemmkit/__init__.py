"""gemmkit: the GEMM workbench. Write, check, explain, tune and ship CUDA matrix-multiply kernels.

Heavy parts (the compiler, the emulator, the CUDA driver) are imported when first used.
"""

__version__ = "0.1.0"
