// The write-back of sums that lie as wgmma leaves them: by TMA through shared memory, or where C's rows
// are not aligned for that, from the registers.
#pragma once

#include "epilogue.cuh"
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

// Whether an epilogue reads or writes matrices and vectors besides C.
template <class Epilogue>
constexpr bool READS = true;
template <class Activation, class Out, class Sum>
constexpr bool READS<Epilogue<NO_BIAS, Activation, 0, Out, Sum>> = false;
template <class Activation, class Out, class Sum>
constexpr bool READS<Epilogue<NO_BIAS, Activation, SCALE, Out, Sum>> = false;

// The most columns that divide a tile's, in sixteens. Fewer than that are stored from the registers.
__device__ constexpr int store_columns(int columns, int most) {
  if (columns < 16) return columns;
  int found = most;
  while (columns % found) found -= 16;
  return found;
}

// From the registers, element by element: a warpgroup's 64 x BN sums of a tile of C that begins at
// (row, col), or, if SWAPPED, of one of its transpose.
template <int BN, bool SWAPPED, class Epilogue>
__device__ __forceinline__ void store_fragments(const float (&sums)[BN / 2],
                                                const Epilogue& epilogue, typename Epilogue::Out* C,
                                                int ldc, int M, int N, int row, int col) {
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int line = row + warp * 16 + lane / 4 + half * 8;
#pragma unroll
    for (int c = 0; c < BN; c += 8) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int across = col + c + lane % 4 * 2 + i;
        const int m = SWAPPED ? across : line, n = SWAPPED ? line : across;
        if (m < M && n < N) {
          epilogue.store(element(C, ldc, m, n), sums[c / 2 + half * 2 + i], m, n);
        }
      }
    }
  }
}

// A warpgroup's 64 x BN sums. Lane l of warp w has of each row 16 w + l / 4 (and + 8) two neighbors in
// every eight columns, from 2 (l % 4) on.
template <int BN, int BUFFERS, class Epilogue>
struct FragmentStore {
  using Out = typename Epilogue::Out;
  // Columns of a box: up to 128 bytes of them. Its lines are as far apart as the swizzle spans.
  static constexpr int COLS = store_columns(BN, 128 / sizeof(Out));
  static constexpr int LINE_BYTES = COLS * sizeof(Out);
  static constexpr int PITCH = LINE_BYTES <= 32 ? 32 : LINE_BYTES <= 64 ? 64 : 128;
  static constexpr int BOX_BYTES = 64 * PITCH;
  static_assert(BN % COLS == 0, "boxes of C must not reach into the next tile");

  // A warpgroup's buffers, if results leave through them.
  template <bool USED>
  struct alignas(1024) Buffers {
    unsigned char bytes[BUFFERS][USED ? BOX_BYTES : 16];
  };

  // What two neighbors become; those outside of C are left as they are, for nothing may be read there.
  static __device__ __forceinline__ void finish(const Epilogue& epilogue, const Out* C, int ldc,
                                                int M, int N, int row, int col, float (&x)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (row < M && col + i < N) {
        float old = 0.0f;
        if (epilogue.beta != 0.0f) old = widened<float>(*element(C, ldc, row, col + i));
        x[i] = epilogue.finish(x[i], old, row, col + i);
      }
    }
  }

  // By TMA. `buffers` are this warpgroup's, of which `next` is the one to be used; `barrier` is its named
  // barrier.
  template <bool BATCHED>
  static __device__ __forceinline__ void by_tma(const float (&sums)[BN / 2], const TensorMap& map,
                                                unsigned char (&buffers)[BUFFERS][BOX_BYTES],
                                                int& next, int barrier, const Epilogue& epilogue,
                                                const Out* C, int ldc, int M, int N, int product,
                                                int row, int col) {
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    const auto store = [&]<bool PLAIN>() {
#pragma unroll
      for (int box = 0; box < BN / COLS; ++box) {
        const unsigned to = shared_address(buffers[next]);
        next = (next + 1) % BUFFERS;
#pragma unroll
        for (int c = 0; c < COLS; c += 16) {
          unsigned words[4];
#pragma unroll
          for (int part = 0; part < 4; ++part) {
            const int at = (box * COLS + c) / 2 + part * 2;
            const int line = warp * 16 + lane / 4 + part % 2 * 8;
            const int across = c + part / 2 * 8 + lane % 4 * 2;
            float x[2] = {sums[at], sums[at + 1]};
            if constexpr (PLAIN) {
              x[0] = epilogue.finish(x[0], 0.0f, row, col);
              x[1] = epilogue.finish(x[1], 0.0f, row, col);
            } else {
              finish(epilogue, C, ldc, M, N, row + line, col + box * COLS + across, x);
            }
            if constexpr (sizeof(Out) == 2) {
              words[part] = pair<Out>(x[0], x[1]);
            } else {
              store_pair(to + swizzled(line, across * sizeof(Out)), x);
            }
          }
          if constexpr (sizeof(Out) == 2) {
            // Matrices are in the order of the words: the second is below the first.
            stmatrix(to + swizzled(warp * 16 + lane % 16, (c + lane / 16 * 8) * sizeof(Out)),
                     words);
          }
        }
        fence_for_tma();
        // The buffer to be used next is free when the store before this one has read it.
        if (thread == 0) tma_wait_read<BUFFERS - 2>();
        named_barrier_sync<128>(barrier);
        if (thread == 0) {
          if (row < M && col + box * COLS < N) {
            tma_store<BATCHED>(map, {col + box * COLS, row, product}, to);
          }
          tma_commit();
        }
      }
    };
    if (!READS<Epilogue> && epilogue.beta == 0.0f) {
      store.template operator()<true>();
    } else {
      store.template operator()<false>();
    }
  }

 private:
  // Where a byte of a line lies in a box that TMA stores with this swizzle.
  static __device__ __forceinline__ unsigned swizzled(int line, int byte) {
    constexpr unsigned CHUNKS = PITCH / 16;
    const unsigned place = line * PITCH + byte;
    return place ^ (place >> 7 & (CHUNKS - 1)) << 4;
  }

  static __device__ __forceinline__ void store_pair(unsigned to, const float (&x)[2]) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x[0]), "f"(x[1]) : "memory");
  }
};
