"""CUDA C++ as text: what a source declares and includes, and expressions of launches."""
