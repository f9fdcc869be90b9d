// The write-back of sums that lie as wgmma leaves them: through shared memory, from where TMA stores
// them, or the warps where C's rows are not aligned for that; or from the registers.
#pragma once

#include "epilogue.cuh"
#include "epilogue/operands.cuh"
#include "float8.cuh"
#include "tma.cuh"

// Two neighbors of 16 bits in one word, the first in the lower half.
template <class Out>
__device__ __forceinline__ unsigned pair(float first, float second);
template <>
__device__ __forceinline__ unsigned pair<Half>(float first, float second) {
  unsigned word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  return word;
}
template <>
__device__ __forceinline__ unsigned pair<BFloat16>(float first, float second) {
  unsigned word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  return word;
}

// Stores four 8 x 8 matrices of 16-bit elements to shared memory. A lane's word has two neighbors of
// each; it gives the address of one line: lanes 0-7 those of the first matrix, and so on.
__device__ __forceinline__ void stmatrix(unsigned line, const unsigned (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(line),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

// Stores the transposes of two such matrices: lanes 0-7 give the addresses of the first one's lines,
// lanes 8-15 those of the second's.
__device__ __forceinline__ void stmatrix_transposed(unsigned line, const unsigned (&words)[2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(line),
               "r"(words[0]), "r"(words[1])
               : "memory");
}

// How results leave a warpgroup.
enum class WriteBack { FROM_REGISTERS, FROM_SHARED, BY_TMA };

// Whether an epilogue reads or writes matrices and vectors besides C.
template <class Epilogue>
constexpr bool READS = true;
template <class Activation, class Out, class Sum>
constexpr bool READS<Epilogue<NO_BIAS, Activation, 0, Out, Sum>> = false;
template <class Activation, class Out, class Sum>
constexpr bool READS<Epilogue<NO_BIAS, Activation, SCALE, Out, Sum>> = false;
template <class Activation, class Out, class Sum>
constexpr bool READS<Epilogue<NO_BIAS, Activation, SCALE | SCALE_IN_MEMORY, Out, Sum>> = false;

// Whether nothing but the sums goes into the results.
template <class Epilogue>
__device__ __forceinline__ bool is_plain(const Epilogue& epilogue) {
  return !READS<Epilogue> && epilogue.beta == 0.0f;
}

// Calls `store`, which takes as a template argument whether nothing but the sums goes into the results.
template <class Epilogue, class Call>
__device__ __forceinline__ void store_by_plainness(const Epilogue& epilogue, const Call& store) {
  if (is_plain(epilogue)) {
    store.template operator()<true>();
  } else {
    store.template operator()<false>();
  }
}

// Where a byte of a line lies in a box whose lines lie PITCH bytes apart, swizzled over as many.
template <int PITCH>
__device__ __forceinline__ unsigned swizzled(int line, int byte) {
  constexpr unsigned CHUNKS = PITCH / 16;
  const unsigned place = line * PITCH + byte;
  return place ^ (place >> 7 & (CHUNKS - 1)) << 4;
}

template <class Word>
__device__ __forceinline__ Word load_shared(unsigned from);
template <>
__device__ __forceinline__ unsigned char load_shared<unsigned char>(unsigned from) {
  unsigned short byte;
  asm volatile("ld.shared.u8 %0, [%1];" : "=h"(byte) : "r"(from) : "memory");
  return static_cast<unsigned char>(byte);
}
template <>
__device__ __forceinline__ unsigned short load_shared<unsigned short>(unsigned from) {
  unsigned short word;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(word) : "r"(from) : "memory");
  return word;
}
template <>
__device__ __forceinline__ unsigned load_shared<unsigned>(unsigned from) {
  unsigned word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
  return word;
}

// Stores a box that a warpgroup has written to shared memory, or several side by side, of SPAN columns
// and BYTES each: those of which the first column is not outside of C. One of the BUFFERS is then
// free. `barrier` is the warpgroup's named barrier.
template <int BUFFERS, bool BATCHED, int BOXES = 1, int SPAN = 0, int BYTES = 0>
__device__ __forceinline__ void send_box(const TensorMap& map, BoxPlace to, unsigned from,
                                         int barrier, bool inside, int N = 0) {
  fence_for_tma();
  // The buffer to be used next is free when the store before this one has read it.
  if (threadIdx.x % 128 == 0) tma_wait_read<BUFFERS - 2>();
  named_barrier_sync<128>(barrier);
  if (threadIdx.x % 128 == 0) {
    if (inside) tma_store<BATCHED>(map, to, from);
#pragma unroll
    for (int box = 1; box < BOXES; ++box) {
      const BoxPlace beside = {to.inner + box * SPAN, to.outer, to.product};
      if (inside && beside.inner < N) tma_store<BATCHED>(map, beside, from + box * BYTES);
    }
    tma_commit();
  }
}

// Copies the elements of such a box that lie inside of C, a word at once where rows begin and end at words.
// The next box is in another buffer, and its barrier shows that this one has been read.
template <int LINES, int COLS, int PITCH, class Out>
__device__ __forceinline__ void copy_box(Out* C, int ldc, int M, int N, int row, int col,
                                         unsigned from, int barrier) {
  named_barrier_sync<128>(barrier);
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  const auto copy = [&]<class Unit>() {
    constexpr int PER_UNIT = sizeof(Unit) / sizeof(Out);
    for (int line = warp; line < LINES && row + line < M; line += 4) {
      Out* to = element(C, ldc, row + line, col);
      for (int c = lane * PER_UNIT; c < COLS && col + c < N; c += 32 * PER_UNIT) {
        const unsigned place = from + swizzled<PITCH>(line, c * sizeof(Out));
        *reinterpret_cast<Unit*>(to + c) = load_shared<Unit>(place);
      }
    }
  };
  const auto place = reinterpret_cast<unsigned long long>(C) | ldc * sizeof(Out);
  if constexpr (sizeof(Out) == 1) {
    const auto bits = place | N;
    if (bits % 4 == 0) return copy.template operator()<unsigned>();
    if (bits % 2 == 0) return copy.template operator()<unsigned short>();
    return copy.template operator()<unsigned char>();
  }
  const bool words = place % 4 == 0;
  if (sizeof(Out) == 2 && !(words && N % 2 == 0)) {
    copy.template operator()<unsigned short>();
  } else {
    copy.template operator()<unsigned>();
  }
}

// From the registers, element by element: a warpgroup's 64 x BN sums of a tile of C that begins at
// (row, col), or, if SWAPPED, of one of its transpose.
template <int BN, bool SWAPPED, int SPARE, class Epilogue>
__device__ __forceinline__ void store_fragments(const float (&sums)[BN / 2],
                                                const Epilogue& epilogue, typename Epilogue::Out* C,
                                                int ldc, int M, int N, int row, int col) {
  using Out = typename Epilogue::Out;
  const auto store = [&]<bool PLAIN>() {
    constexpr int PAIRS = BN / 4, COUNT = pairs_at_once<Epilogue, SWAPPED, SPARE>(PAIRS, 2);
    FinishedFragments<BN, COUNT, SWAPPED, PLAIN, SPARE, Epilogue> results(sums, epilogue, C, ldc, M,
                                                                          N, row, col);
    const FragmentPlaces<SWAPPED> places{row, col};
#pragma unroll
    for (int first = 0; first < PAIRS; first += COUNT) {
      float x[COUNT][2];
      results.finish(first, x);
#pragma unroll
      for (int i = 0; i < COUNT; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const Place at = places(first + i, j);
          if (at.row < M && at.col < N)
            *element(C, ldc, at.row, at.col) = Narrowed<Out>::of(x[i][j]);
        }
      }
    }
  };
  store_by_plainness(epilogue, store);
}

