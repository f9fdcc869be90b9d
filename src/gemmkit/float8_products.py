"""How tensor cores sum products of 8-bit operands: what a kernel and its error bound agree on.

They keep few bits of such sums. So fp32 registers take them after each chunk of k ("promotion", or
two-level accumulation, as in DeepGEMM), unless a problem asks for fast accumulation.
"""

# What a launch plan names these arithmetics.
PROMOTED_SUMS, FAST_SUMS = "float8,promoted", "float8,fast"
# Elements of k whose products tensor cores add up before fp32 registers take them.
CHUNK = 128
