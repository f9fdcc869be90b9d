"""Parses PTX text to a module of kernels: instructions, operands, variables and control flow."""