// A warpgroup's 64 x BN sums, through its buffers, of which `next` is the one to be used.
template <int BN, int BUFFERS, WriteBack WAY, int SPARE, class Epilogue>
struct FragmentStore {
  using Out = typename Epilogue::Out;
  // Columns of a box: up to 128 bytes of them. Its lines are as far apart as the swizzle spans.
  static constexpr int COLS = even_part(BN, 16, 128 / sizeof(Out));
  static constexpr int LINE_BYTES = COLS * sizeof(Out);
  static constexpr int PITCH = LINE_BYTES <= 32 ? 32 : LINE_BYTES <= 64 ? 64 : 128;
  static constexpr int READ_COLS = 4 * pairs_at_once<Epilogue, false, SPARE>(COLS / 4, 4);
  struct alignas(1024) Buffers {
    unsigned char bytes[BUFFERS][64 * PITCH];
  };

  template <bool BATCHED>
  static __device__ __forceinline__ void store(const float (&sums)[BN / 2], const TensorMap& map,
                                               Buffers& buffers, int& next, int barrier,
                                               const Epilogue& epilogue, Out* C, int ldc, int M,
                                               int N, int product, int row, int col) {
    const auto store = [&]<bool PLAIN>() {
      constexpr int PAIRS = READ_COLS / 4;
      FinishedFragments<BN, PAIRS, false, PLAIN, SPARE, Epilogue> results(sums, epilogue, C, ldc, M,
                                                                          N, row, col);
#pragma unroll
      for (int box = 0; box < BN / COLS; ++box) {
        const unsigned to = shared_address(buffers.bytes[next]);
        next = (next + 1) % BUFFERS;
#pragma unroll
        for (int part = 0; part < COLS; part += READ_COLS) {
          float x[PAIRS][2];
          results.finish((box * COLS + part) / 4, x);
#pragma unroll
          for (int c = 0; c < READ_COLS; c += 16) {
            store_columns(to, part + c, reinterpret_cast<float (&)[4][2]>(x[c / 4]));
          }
        }
        const int first = col + box * COLS;
        if constexpr (WAY == WriteBack::BY_TMA) {
          send_box<BUFFERS, BATCHED>(map, {first, row, product}, to, barrier, row < M && first < N);
        } else {
          copy_box<64, COLS, PITCH>(C, ldc, M, N, row, first, to, barrier);
        }
      }
    };
    store_by_plainness(epilogue, store);
  }

