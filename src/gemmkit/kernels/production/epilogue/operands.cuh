// What becomes of the sums of a warpgroup, and what that takes besides them: old values of C, a residual,
// a bias. These are read for many results at a time, all loads under way before the first value is
// needed: waiting for each value can take longer than the product.
#pragma once

#include "epilogue.cuh"

// The largest part of an extent, in so many steps of `step`, that divides it and is `most` or less.
__host__ __device__ constexpr int even_part(int extent, int step, int most) {
  int found = most;
  while (extent % found) found -= step;
  return found;
}

// The largest part of an extent that divides it of `most`, its half, a quarter, and so on.
__host__ __device__ constexpr int halved_part(int extent, int most) {
  while (extent % most) most /= 2;
  return most;
}

// Columns of a box of results: an even part of all, or `most` and a rest that is no box where even parts
// would be much narrower. A box takes its fence and its barrier, some 200 cycles, whatever its width.
__host__ __device__ constexpr int box_columns(int columns, int most) {
  const int even = even_part(columns, 16, most);
  return columns > most && 4 * even < 3 * most ? most : even;
}

struct Place {
  int row, col;
};

// Two neighboring elements: TOGETHER in registers as they lie side by side in memory, or one by one.
template <class T, bool TOGETHER>
struct Neighbors {
  Pack<T, TOGETHER ? 2 : 1> packs[TOGETHER ? 1 : 2];

  __device__ __forceinline__ void set(int i, T x) { packs[TOGETHER ? 0 : i].set(TOGETHER * i, x); }
  __device__ __forceinline__ T get(int i) const {
    return packs[TOGETHER ? 0 : i].get(TOGETHER * i);
  }
  // Both, of 16 bits, out of one word.
  __device__ __forceinline__ void set_word(unsigned word) {
    packs[0].words[0] = TOGETHER ? word : word & 0xFFFF;
    if constexpr (!TOGETHER) packs[1].words[0] = word >> 16;
  }
};

// Where the pairs of results of a lane are, of a warpgroup's 64 rows: lane l of warp w has of each row
// 16 w + l / 4 (and + 8) two neighbors in every eight columns, from 2 (l % 4) on. The first row and
// column are at (row, col); if SWAPPED, rows are C's columns.
template <bool SWAPPED>
struct FragmentPlaces {
  int row, col;

  __device__ __forceinline__ Place operator()(int pair, int neighbor = 0) const {
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    const Place from = since_first(pair, neighbor);
    const int line = row + warp * 16 + lane / 4, across = col + lane % 4 * 2;
    return {(SWAPPED ? across : line) + from.row, (SWAPPED ? line : across) + from.col};
  }

  // How far from the lane's first result that is.
  static __device__ __forceinline__ Place since_first(int pair, int neighbor = 0) {
    const int line = pair % 2 * 8, across = pair / 2 * 8 + neighbor;
    return SWAPPED ? Place{across, line} : Place{line, across};
  }
};

// Asks that what the epilogue of a warpgroup reads for ROWS x COLS results come to the L2 cache, before
// their sums are there: in a wave all blocks would ask for it at the same time. MOVED: TMA brings the
// residual or, where there is none, C.
template <int ROWS, int COLS, class T>
__device__ __forceinline__ void prefetch_lines(const T* X, int ld, int M, int N, Place first) {
  constexpr int SPAN = 128 / sizeof(T), LINES = (COLS + SPAN - 1) / SPAN;
  for (int i = threadIdx.x % 128; i < ROWS * LINES; i += 128) {
    const int row = first.row + i / LINES, col = first.col + i % LINES * SPAN;
    if (row < M && col < N) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(element(X, ld, row, col)));
    }
  }
}
template <int ROWS, int COLS, bool MOVED, class Epilogue>
__device__ __forceinline__ void prefetch_operands(const Epilogue& epilogue,
                                                  const typename Epilogue::Out* C, int ldc, int M,
                                                  int N, Place first) {
  if constexpr (!MOVED || Epilogue::READS_RESIDUAL) {
    if (epilogue.beta != 0.0f) prefetch_lines<ROWS, COLS>(C, ldc, M, N, first);
  }
  if constexpr (Epilogue::READS_RESIDUAL && !MOVED) {
    prefetch_lines<ROWS, COLS>(epilogue.extras.residual, epilogue.extras.ldr, M, N, first);
  }
}

// Registers that a pair of a matrix takes.
template <class T, bool SWAPPED>
constexpr int PAIR_REGISTERS = SWAPPED || sizeof(T) == 4 ? 2 : 1;

