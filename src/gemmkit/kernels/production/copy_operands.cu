// Copies A and B to lines that begin at multiples of 16 bytes, as TMA needs them, or turns them, so that
// other neighbors are contiguous.
//
// A line is a row of the matrix, or a column where its transpose lies in memory. A warp copies 512
// bytes of it, in words: where a line begins inside of one, each word comes from two of the source.
constexpr int WORD = 4, WORDS_PER_LANE = 4, SEGMENT_WORDS = 32 * WORDS_PER_LANE;
// Warps of a block, and the sides of tiles that are turned.
constexpr int ROWS = 8, SIDE = 32;

// Word `word` of a copy of a line of `length` elements; what lies past the end is zero.
template <class T>
__device__ __forceinline__ unsigned word_of_elements(const T* line, int length, int word) {
  constexpr int PER_WORD = WORD / sizeof(T);
  unsigned value = 0;
#pragma unroll
  for (int i = 0; i < PER_WORD; ++i) {
    const int at = word * PER_WORD + i;
    if (at < length) value |= static_cast<unsigned>(line[at]) << 8 * sizeof(T) * i;
  }
  return value;
}

// Copies the segments of one block: of columns of words, and of lines that lie `step` apart.
template <class T>
__device__ __forceinline__ void copy_lines(const T* from, long long ld, T* to, long long ld_to,
                                           int lines, int length, int segment, int line, int step) {
  const int first = segment * SEGMENT_WORDS + threadIdx.x;
  const int words = (length + WORD / sizeof(T) - 1) / (WORD / sizeof(T));
  for (; line < lines; line += step) {
    const T* own = from + line * ld;
    const int begins = reinterpret_cast<unsigned long long>(own) % WORD;
    const auto* source =
        reinterpret_cast<const unsigned*>(reinterpret_cast<unsigned long long>(own) - begins);
    // Words of the source that hold elements of this line alone.
    const int whole =
        (begins + static_cast<long long>(length) * static_cast<int>(sizeof(T))) / WORD;
    // All loads are under way before the first is needed.
    unsigned low[WORDS_PER_LANE], high[WORDS_PER_LANE];
#pragma unroll
    for (int i = 0; i < WORDS_PER_LANE; ++i) {
      const int word = first + 32 * i, next = begins ? word + 1 : word;
      const bool inside = (word > 0 || begins == 0) && next < whole;
      low[i] = inside ? source[word] : 0;
      high[i] = inside && begins ? source[next] : 0;
    }
    auto* copy = reinterpret_cast<unsigned*>(to + line * ld_to);
#pragma unroll
    for (int i = 0; i < WORDS_PER_LANE; ++i) {
      const int word = first + 32 * i, next = begins ? word + 1 : word;
      if (word >= words) continue;
      const bool inside = (word > 0 || begins == 0) && next < whole;
      copy[word] = inside ? __funnelshift_r(low[i], high[i], 8 * begins)
                          : word_of_elements(own, length, word);
    }
  }
}

// Turns a part of a matrix: of 32 neighbors of its lines, so many that `step` tiles lie between two. The
// lines of the copy are made of one element of each line.
template <class T>
__device__ __forceinline__ void turn_lines(const T* from, long long ld, T* to, long long ld_to,
                                           int lines, int length, int segment, int first,
                                           int step) {
  __shared__ T tile[SIDE][SIDE + 4 / sizeof(T)];
  for (int line = first * SIDE; line < lines; line += step * SIDE) {
    const int across = segment * SIDE;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SIDE; i += ROWS) {
      const int row = line + threadIdx.y + i, col = across + threadIdx.x;
      if (row < lines && col < length) tile[threadIdx.y + i][threadIdx.x] = from[row * ld + col];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SIDE; i += ROWS) {
      const int row = across + threadIdx.y + i, col = line + threadIdx.x;
      if (row < length && col < lines) to[row * ld_to + col] = tile[threadIdx.x][threadIdx.y + i];
    }
  }
}

// Copies one operand; its blocks are numbered through `segments` of a line first. `products`
// matrices lie `stride` elements apart, and their copies one after the other.
template <bool TURNED, class T>
__device__ __forceinline__ void copy_matrices(int block, const T* from, long long ld,
                                              long long stride, T* to, long long ld_to, int lines,
                                              int length, int products, int segments, int groups) {
  const int segment = block % segments, group = block / segments;
  for (int product = blockIdx.y; product < products; product += gridDim.y) {
    const T* const own = from + product * stride;
    T* const copy = to + product * ((TURNED ? length : lines) * ld_to);
    if constexpr (TURNED) {
      turn_lines(own, ld, copy, ld_to, lines, length, segment, group, groups);
    } else {
      copy_lines(own, ld, copy, ld_to, lines, length, segment,
                 group * static_cast<int>(blockDim.y) + static_cast<int>(threadIdx.y),
                 groups * static_cast<int>(blockDim.y));
    }
  }
}

// Blocks of A come first; an operand that is read in place has none: its `groups` is 0. Lines and their
// lengths are those of the matrices.
template <class T, bool TURNED_A, bool TURNED_B>
__global__ void __launch_bounds__(32 * ROWS)
    copy_operands(const T* A, long long lda, long long stride_a, T* copy_a, long long ld_copy_a,
                  int lines_a, int length_a, int products_a, int segments_a, int groups_a,
                  const T* B, long long ldb, long long stride_b, T* copy_b, long long ld_copy_b,
                  int lines_b, int length_b, int products_b, int segments_b, int groups_b) {
  const int block = blockIdx.x, blocks_a = segments_a * groups_a;
  if (block < blocks_a) {
    copy_matrices<TURNED_A>(block, A, lda, stride_a, copy_a, ld_copy_a, lines_a, length_a,
                            products_a, segments_a, groups_a);
  } else {
    copy_matrices<TURNED_B>(block - blocks_a, B, ldb, stride_b, copy_b, ld_copy_b, lines_b,
                            length_b, products_b, segments_b, groups_b);
  }
}
