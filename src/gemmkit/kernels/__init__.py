"""The ladder: CUDA C++ kernels, each adding one idea, and how each is launched."""