 private:
  // Sixteen columns of a box, from `col` on.
  static __device__ __forceinline__ void store_columns(unsigned box, int col,
                                                       const float (&x)[4][2]) {
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    if constexpr (sizeof(Out) == 1) {
      // Two neighbors in each eight columns become four by exchange with the next lane: an even lane's are
      // in the first eight, an odd one's in the others.
      const bool odd = lane % 2;
      unsigned both[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        both[half] = byte_pair<Out>(x[half][0], x[half][1]) |
                     byte_pair<Out>(x[half + 2][0], x[half + 2][1]) << 16;
      }
      const unsigned given = __byte_perm(both[0], both[1], odd ? 0x5410 : 0x7632);
      const unsigned taken = __shfl_xor_sync(~0u, given, 1);
      const unsigned words[2] = {__byte_perm(both[0], taken, odd ? 0x3254 : 0x5410),
                                 __byte_perm(both[1], taken, odd ? 0x3276 : 0x7610)};
      const int across = col + odd * 8 + lane % 4 / 2 * 4;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned to = box + swizzled<PITCH>(warp * 16 + lane / 4 + half * 8, across);
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(words[half]) : "memory");
      }
    } else if constexpr (sizeof(Out) == 2) {
      unsigned words[4];
#pragma unroll
      for (int part = 0; part < 4; ++part) words[part] = pair<Out>(x[part][0], x[part][1]);
      // Matrices are in the order of the words: the second is below the first.
      const int line = warp * 16 + lane % 16;
      stmatrix(box + swizzled<PITCH>(line, (col + lane / 16 * 8) * sizeof(Out)), words);
    } else {
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const int line = warp * 16 + lane / 4 + part % 2 * 8;
        const int across = col + part / 2 * 8 + lane % 4 * 2;
        const unsigned to = box + swizzled<PITCH>(line, across * sizeof(Out));
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x[part][0]), "f"(x[part][1])
                     : "memory");
      }
    }
  }
};

// The same of the transpose of a tile of C: 64 columns of C by BN of its rows. A line has all 64 columns of
// elements of 8 or 16 bits; those of 32 bits are in two boxes, whose lines have 128 bytes.
template <int BN, int BUFFERS, WriteBack WAY, int SPARE, class Epilogue>
struct SwappedStore {
  using Out = typename Epilogue::Out;
  static constexpr int PITCH = sizeof(Out) == 1 ? 64 : 128;
  static constexpr int SPAN = PITCH / sizeof(Out), BOXES = 64 / SPAN;
  static constexpr int MOST = BOXES == 1 ? 96 : 32, LINES = even_part(BN, 8, BN < MOST ? BN : MOST);
  static constexpr int BOX_BYTES = LINES * PITCH;
  static constexpr int READ_LINES = 4 * pairs_at_once<Epilogue, true, SPARE>(LINES / 4, 2);
  struct alignas(1024) Buffers {
    unsigned char bytes[BUFFERS][BOXES * BOX_BYTES];
  };

