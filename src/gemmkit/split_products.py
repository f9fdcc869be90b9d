"""How fp32 is multiplied in products of fp16 parts: what a kernel and its error bound agree on.

x · 2^s = high + low, both of fp16, where 2^s brings the largest element of a row of A or a column
of B to [2^14, 2^15). Tensor cores add up low × high, high × low and then high × high over a chunk
of k; fp32 registers add up the sums of chunks.
"""

# What a launch plan names this arithmetic; the same with a scale for each chunk of a row or column,
# undone when the chunk's sums are added; and with parts of TF32.
SPLIT_PRODUCTS, TF32_PRODUCTS = "float16x3", "tf32x3"
CHUNK_SCALED_PRODUCTS = "float16x3 by chunk"
# Products of parts: low × low is left out.
PRODUCTS = 3
# Elements of k in a chunk.
SHORTEST_CHUNK, LONGEST_CHUNK = 32, 64
TF32_CHUNK = 8
# The most blocks that share the k of a result.
MOST_BLOCKS = 4
# From here on, the bound of `verify.split_products` is no larger than that of fp32 sums; in fact
# from 35 on.
LEAST_K = 64
