"""CUDA C++ to `Binary`: PTX, cubin and resource usage, for any architecture, with no driver."""
