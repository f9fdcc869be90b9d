// Copies A and B to lines that begin at multiples of 16 bytes, as TMA needs them.
//
// A line is a row of the matrix, or a column where its transpose lies in memory. A warp copies 512
// bytes of it, in words: where a line begins inside of one, each word comes from two of the source.
#include "layout.cuh"

constexpr int WORD = 4, WORDS_PER_LANE = 4, SEGMENT_WORDS = 32 * WORDS_PER_LANE;

// Word `word` of a copy of the line, of `length` elements; what lies past the end is zero.
template <class T>
__device__ __forceinline__ unsigned load_word(const T* line, int length, int word) {
  constexpr int PER_WORD = WORD / sizeof(T);
  const int begins = reinterpret_cast<unsigned long long>(line) % WORD;
  const long long from = static_cast<long long>(word) * WORD - begins;
  const long long end = from + (begins == 0 ? WORD : 2 * WORD);
  if (from >= 0 && end <= static_cast<long long>(length) * static_cast<int>(sizeof(T))) {
    const auto* source = reinterpret_cast<const unsigned*>(
        reinterpret_cast<const unsigned char*>(line) + from);
    return begins == 0 ? source[0] : __funnelshift_r(source[0], source[1], 8 * begins);
  }
  unsigned value = 0;
#pragma unroll
  for (int i = 0; i < PER_WORD; ++i) {
    const int at = word * PER_WORD + i;
    if (at < length) value |= static_cast<unsigned>(line[at]) << 8 * sizeof(T) * i;
  }
  return value;
}

// Copies this block's segments of lines of one product; leading dimensions are in elements.
template <class T>
__device__ __forceinline__ void copy_lines(const T* from, int ld, T* to, int ld_to, int lines,
                                           int length) {
  const int first = blockIdx.x * SEGMENT_WORDS + threadIdx.x;
  const int words = (length + WORD / sizeof(T) - 1) / (WORD / sizeof(T));
  if (first >= words) return;
  for (long long line = blockIdx.y * blockDim.y + threadIdx.y; line < lines;
       line += gridDim.y * blockDim.y) {
    auto* copy = reinterpret_cast<unsigned*>(to + line * ld_to);
    unsigned value[WORDS_PER_LANE];
#pragma unroll
    for (int i = 0; i < WORDS_PER_LANE; ++i) {
      const int word = first + 32 * i;
      if (word < words) value[i] = load_word(from + line * ld, length, word);
    }
#pragma unroll
    for (int i = 0; i < WORDS_PER_LANE; ++i) {
      const int word = first + 32 * i;
      if (word < words) copy[word] = value[i];
    }
  }
}

// Products of A come first on the grid's z; an operand that is read in place has none.
template <class T>
__global__ void __launch_bounds__(256)
    copy_operands(const T* A, int lda, long long stride_a, T* copy_a, int ld_copy_a, int lines_a,
                  int length_a, int count_a, const T* B, int ldb, long long stride_b, T* copy_b,
                  int ld_copy_b, int lines_b, int length_b, int count_b) {
  for (int product = blockIdx.z; product < count_a + count_b; product += gridDim.z) {
    const bool of_a = product < count_a;
    const long long number = of_a ? product : product - count_a;
    if (of_a) {
      copy_lines(A + number * stride_a, lda, copy_a + number * lines_a * ld_copy_a, ld_copy_a,
                 lines_a, length_a);
    } else {
      copy_lines(B + number * stride_b, ldb, copy_b + number * lines_b * ld_copy_b, ld_copy_b,
                 lines_b, length_b);
    }
  }
}
