"""What is counted while a kernel runs, and Nsight Compute's names for it."""
