"""PTX on a CPU: results, the memory counters of Nsight Compute, and a check of every access."""
