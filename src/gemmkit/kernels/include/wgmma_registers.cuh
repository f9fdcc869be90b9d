// wgmma whose rows of A are fragments in registers: for tf32, of which only operands along k are read
// from shared memory, so that A may lie in any way in memory.
#pragma once

#include "wgmma.cuh"

// One product: sums (+)= A B, 64 x N x 8. Of a warp's 16 rows, lane l has l / 4 and, at odd places,
// 8 more; of k, l % 4 and, from place 2 on, 4 more.
template <int N>
struct WgmmaFromRegisters;

#define WGMMA(SIXTEENS, COLUMNS, A_0, A_1, A_2, A_3, B, KEEP)                                     \
  template <>                                                                                     \
  struct WgmmaFromRegisters<COLUMNS> {                                                            \
    static __device__ __forceinline__ void multiply(float (&d)[COLUMNS / 2],                      \
                                                    const unsigned (&a)[4], unsigned long long b, \
                                                    bool keep) {                                  \
      asm volatile(                                                                               \
          "{\n"                                                                                   \
          ".reg .pred keep;\n"                                                                    \
          "setp.ne.b32 keep, %" KEEP                                                              \
          ", 0;\n"                                                                                \
          "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k8.f32.tf32.tf32 {" TEXT_##SIXTEENS       \
          "}, {%" A_0 ", %" A_1 ", %" A_2 ", %" A_3 "}, %" B                                      \
          ", keep, 1, 1;\n"                                                                       \
          "}"                                                                                     \
          : REGISTERS_##SIXTEENS                                                                  \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(keep)));     \
    }                                                                                             \
  };

WGMMA(HALF, 8, "4", "5", "6", "7", "8", "9")
WGMMA(1, 16, "8", "9", "10", "11", "12", "13")
WGMMA(2, 32, "16", "17", "18", "19", "20", "21")
WGMMA(3, 48, "24", "25", "26", "27", "28", "29")
WGMMA(4, 64, "32", "33", "34", "35", "36", "37")
WGMMA(5, 80, "40", "41", "42", "43", "44", "45")
WGMMA(6, 96, "48", "49", "50", "51", "52", "53")
WGMMA(7, 112, "56", "57", "58", "59", "60", "61")
WGMMA(8, 128, "64", "65", "66", "67", "68", "69")
WGMMA(9, 144, "72", "73", "74", "75", "76", "77")
WGMMA(10, 160, "80", "81", "82", "83", "84", "85")
WGMMA(11, 176, "88", "89", "90", "91", "92", "93")
WGMMA(12, 192, "96", "97", "98", "99", "100", "101")
WGMMA(13, 208, "104", "105", "106", "107", "108", "109")
WGMMA(14, 224, "112", "113", "114", "115", "116", "117")
WGMMA(15, 240, "120", "121", "122", "123", "124", "125")
WGMMA(16, 256, "128", "129", "130", "131", "132", "133")

#undef WGMMA