  // `row` is the tile's first column of C, `col` its first row.
  template <bool BATCHED>
  static __device__ __forceinline__ void store(const float (&sums)[BN / 2], const TensorMap& map,
                                               Buffers& buffers, int& next, int barrier,
                                               const Epilogue& epilogue, Out* C, int ldc, int M,
                                               int N, int product, int row, int col) {
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    // Where a lane's first word goes, of 32 bits.
    [[maybe_unused]] const unsigned place =
        warp / 2 * BOX_BYTES +
        swizzled<PITCH>(lane % 4 * 2, (warp % 2 * 16 + lane / 4) * sizeof(Out));
    const auto store = [&]<bool PLAIN>() {
      constexpr int PAIRS = READ_LINES / 4;
      FinishedFragments<BN, PAIRS, true, PLAIN, SPARE, Epilogue> results(sums, epilogue, C, ldc, M,
                                                                         N, row, col);
#pragma unroll
      for (int box = 0; box < BN / LINES; ++box) {
        const unsigned to = shared_address(buffers.bytes[next]);
        next = (next + 1) % BUFFERS;
#pragma unroll
        for (int part = 0; part < LINES; part += READ_LINES) {
          float x[PAIRS][2];
          results.finish((box * LINES + part) / 4, x);
#pragma unroll
          for (int c = 0; c < READ_LINES; c += 8) {
            if constexpr (sizeof(Out) == 1) {
              store_bytes(to, part + c, x[c / 4], x[c / 4 + 1]);
              continue;
            }
            [[maybe_unused]] unsigned words[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const auto& two = x[c / 4 + half];
              if constexpr (sizeof(Out) == 2) {
                words[half] = pair<Out>(two[0], two[1]);
              } else if constexpr (BOXES > 1) {
                // Columns go to eight neighboring words, rows to lines two apart: the next row to the
                // next line and chunk, the other half's column two chunks on.
                const unsigned own = (to + place) ^ half * 2 * 16;
                store_word(own + (part + c) * PITCH, two[0]);
                store_word((own ^ (PITCH | 16)) + (part + c) * PITCH, two[1]);
              }
            }
            if constexpr (sizeof(Out) == 2) {
              const int column = warp * 16 + lane / 8 % 2 * 8;
              stmatrix_transposed(to + swizzled<PITCH>(part + c + lane % 8, column * sizeof(Out)),
                                  words);
            }
          }
        }
        const int first = col + box * LINES;
        if constexpr (WAY == WriteBack::BY_TMA) {
          send_box<BUFFERS, BATCHED, BOXES, SPAN, BOX_BYTES>(map, {row, first, product}, to,
                                                             barrier, row < N && first < M, N);
        } else {
#pragma unroll
          for (int beside = 0; beside < BOXES; ++beside) {
            copy_box<LINES, SPAN, PITCH>(C, ldc, M, N, first, row + beside * SPAN,
                                         to + beside * BOX_BYTES, barrier);
          }
        }
      }
    };
    store_by_plainness(epilogue, store);
  }

 private:
  // Eight lines of a box, from `line` on: of each, a lane's bytes of two lines become four of one by exchange
  // with the lanes that have its neighbors.
  static __device__ __forceinline__ void store_bytes(unsigned box, int line, const float (&left)[2],
                                                     const float (&right)[2]) {
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32, own = lane / 4;
    unsigned word = byte_pair<Out>(left[0], left[1]) | byte_pair<Out>(right[0], right[1]) << 16;
    // One line of both: two neighbors in each eight columns.
    const bool second = own % 2, after = own / 2 % 2;
    word = __byte_perm(word, __shfl_xor_sync(~0u, word, 4), second ? 0x3715 : 0x6240);
    // Four neighbors in one of the eights.
    word = __byte_perm(word, __shfl_xor_sync(~0u, word, 8), after ? 0x3276 : 0x5410);
    const int across = warp * 16 + after * 8 + own / 4 * 4;
    const unsigned to = box + swizzled<PITCH>(line + lane % 4 * 2 + second, across);
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
  }

  static __device__ __forceinline__ void store_word(unsigned to, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
  }
};

template <bool SWAPPED, int BN, int BUFFERS, WriteBack WAY, int SPARE, class Epilogue>
using BoxStore = Either<SWAPPED, SwappedStore<BN, BUFFERS, WAY, SPARE, Epilogue>,
                        FragmentStore<BN, BUFFERS, WAY, SPARE, Epilogue>>;

// Where results leave from the registers alone.
struct NoStore {
  struct Buffers {};
};
