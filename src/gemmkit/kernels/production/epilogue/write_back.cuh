// How sums that lie as wgmma leaves them are written back: through boxes in shared memory, from where
// TMA stores them, or the warps where C's rows are not aligned for that; or from the registers.
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

// Reads what they store, each lane its own words.
__device__ __forceinline__ void load_matrices(unsigned line, unsigned (&words)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(line)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(unsigned line, unsigned (&words)[2]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(words[0]), "=r"(words[1])
               : "r"(line)
               : "memory");
}

// How results leave a warpgroup. FUSED_BY_TMA: TMA moves what the epilogue reads and keeps besides, too;
// see moved_boxes.cuh.
enum class WriteBack { FROM_REGISTERS, FROM_SHARED, BY_TMA, FUSED_BY_TMA };

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
__device__ __forceinline__ uint4 load_shared<uint4>(unsigned from) {
  uint4 words;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(from)
               : "memory");
  return words;
}
template <>
__device__ __forceinline__ unsigned load_shared<unsigned>(unsigned from) {
  unsigned word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
  return word;
}

// Before a box is stored: the buffer to be used next is free when the store before this one has read
// it. The barrier that follows tells all threads.
template <int BUFFERS>
__device__ __forceinline__ void wait_for_buffer() {
  if (threadIdx.x % 128 == 0) tma_wait_read<BUFFERS - 2>();
}

// Stores a box that a warpgroup has written to shared memory, or several side by side, of SPAN columns
// and BYTES each: those of which the first column is not outside of C. One of the BUFFERS is then
// free. `barrier` is the warpgroup's named barrier.
template <int BUFFERS, bool BATCHED, int BOXES = 1, int SPAN = 0, int BYTES = 0>
__device__ __forceinline__ void send_box(const TensorMap& map, BoxPlace to, unsigned from,
                                         int barrier, bool inside, int N = 0) {
  fence_for_tma();
  wait_for_buffer<BUFFERS>();
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

// Copies the elements of such a box that lie inside of C, as many at once as rows begin and end at:
// vectors where these are ALIGNED. The next box is in another buffer, and its barrier shows that this
// one has been read.
template <int LINES, int COLS, int PITCH, bool ALIGNED = false, class Out>
__device__ __forceinline__ void copy_box(Out* C, int ldc, int M, int N, int row, int col,
                                         unsigned from, int barrier) {
  named_barrier_sync<128>(barrier);
  const auto copy = [&]<class Unit>() {
    constexpr int PER_UNIT = sizeof(Unit) / sizeof(Out), UNITS = COLS / PER_UNIT;
#pragma unroll 2
    for (int i = threadIdx.x % 128; i < LINES * UNITS; i += 128) {
      const int line = i / UNITS, c = i % UNITS * PER_UNIT;
      if (row + line < M && col + c < N) {
        const unsigned place = from + swizzled<PITCH>(line, c * sizeof(Out));
        *reinterpret_cast<Unit*>(element(C, ldc, row + line, col + c)) = load_shared<Unit>(place);
      }
    }
  };
  if constexpr (ALIGNED) return copy.template operator()<uint4>();
  const auto places = reinterpret_cast<unsigned long long>(C) | ldc * sizeof(Out) | N * sizeof(Out);
  if (places % sizeof(uint4) == 0) return copy.template operator()<uint4>();
  if constexpr (sizeof(Out) < sizeof(unsigned)) {
    if (places % sizeof(unsigned) != 0) {
      if (sizeof(Out) == 2 || places % 2 == 0) return copy.template operator()<unsigned short>();
      if constexpr (sizeof(Out) == 1) return copy.template operator()<unsigned char>();
    }
  }
  copy.template operator()<unsigned>();
}
