// The write-back of a warpgroup's sums: from the registers, or through boxes of 64 lines.
#pragma once

#include "epilogue/moved_boxes.cuh"

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
template <int BN, int BUFFERS, WriteBack WAY, int SPARE, class Epilogue, int LINE>
struct FragmentStore {
  using Out = typename Epilogue::Out;
  static constexpr bool FUSED = WAY == WriteBack::FUSED_BY_TMA;
  // Columns of a box: up to LINE bytes of them. The threads copy the rest. Lines are as far apart as the
  // swizzle spans.
  static constexpr int COLS =
      FUSED ? halved_part(BN, LINE / sizeof(Out)) : box_columns(BN, LINE / sizeof(Out));
  static constexpr int REST = BN % COLS;
  static constexpr int LINE_BYTES = COLS * sizeof(Out);
  static constexpr int PITCH = LINE_BYTES <= 32 ? 32 : LINE_BYTES <= 64 ? 64 : 128;
  static constexpr int READ_COLS =
      4 * pairs_at_once<Epilogue, false, SPARE>((REST ? halved_part(REST, COLS) : COLS) / 4, 4);
  struct alignas(1024) Buffers {
    unsigned char bytes[BUFFERS * MATRICES_OF_BOX<FUSED, Epilogue>][64 * PITCH];
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
      const auto put = [&](int begin, int columns) {
        const unsigned to = shared_address(buffers.bytes[next]);
        next = (next + 1) % BUFFERS;
#pragma unroll
        for (int part = 0; part < columns; part += READ_COLS) {
          float x[PAIRS][2];
          results.finish((begin + part) / 4, x);
          store_part(to, part, x);
        }
        return to;
      };
#pragma unroll
      for (int begin = 0; begin + COLS <= BN; begin += COLS) {
        const unsigned box = put(begin, COLS);
        const int first = col + begin;
        if constexpr (WAY == WriteBack::BY_TMA) {
          send_box<BUFFERS, BATCHED>(map, {first, row, product}, box, barrier,
                                     row < M && first < N);
        } else {
          copy_box<64, COLS, PITCH>(C, ldc, M, N, row, first, box, barrier);
        }
      }
      if constexpr (REST > 0) {
        const unsigned box = put(BN - REST, REST);
        constexpr bool BESIDE_STORES = WAY == WriteBack::BY_TMA;
        if constexpr (BESIDE_STORES) wait_for_buffer<BUFFERS>();
        copy_box<64, REST, PITCH, BESIDE_STORES>(C, ldc, M, N, row, col + BN - REST, box, barrier);
        // An empty group: the waits of later stores count this box, too.
        if (BESIDE_STORES && threadIdx.x % 128 == 0) tma_commit();
      }
    };
    store_by_plainness(epilogue, store);
  }

  // Boxes of the warpgroup's sums, beside each other, and of as many as `BoxMover` moves of them.
  static constexpr int BOXES = BN / COLS, BESIDE = 1, SPAN = COLS, BOX_BYTES = 64 * PITCH;
  static __device__ __forceinline__ BoxPlace place_of(int box, int row, int col) {
    return {col + box * COLS, row, 0};
  }

  // The same where a warp moves the boxes.
  static __device__ __forceinline__ void fill(const float (&sums)[BN / 2],
                                              BoxesToFill<BUFFERS>& boxes, Buffers& buffers,
                                              const Epilogue& epilogue, Out* C, int ldc, int M,
                                              int N, int row, int col) {
    static_assert(sizeof(Out) == 2, "boxes are read by ldmatrix");
    static_assert(LINE_BYTES == PITCH, "a box has all bytes that TMA announces");
    constexpr int PAIRS = READ_COLS / 4;
    FinishedFragments<BN, PAIRS, false, false, SPARE, Epilogue> results(sums, epilogue, C, ldc, M,
                                                                        N, row, col);
#pragma unroll
    for (int box = 0; box < BOXES; ++box) {
      const int buffer = boxes.take();
      const unsigned to = shared_address(buffers.bytes[buffer]);
#pragma unroll
      for (int part = 0; part < COLS; part += READ_COLS) {
        const Columns columns{to, to + BUFFERS * BOX_BYTES, part};
        float x[PAIRS][2];
        results.finish((box * COLS + part) / 4, x, columns);
        store_part(to, part, x);
      }
      boxes.pass_on();
    }
  }

 private:
  // Columns of a box from `col` on, as `FinishedFragments` reads and keeps them.
  struct Columns {
    static constexpr bool HOLDS = true;
    unsigned box, kept;
    int col;

    template <int PAIRS>
    __device__ __forceinline__ void load(Neighbors<Out, true> (&pairs)[PAIRS]) const {
#pragma unroll
      for (int c = 0; c < PAIRS; c += 4) load_columns(box, col + c * 4, pairs + c);
    }
    template <int PAIRS>
    __device__ __forceinline__ void keep(const float (&x)[PAIRS][2]) const {
      store_part(kept, col, x);
    }
  };

  template <int PAIRS>
  static __device__ __forceinline__ void store_part(unsigned box, int col,
                                                    const float (&x)[PAIRS][2]) {
#pragma unroll
    for (int c = 0; c < PAIRS; c += 4) {
      store_columns(box, col + c * 4, reinterpret_cast<const float (&)[4][2]>(x[c]));
    }
  }

  // Reads sixteen columns from where `store_columns` stores them.
  static __device__ __forceinline__ void load_columns(unsigned box, int col,
                                                      Neighbors<Out, true>* pairs) {
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    unsigned words[4];
    const int line = warp * 16 + lane % 16;
    load_matrices(box + swizzled<PITCH>(line, (col + lane / 16 * 8) * sizeof(Out)), words);
#pragma unroll
    for (int part = 0; part < 4; ++part) pairs[part].set_word(words[part]);
  }

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
