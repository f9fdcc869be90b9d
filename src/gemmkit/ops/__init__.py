"""Products of the arrays that people have: NumPy, PyTorch, CuPy, JAX, Numba and their kin."""