// Pairs that are finished at a time: a part of ALL in steps of STEP for which there are registers.
template <class Epilogue, bool SWAPPED, int SPARE>
__host__ __device__ constexpr int pairs_at_once(int all, int step) {
  constexpr int MATRICES = Epilogue::READS_RESIDUAL ? 2 : 1;
  int most = SPARE / MATRICES / PAIR_REGISTERS<typename Epilogue::Out, SWAPPED> / step * step;
  if (most > 16) most = 16;
  if (most > all) most = all;
  return even_part(all, step, most < step ? step : most);
}

// Where no box in shared memory has what the epilogue reads and keeps.
struct NoBox {
  static constexpr bool HOLDS = false;
};

// The results of a warpgroup's 64 x BN sums of a tile of C that begins at (row, col), or, if SWAPPED, of
// one of its transpose; COUNT pairs of a lane at a time. PLAIN: nothing but the sums goes into them.
// SPARE: registers that a thread has for what is read.
template <int BN, int COUNT, bool SWAPPED, bool PLAIN, int SPARE, class Epilogue>
class FinishedFragments {
 public:
  using Out = typename Epilogue::Out;
  using OfBias = typename Epilogue::BiasElement;

  __device__ __forceinline__ FinishedFragments(const float (&sums_)[BN / 2],
                                               const Epilogue& epilogue_, const Out* C_, int ldc_,
                                               int M_, int N_, int row, int col)
      : sums(sums_), epilogue(epilogue_), C(C_), ldc(ldc_), M(M_), N(N_), places{row, col} {
    const int rows = SWAPPED ? BN : 64, cols = SWAPPED ? 64 : BN;
    inside = (SWAPPED ? col : row) + rows <= M && (SWAPPED ? row : col) + cols <= N;
  }

