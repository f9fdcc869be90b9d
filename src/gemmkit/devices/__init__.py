"""One protocol, two devices: a CUDA GPU that times, an emulated one that counts."""
