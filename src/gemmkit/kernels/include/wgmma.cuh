// wgmma (sm_90a): the four warps of a warpgroup multiply a tile of 64 rows of A by up to 256 columns of
// B, both in shared memory, and go on while the tensor core works.
#pragma once

#include "cluster.cuh"
#include "typed.cuh"

// Rows of a product, and bytes of its k: 16 elements of 16 bits.
constexpr int WGMMA_ROWS = 64, WGMMA_BYTES = 32;

// A tile of one operand in shared memory as TMA copies it with a 128-byte swizzle: EXTENT rows of A,
// or columns of B, by DEPTH along k. Boxes of 128 bytes follow each other along the contiguous
// dimension, k if K_MAJOR; in each of them lines of 128 bytes follow along the other one.
template <class In, int EXTENT, int DEPTH, bool K_MAJOR>
struct SwizzledTile {
  static constexpr int LINE_BYTES = 128, SPAN = LINE_BYTES / sizeof(In);
  static constexpr int LINES = K_MAJOR ? EXTENT : DEPTH;
  static constexpr int BOXES = ((K_MAJOR ? DEPTH : EXTENT) + SPAN - 1) / SPAN;
  static constexpr int BOX_BYTES = LINES * LINE_BYTES, BYTES = BOXES * BOX_BYTES;
  static_assert(LINES % 8 == 0, "the swizzle repeats every eight lines");

  // The matrix descriptor of what begins `first` rows (columns) and `k` elements into the tile.
  static __device__ __forceinline__ unsigned long long descriptor(unsigned tile, int first, int k) {
    constexpr unsigned long long STRIDE = 8 * LINE_BYTES / 16,
                                 LEADING = K_MAJOR ? 1 : BOX_BYTES / 16;
    constexpr unsigned long long FORMAT = LEADING << 16 | STRIDE << 32 | 1ull << 62;
    const int box = (K_MAJOR ? k : first) / SPAN, line = K_MAJOR ? first : k;
    const int within = (K_MAJOR ? k : first) % SPAN * sizeof(In);
    // In a cluster the upper bits of a shared address are the block's rank, not part of the field.
    return FORMAT | ((tile + box * BOX_BYTES + line * LINE_BYTES + within) & 0x3FFFF) >> 4;
  }
};

// Orders this warp's earlier accesses to accumulators before the wgmmas that follow.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most PENDING groups of this warp's wgmmas are under way.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// The same, after which `sums` may be used: the compiler must not move that before the wait.
template <int PENDING, int COUNT>
__device__ __forceinline__ void wgmma_wait(float (&sums)[COUNT]) {
  wgmma_wait<PENDING>();
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// Gives sums a content without an instruction: the first product replaces it.
template <int COUNT>
__device__ __forceinline__ void leave_undefined(float (&sums)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "=f"(sums[i]));
}

// A float of which tensor cores read no more than the sign, the exponent and ten bits of the mantissa.
struct Tf32 {
  unsigned bits;
};

template <class One, class Other>
constexpr bool IS_SAME = false;
template <class One>
constexpr bool IS_SAME<One, One> = true;

// One product: sums (+)= A B, 64 x N x 32 bytes; the warpgroup's lanes have N / 2 of the sums each. The
// instruction names all registers of its accumulators, so that every N is text of its own. Only
// operands of 16 bits may have another contiguous dimension than k.
template <class In, int N, bool A_K_MAJOR, bool B_K_MAJOR>
struct Wgmma;

#define EIGHT_FROM(from)                                                                     \
  "+f"(d[from]), "+f"(d[from + 1]), "+f"(d[from + 2]), "+f"(d[from + 3]), "+f"(d[from + 4]), \
      "+f"(d[from + 5]), "+f"(d[from + 6]), "+f"(d[from + 7])
#define REGISTERS_HALF "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define TEXT_HALF "%0, %1, %2, %3"
#define REGISTERS_1 EIGHT_FROM(0)
#define TEXT_1 "%0, %1, %2, %3, %4, %5, %6, %7"
#define REGISTERS_2 REGISTERS_1, EIGHT_FROM(8)
#define TEXT_2 TEXT_1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define REGISTERS_3 REGISTERS_2, EIGHT_FROM(16)
#define TEXT_3 TEXT_2 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define REGISTERS_4 REGISTERS_3, EIGHT_FROM(24)
#define TEXT_4 TEXT_3 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_5 REGISTERS_4, EIGHT_FROM(32)
#define TEXT_5 TEXT_4 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define REGISTERS_6 REGISTERS_5, EIGHT_FROM(40)
#define TEXT_6 TEXT_5 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define REGISTERS_7 REGISTERS_6, EIGHT_FROM(48)
#define TEXT_7 TEXT_6 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define REGISTERS_8 REGISTERS_7, EIGHT_FROM(56)
#define TEXT_8 TEXT_7 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_9 REGISTERS_8, EIGHT_FROM(64)
#define TEXT_9 TEXT_8 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define REGISTERS_10 REGISTERS_9, EIGHT_FROM(72)
#define TEXT_10 TEXT_9 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define REGISTERS_11 REGISTERS_10, EIGHT_FROM(80)
#define TEXT_11 TEXT_10 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define REGISTERS_12 REGISTERS_11, EIGHT_FROM(88)
#define TEXT_12 TEXT_11 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define REGISTERS_13 REGISTERS_12, EIGHT_FROM(96)
#define TEXT_13 TEXT_12 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define REGISTERS_14 REGISTERS_13, EIGHT_FROM(104)
#define TEXT_14 TEXT_13 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define REGISTERS_15 REGISTERS_14, EIGHT_FROM(112)
#define TEXT_15 TEXT_14 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define REGISTERS_16 REGISTERS_15, EIGHT_FROM(120)
#define TEXT_16 TEXT_15 ", %120, %121, %122, %123, %124, %125, %126, %127"

