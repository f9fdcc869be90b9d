// Splits A and B of groups into two fp16 parts each, see split_lines.cuh, for `grouped_fp16x3`: lines of
// all products in one launch, and of their parts panels of 32 along k.
#include "split_group.cuh"
#include "split_lines.cuh"

// Lines of a work item, which a cluster has: of those whose elements are contiguous, for each block.
constexpr int LINES_ALONG = 16, LINES_ACROSS = 32;

// An operand of a product, and where its parts and exponents go.
struct SplitMatrix {
  const float* from;
  long long ld;
  int lines, K;
  Half* to;
  int* exponents;

  // Splits the lines of an item.
  template <bool CONTIGUOUS_K, int CLUSTER>
  __device__ __forceinline__ void split(int item, int sharing) const {
    constexpr int LINES = CONTIGUOUS_K ? LINES_ALONG * CLUSTER : LINES_ACROSS;
    const int first = item * LINES, count = min(LINES, lines - first);
    const int rank = CLUSTER > 1 ? blockIdx.x % CLUSTER : 0;
    const long long ld_to = (K + GROUP - 1) / GROUP * (2 * GROUP);
    Half* const own_to = to + static_cast<long long>(first) * (2 * GROUP);
    if constexpr (CONTIGUOUS_K) {
      split_along<true>(from + first * ld, ld, own_to, exponents + first, count, K, ld_to, rank,
                        CLUSTER, sharing, lines);
    } else {
      split_across<true, CLUSTER>(from + first, ld, own_to, exponents + first, count, K, ld_to,
                                  rank, CLUSTER, lines);
    }
  }
};

// The last product whose items begin at `item` or before: that before it, if it has none.
template <int SplitGroup<>::* FIRST>
__device__ __forceinline__ const SplitGroup<>& product_of(const SplitGroup<>* list, int count,
                                                          int item) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    (list[middle].*FIRST <= item ? low : high) = middle;
  }
  return list[low];
}

// Clusters of the items of A come first. `sharing` are warps of a line whose elements are contiguous.
template <Layout LAYOUT, int CLUSTER>
__global__ void __launch_bounds__(32 * WARPS, 3)
    split_groups(const SplitGroup<>* list, int count, Half* parts_a, int* exponents_a, int items_a,
                 Half* parts_b, int* exponents_b, int sharing) {
  const int item = blockIdx.x / CLUSTER;
  if (item < items_a) {
    const SplitGroup<>& its = product_of<&SplitGroup<>::items_a>(list, count, item);
    Half* const to = parts_a + static_cast<long long>(its.parts_a) * LINE_OF_PARTS;
    const SplitMatrix a{its.A, its.lda, its.M, its.K, to, exponents_a + its.exponents_a};
    a.template split<!TRANSPOSED_A<LAYOUT>, CLUSTER>(item - its.items_a, sharing);
  } else {
    const int of_b = item - items_a;
    const SplitGroup<>& its = product_of<&SplitGroup<>::items_b>(list, count, of_b);
    Half* const to = parts_b + static_cast<long long>(its.parts_b) * LINE_OF_PARTS;
    const SplitMatrix b{its.B, its.ldb, its.N, its.K, to, exponents_b + its.exponents_b};
    b.template split<TRANSPOSED_B<LAYOUT>, CLUSTER>(of_b - its.items_b, sharing);
  }
}