  // Those from a pair on; the calls are in the order of the pairs. A `box` has the residual of these pairs
  // or, where there is none, C, and takes the auxiliary output.
  template <class Box = NoBox>
  __device__ __forceinline__ void finish(int first, float (&x)[COUNT][2], const Box& box = {}) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        x[i][j] = sums[(first + i) * 2 + j];
        if constexpr (PLAIN) x[i][j] = epilogue.finish(x[i][j], 0.0f, 0, 0);
      }
    }
    if constexpr (!PLAIN) finish_with_operands(first, x, box);
  }

 private:
  static constexpr int PER_PAIR = PAIR_REGISTERS<Out, SWAPPED>;
  // Pairs that are read at a time, of one matrix and a bias: as often as results are finished, or less
  // often if there are registers for it, besides those for a second matrix.
  static constexpr int SECOND =
      Epilogue::WRITES_AUXILIARY || Epilogue::READS_RESIDUAL ? COUNT * PER_PAIR : 0;
  static constexpr int READ_PER_PAIR =
      2 * PER_PAIR + (Epilogue::READS_BIAS ? PAIR_REGISTERS<OfBias, SWAPPED> : 0);
  static constexpr int MOST = (SPARE - SECOND) * 2 / READ_PER_PAIR / COUNT * COUNT;
  static constexpr int READ = even_part(BN / 4, COUNT,
                                        MOST < COUNT    ? COUNT
                                        : MOST < BN / 4 ? MOST
                                                        : BN / 4);
  using OfMatrix = Neighbors<Out, !SWAPPED>;
  // What `Epilogue::finish` asks for.
  struct Operands {
    OfBias own_bias;
    Out own_residual;
    OfMatrix& kept;
    int neighbor;
    __device__ __forceinline__ OfBias bias() const { return own_bias; }
    __device__ __forceinline__ Out residual() const { return own_residual; }
    __device__ __forceinline__ void keep(Out x) const { kept.set(neighbor, x); }
  };
  template <int PAIRS>
  struct Matrix {
    OfMatrix pairs[PAIRS];
  };
  // One value for all columns of a wgmma, or for all lines.
  struct Bias {
    static constexpr bool ALONG = Epilogue::BY_COLUMN != SWAPPED;
    Neighbors<OfBias, ALONG> values[ALONG ? READ / 2 : 2];
    __device__ __forceinline__ OfBias get(int pair, int neighbor) const {
      return ALONG ? values[pair / 2].get(neighbor) : values[pair % 2].get(0);
    }
  };

  const float (&sums)[BN / 2];
  const Epilogue& epilogue;
  const Out* const C;
  const int ldc;
  const int M, N;
  const FragmentPlaces<SWAPPED> places;
  // Whether all results are inside of C.
  bool inside;
  // The residual or, where there is none, C.
  Matrix<READ> read;
  Bias bias;

  template <class Box>
  __device__ __forceinline__ void finish_with_operands(int first, float (&x)[COUNT][2],
                                                       const Box& box) {
    const int since = first % READ;
    if (since == 0) read_operands<Box::HOLDS>(first);
    [[maybe_unused]] Matrix<COUNT> boxed = {};
    if constexpr (Box::HOLDS) {
      if (Epilogue::READS_RESIDUAL || epilogue.beta != 0.0f) box.load(boxed.pairs);
    }
    Matrix<COUNT> old = {};
    if constexpr (Epilogue::READS_RESIDUAL) {
      if (epilogue.beta != 0.0f) load(old, C, ldc, first);
    }
    Matrix<COUNT> kept;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const OfMatrix& own = Box::HOLDS ? boxed.pairs[i] : read.pairs[since + i];
      const OfMatrix& before = Epilogue::READS_RESIDUAL ? old.pairs[i] : own;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const Operands operands{bias.get(since + i, j), own.get(j), kept.pairs[i], j};
        x[i][j] = epilogue.finish(x[i][j], widened<float>(before.get(j)), operands);
      }
    }
    if constexpr (Epilogue::WRITES_AUXILIARY && Box::HOLDS) {
      float wide[COUNT][2];
#pragma unroll
      for (int i = 0; i < COUNT; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) wide[i][j] = widened<float>(kept.pairs[i].get(j));
      }
      box.keep(wide);
    } else if constexpr (Epilogue::WRITES_AUXILIARY) {
      store(kept, epilogue.extras.auxiliary, epilogue.extras.ldx, first);
    }
  }

  template <bool BOXED>
  __device__ __forceinline__ void read_operands(int first) {
    read = {};
    bias = {};
    if constexpr (BOXED) {
    } else if constexpr (Epilogue::READS_RESIDUAL) {
      load(read, epilogue.extras.residual, epilogue.extras.ldr, first);
    } else if (epilogue.beta != 0.0f) {
      load(read, C, ldc, first);
    }
    if constexpr (Epilogue::READS_BIAS) load_bias(first);
  }

  // Whether all pairs of a matrix can be moved as they lie in registers.
  __device__ __forceinline__ bool whole(const Out* X, int ld) const {
    const auto place = reinterpret_cast<unsigned long long>(X) | ld * sizeof(Out);
    return inside && (SWAPPED || place % (2 * sizeof(Out)) == 0);
  }

  template <int PAIRS>
  __device__ __forceinline__ void load(Matrix<PAIRS>& found, const Out* X, int ld,
                                       int first) const {
    const Out* from = at(X, ld, places(first));
    if (whole(X, ld)) {
#pragma unroll
      for (int i = 0; i < PAIRS; ++i) {
        OfMatrix& pair = found.pairs[i];
        pair.packs[0].load(at(from, ld, places.since_first(i)));
        if constexpr (SWAPPED) pair.packs[1].load(at(from, ld, places.since_first(i, 1)));
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      Pack<Out, 1> each[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (is_inside(first + i, j)) each[j].load(at(from, ld, places.since_first(i, j)));
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) found.pairs[i].set(j, each[j].get(0));
    }
  }

  __device__ __forceinline__ void store(const Matrix<COUNT>& kept, Out* X, int ld,
                                        int first) const {
    Out* to = at(X, ld, places(first));
    if (whole(X, ld)) {
#pragma unroll
      for (int i = 0; i < COUNT; ++i) {
        const OfMatrix& pair = kept.pairs[i];
        pair.packs[0].store(at(to, ld, places.since_first(i)));
        if constexpr (SWAPPED) pair.packs[1].store(at(to, ld, places.since_first(i, 1)));
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (is_inside(first + i, j)) {
          *at(to, ld, places.since_first(i, j)) = kept.pairs[i].get(j);
        }
      }
    }
  }

  __device__ __forceinline__ void load_bias(int first) {
    const Place place = places(first);
    const int line = Epilogue::BY_COLUMN ? place.col : place.row;
    const int left = (Epilogue::BY_COLUMN ? N : M) - line;
    const OfBias* from = epilogue.bias + line;
    if constexpr (!Bias::ALONG) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (i * 8 < left) bias.values[i].packs[0].load(from + i * 8);
      }
    } else if (inside && reinterpret_cast<unsigned long long>(from) % (2 * sizeof(OfBias)) == 0) {
#pragma unroll
      for (int i = 0; i < READ / 2; ++i) bias.values[i].packs[0].load(from + i * 8);
    } else {
#pragma unroll
      for (int i = 0; i < READ / 2; ++i) {
        Pack<OfBias, 1> each[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (i * 8 + j < left) each[j].load(from + i * 8 + j);
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) bias.values[i].set(j, each[j].get(0));
      }
    }
  }

  __device__ __forceinline__ bool is_inside(int pair, int neighbor) const {
    const Place place = places(pair, neighbor);
    return place.row < M && place.col < N;
  }

  template <class T>
  static __device__ __forceinline__ T* at(T* X, int ld, Place place) {
    return element(X, ld, place.row, place.col);
  }
};