#define WGMMA_OF(TYPE, SIXTEENS, COLUMNS, DEPTH, A, B, KEEP, MAJORS, ...)         \
  asm volatile(                                                                   \
      "{\n"                                                                       \
      ".reg .pred keep;\n"                                                        \
      "setp.ne.b32 keep, %" KEEP                                                  \
      ", 0;\n"                                                                    \
      "wgmma.mma_async.sync.aligned.m64n" COLUMNS "k" DEPTH ".f32." TYPE "." TYPE \
      " {" TEXT_##SIXTEENS "}, %" A ", %" B ", keep, 1, 1" MAJORS                 \
                           ";\n"                                                  \
                           "}"                                                    \
      : REGISTERS_##SIXTEENS                                                      \
      : "l"(a), "l"(b), "r"(static_cast<int>(keep))__VA_ARGS__)

// Of operands of 16 bits, and of others.
#define WGMMA_OF_HALVES(TYPE, SIXTEENS, COLUMNS, A, B, KEEP, TRANSPOSE_A, TRANSPOSE_B)       \
  WGMMA_OF(TYPE, SIXTEENS, COLUMNS, "16", A, B, KEEP, ", %" TRANSPOSE_A ", %" TRANSPOSE_B, , \
           "n"(!A_K_MAJOR), "n"(!B_K_MAJOR))
#define WGMMA_OF_LINES(TYPE, SIXTEENS, COLUMNS, DEPTH, A, B, KEEP) \
  WGMMA_OF(TYPE, SIXTEENS, COLUMNS, DEPTH, A, B, KEEP, "")

// `keep` says whether the sums are added to; else their content does not matter.
#define WGMMA(SIXTEENS, COLUMNS, A, B, KEEP, TRANSPOSE_A, TRANSPOSE_B)                             \
  template <class In, bool A_K_MAJOR, bool B_K_MAJOR>                                              \
  struct Wgmma<In, COLUMNS, A_K_MAJOR, B_K_MAJOR> {                                                \
    static __device__ __forceinline__ void multiply(float (&d)[COLUMNS / 2], unsigned long long a, \
                                                    unsigned long long b, bool keep) {             \
      if constexpr (IS_SAME<In, BFloat16>) {                                                       \
        WGMMA_OF_HALVES("bf16", SIXTEENS, #COLUMNS, A, B, KEEP, TRANSPOSE_A, TRANSPOSE_B);         \
      } else if constexpr (IS_SAME<In, Half>) {                                                    \
        WGMMA_OF_HALVES("f16", SIXTEENS, #COLUMNS, A, B, KEEP, TRANSPOSE_A, TRANSPOSE_B);          \
      } else {                                                                                     \
        static_assert(A_K_MAJOR && B_K_MAJOR, "such operands are read along k");                   \
        if constexpr (IS_SAME<In, Tf32>) {                                                         \
          WGMMA_OF_LINES("tf32", SIXTEENS, #COLUMNS, "8", A, B, KEEP);                             \
        } else if constexpr (IS_SAME<In, Float8E4M3>) {                                            \
          WGMMA_OF_LINES("e4m3", SIXTEENS, #COLUMNS, "32", A, B, KEEP);                            \
        } else {                                                                                   \
          WGMMA_OF_LINES("e5m2", SIXTEENS, #COLUMNS, "32", A, B, KEEP);                            \
        }                                                                                          \
      }                                                                                            \
    }                                                                                              \
  };

WGMMA(HALF, 8, "4", "5", "6", "7", "8")
WGMMA(1, 16, "8", "9", "10", "11", "12")
WGMMA(2, 32, "16", "17", "18", "19", "20")
WGMMA(3, 48, "24", "25", "26", "27", "28")
WGMMA(4, 64, "32", "33", "34", "35", "36")
WGMMA(5, 80, "40", "41", "42", "43", "44")
WGMMA(6, 96, "48", "49", "50", "51", "52")
WGMMA(7, 112, "56", "57", "58", "59", "60")
WGMMA(8, 128, "64", "65", "66", "67", "68")
WGMMA(9, 144, "72", "73", "74", "75", "76")
WGMMA(10, 160, "80", "81", "82", "83", "84")
WGMMA(11, 176, "88", "89", "90", "91", "92")
WGMMA(12, 192, "96", "97", "98", "99", "100")
WGMMA(13, 208, "104", "105", "106", "107", "108")
WGMMA(14, 224, "112", "113", "114", "115", "116")
WGMMA(15, 240, "120", "121", "122", "123", "124")
WGMMA(16, 256, "128", "129", "130", "131", "132")

#undef WGMMA
#undef WGMMA_OF_LINES
#undef WGMMA_OF_HALVES
#undef WGMMA_OF
