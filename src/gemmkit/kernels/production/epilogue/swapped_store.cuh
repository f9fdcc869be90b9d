// The write-back of a warpgroup's sums of the transpose of a tile.
#pragma once

#include "epilogue/moved_boxes.cuh"

// A warpgroup's sums of the transpose of a tile of C, through its buffers, of which `next` is the one to
// be used: 64 columns of C by BN of its rows. A line has all 64 columns of elements of 8 or 16 bits;
// those of 32 bits are in two boxes, whose lines have 128 bytes.
template <int BN, int BUFFERS, WriteBack WAY, int SPARE, class Epilogue, int LINE>
struct SwappedStore {
  using Out = typename Epilogue::Out;
  static constexpr bool FUSED = WAY == WriteBack::FUSED_BY_TMA;
  static constexpr int PITCH = sizeof(Out) == 1 ? 64 : 128;
  static constexpr int SPAN = PITCH / sizeof(Out), BESIDE = 64 / SPAN;
  static constexpr int MOST = (FUSED ? LINE / 2 : BESIDE == 1 ? 96 : 64) / BESIDE;
  static constexpr int LINES = even_part(BN, 8, BN < MOST ? BN : MOST);
  static constexpr int BOX_BYTES = LINES * PITCH;
  static constexpr int READ_LINES = 4 * pairs_at_once<Epilogue, true, SPARE>(LINES / 4, 2);
  struct alignas(1024) Buffers {
    unsigned char bytes[BUFFERS * MATRICES_OF_BOX<FUSED, Epilogue>][BESIDE * BOX_BYTES];
  };

  // `row` is the tile's first column of C, `col` its first row.
  template <bool BATCHED>
  static __device__ __forceinline__ void store(const float (&sums)[BN / 2], const TensorMap& map,
                                               Buffers& buffers, int& next, int barrier,
                                               const Epilogue& epilogue, Out* C, int ldc, int M,
                                               int N, int product, int row, int col) {
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
          store_part(to, part, x);
        }
        const int first = col + box * LINES;
        if constexpr (WAY == WriteBack::BY_TMA) {
          send_box<BUFFERS, BATCHED, BESIDE, SPAN, BOX_BYTES>(map, {row, first, product}, to,
                                                              barrier, row < N && first < M, N);
        } else {
#pragma unroll
          for (int beside = 0; beside < BESIDE; ++beside) {
            copy_box<LINES, SPAN, PITCH>(C, ldc, M, N, first, row + beside * SPAN,
                                         to + beside * BOX_BYTES, barrier);
          }
        }
      }
    };
    store_by_plainness(epilogue, store);
  }

  // As those of `FragmentStore`.
  static constexpr int BOXES = BN / LINES;
  static __device__ __forceinline__ BoxPlace place_of(int box, int row, int col) {
    return {row, col + box * LINES, 0};
  }
  static __device__ __forceinline__ void fill(const float (&sums)[BN / 2],
                                              BoxesToFill<BUFFERS>& boxes, Buffers& buffers,
                                              const Epilogue& epilogue, Out* C, int ldc, int M,
                                              int N, int row, int col) {
    static_assert(sizeof(Out) == 2, "boxes are read by ldmatrix");
    constexpr int PAIRS = READ_LINES / 4;
    FinishedFragments<BN, PAIRS, true, false, SPARE, Epilogue> results(sums, epilogue, C, ldc, M, N,
                                                                       row, col);
#pragma unroll
    for (int box = 0; box < BOXES; ++box) {
      const int buffer = boxes.take();
      const unsigned to = shared_address(buffers.bytes[buffer]);
#pragma unroll
      for (int part = 0; part < LINES; part += READ_LINES) {
        const Lines lines{to, to + BUFFERS * BESIDE * BOX_BYTES, part};
        float x[PAIRS][2];
        results.finish((box * LINES + part) / 4, x, lines);
        store_part(to, part, x);
      }
      boxes.pass_on();
    }
  }

 private:
  // Lines of a box from `first` on, as `FinishedFragments` reads and keeps them.
  struct Lines {
    static constexpr bool HOLDS = true;
    unsigned box, kept;
    int first;

    template <int PAIRS>
    __device__ __forceinline__ void load(Neighbors<Out, false> (&pairs)[PAIRS]) const {
#pragma unroll
      for (int c = 0; c < PAIRS; c += 2) load_lines(box, first + c * 4, pairs + c);
    }
    template <int PAIRS>
    __device__ __forceinline__ void keep(const float (&x)[PAIRS][2]) const {
      store_part(kept, first, x);
    }
  };

  // Where a lane's first word of 32 bits goes in the eight lines from `line` on, and of both halves of the
  // next columns: columns go to eight neighboring words, rows to lines two apart. The next row is in the
  // next line and chunk, the other half's column two chunks on.
  static __device__ __forceinline__ unsigned word_place(unsigned box, int line, int half,
                                                        int neighbor) {
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    const unsigned place = warp / 2 * BOX_BYTES +
                           swizzled<PITCH>(lane % 4 * 2, (warp % 2 * 16 + lane / 4) * sizeof(Out));
    const unsigned own = (box + place) ^ half * 2 * 16;
    return (neighbor ? own ^ (PITCH | 16) : own) + line * PITCH;
  }
  // The line of eight, from `line` on, that a lane gives for matrices of 16 bits.
  static __device__ __forceinline__ unsigned matrix_place(unsigned box, int line) {
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    const int column = warp * 16 + lane / 8 % 2 * 8;
    return box + swizzled<PITCH>(line + lane % 8, column * sizeof(Out));
  }

  // Lines of a box from `first` on.
  template <int PAIRS>
  static __device__ __forceinline__ void store_part(unsigned box, int first,
                                                    const float (&x)[PAIRS][2]) {
#pragma unroll
    for (int c = 0; c < PAIRS * 4; c += 8) {
      if constexpr (sizeof(Out) == 1) {
        store_bytes(box, first + c, x[c / 4], x[c / 4 + 1]);
        continue;
      }
      [[maybe_unused]] unsigned words[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto& two = x[c / 4 + half];
        if constexpr (sizeof(Out) == 2) {
          words[half] = pair<Out>(two[0], two[1]);
        } else if constexpr (BESIDE > 1) {
          store_word(word_place(box, first + c, half, 0), two[0]);
          store_word(word_place(box, first + c, half, 1), two[1]);
        }
      }
      if constexpr (sizeof(Out) == 2) stmatrix_transposed(matrix_place(box, first + c), words);
    }
  }

  // Reads eight lines, from `line` on, from where `store_part` stores them.
  static __device__ __forceinline__ void load_lines(unsigned box, int line,
                                                    Neighbors<Out, false>* pairs) {
    unsigned words[2];
    load_matrices_transposed(matrix_place(box, line), words);
#pragma unroll
    for (int half = 0; half < 2; ++half) pairs[half].set_word(words[half]);
  }

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
