"""The functions that every kernel's code calls, compiled once for a host: memory, warps, blocks."""
