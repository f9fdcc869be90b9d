"""How fp32 is multiplied in products of fp16 parts: what a kernel and its error bound agree on.

x · 2^s = high + low, both of fp16, where 2^s brings the largest element of a row of A or a column
of B to [2^14, 2^15). Tensor cores add up high × high and both products of a high by a low part over
a chunk of k; fp32 registers add up chunks.
"""

# What a launch plan names this arithmetic.
SPLIT_PRODUCTS = "float16x3"
# Products of parts: low × low is left out.
PRODUCTS = 3
# Elements of k whose products tensor cores add up before fp32 registers take them, and the fewest
# of a stage, whose products with a low part come first.
CHUNK, SHORTEST_STAGE = 64, 32
# The most blocks that share the k of a result.
MOST_BLOCKS = 4
# From this k on, the bound of `gemmkit.verify.split_products` is no larger than that of fp32 sums.
LEAST_K = 92
