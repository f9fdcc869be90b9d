"""What tensor cores compute, to the bit: the rules of each architecture and a model of them."""
