// Splits A and B of fp32 into two fp16 parts each, see split_lines.cuh, for `gemm_fp16x3`. Of an operand
// that was split before, the exponents of lines alone are copied.
#include "split_lines.cuh"

// Splits the matrices of one operand: `products` of them, `stride` elements apart. Without a place for
// parts, `from` are the exponents of one that was split before, and these are copied.
template <bool CONTIGUOUS_K, int CLUSTER>
__device__ __forceinline__ void split_matrices(const float* from, long long ld, long long stride,
                                               Half* to, int* exponents, int lines, int K,
                                               int products, int block, int blocks, int sharing) {
  if (to == nullptr) {
    const int* const known = reinterpret_cast<const int*>(from);
    const long long count = static_cast<long long>(products) * lines;
    const int thread = (block * WARPS + threadIdx.y) * 32 + threadIdx.x;
    for (long long i = thread; blockIdx.y == 0 && i < count; i += blocks * 32 * WARPS) {
      exponents[i] = known[i];
    }
    return;
  }
  const long long ld_to = (K + GROUP - 1) / GROUP * (2 * GROUP);
  for (int product = blockIdx.y; product < products; product += gridDim.y) {
    const float* const own = from + product * stride;
    Half* const own_to = to + product * (lines * ld_to);
    int* const own_exponents = exponents + static_cast<long long>(product) * lines;
    if constexpr (CONTIGUOUS_K) {
      split_along<false>(own, ld, own_to, own_exponents, lines, K, ld_to, block, blocks, sharing);
    } else {
      split_across<false, CLUSTER>(own, ld, own_to, own_exponents, lines, K, ld_to, block, blocks);
    }
  }
}

// Blocks of A come first, in whole clusters. `sharing` are warps of a line whose elements are contiguous.
template <Layout LAYOUT, int CLUSTER>
__global__ void __launch_bounds__(32 * WARPS, 3)
    split_operands(const float* A, long long lda, long long stride_a, Half* parts_a,
                   int* exponents_a, int M, int products_a, int blocks_a, const float* B,
                   long long ldb, long long stride_b, Half* parts_b, int* exponents_b, int N,
                   int products_b, int blocks_b, int K, int sharing) {
  const int block = blockIdx.x;
  if (block < blocks_a) {
    split_matrices<!TRANSPOSED_A<LAYOUT>, CLUSTER>(A, lda, stride_a, parts_a, exponents_a, M, K,
                                                   products_a, block, blocks_a, sharing);
  } else {
    split_matrices<TRANSPOSED_B<LAYOUT>, CLUSTER>(B, ldb, stride_b, parts_b, exponents_b, N, K,
                                                  products_b, block - blocks_a, blocks_b, sharing);
  }
}
