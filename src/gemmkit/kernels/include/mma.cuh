// mma.sync: a warp multiplies small matrices on the tensor cores, 16 x 8 results at once. Lane
// number 4 g + t holds rows g and g + 8 of A, column g of B, and results in columns 2 t and 2 t + 1.
#pragma once

#include "layout.cuh"
#include "typed.cuh"

template <class In>
struct Mma;

// Two numbers of 16 bits a register, neighbors along k. Turing has the half of this shape only.
template <class In, bool BFLOAT>
struct HalfMma {
  using Sum = float;
  using Register = unsigned;
  static constexpr int DEPTH = 16, IN_REGISTER = 2, A_REGISTERS = 4, B_REGISTERS = 2;

  static __device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4],
                                                  const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    if constexpr (BFLOAT) {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, {%0, %1, %2, %3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, {%0, %1, %2, %3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
#else
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
          "{%0, %1, %2, %3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
    }
#endif
  }
};
template <>
struct Mma<Half> : HalfMma<Half, false> {};
template <>
struct Mma<BFloat16> : HalfMma<BFloat16, true> {};

template <>
struct Mma<double> {
  using Sum = double;
  using Register = double;
  static constexpr int DEPTH = 4, IN_REGISTER = 1, A_REGISTERS = 2, B_REGISTERS = 1;

  static __device__ __forceinline__ void multiply(double (&d)[4], const double (&a)[2],
                                                  const double (&b)[1]) {
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
        : "d"(a[0]), "d"(a[1]), "d"(b[0]));
#else
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
          : "+d"(d[2 * half]), "+d"(d[2 * half + 1])
          : "d"(a[half]), "d"(b[0]));
    }
#endif
  }
};

// Reads four 8 x 8 matrices of 16-bit elements, one a register: lane l gives the address of row
// l % 8 of matrix l / 8, 16 bytes, and gets elements 2 t and 2 t + 1 of each matrix's row g.
__device__ __forceinline__ void ldmatrix(unsigned (&matrices)[4], const void* row) {
  const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(from)
               : "memory");
}

// The same, each matrix transposed: a lane gets elements 2 t and 2 t + 1 of its column g.
__device__ __forceinline__ void ldmatrix_transposed(unsigned (&left)[2], unsigned (&right)[2],
                                                    const void* row) {
  const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(left[0]), "=r"(left[1]), "=r"(right[0]), "=r"(right[1])
               : "r"(from)
               : "memory");
}

// Finishes the results of a warp and stores them, VEC (1 or 2) neighbors at a time; `first_row` and
// `first_col` say where its tile begins in C.
template <int VEC, class Sum, int PRODUCTS_M, int PRODUCTS_N, class Epilogue>
__device__ __forceinline__ void store_products(const Sum (&sums)[PRODUCTS_M][PRODUCTS_N][4],
                                               const Epilogue& epilogue, typename Epilogue::Out* C,
                                               int ldc, int M, int N, int first_row,
                                               int first_col) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 2 * PRODUCTS_M; ++i) {
    const int row = first_row + i * 8 + g;
    const int pitch = opaque(ldc);  // one row's addresses at a time, or they fill the registers
#pragma unroll
    for (int j = 0; j < PRODUCTS_N; ++j) {
#pragma unroll
      for (int v = 0; v < 2; v += VEC) {
        const int col = first_col + j * 8 + t * 2 + v;
        if (row < M && col < N) {
          epilogue.template store_vector<VEC>(element(C, pitch, row, col),
                                              &sums[i / 2][j][i % 2 * 2 + v], row, col);
        }
      }
    }
  }
}
