// mma.sync: a warp multiplies small matrices on the tensor cores, 16 x 8 results at once. Lane number
// 4 g + t holds rows g and g + 8 of A, column g of B, and results in columns 2 t and 2 t + 1.
#pragma once

#include "mainloop/typed_fetch.cuh"
#include "tile.cuh"

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

// The tiles of one operand, EXTENT rows of A or columns of B by BK steps of k, on their way to shared
// memory, and how the registers of a fragment are read there. fp64 lies as in `RegisterStaged`.
template <class In, int THREADS, int VEC, int EXTENT, int BK, int PAD, bool ALONG_K>
struct Doubles : TypedFetch<In, double, THREADS, VEC, EXTENT, BK, ALONG_K> {
  using TypedFetch<In, double, THREADS, VEC, EXTENT, BK, ALONG_K>::TypedFetch;
  using Tile = double[BK][EXTENT + PAD];

  static __device__ __forceinline__ double read(const Tile& tile, int place, int k) {
    return tile[k][place];
  }
};

// Numbers of 16 bits whose neighbors along k are neighbors in memory stay so. Rows are padded so
// that the eight rows of a fragment lie in different banks.
template <class In, int THREADS, int VEC, int EXTENT, int BK, int PAD>
struct HalvesAlongK : TypedFetch<In, float, THREADS, VEC, EXTENT, BK, true> {
  using Fetch = TypedFetch<In, float, THREADS, VEC, EXTENT, BK, true>;
  using Fetch::Fetch;
  using Tile = In[EXTENT][BK + PAD];

  __device__ __forceinline__ void put(Tile& tile) const {
#pragma unroll
    for (int step = 0; step < Fetch::STEPS; ++step) {
      if (!Fetch::mine(step)) continue;
      this->held[step].store(&tile[Fetch::row(step)][Fetch::col(step)]);
    }
  }
  static __device__ __forceinline__ unsigned read(const Tile& tile, int place, int k) {
    return *reinterpret_cast<const unsigned*>(&tile[place][k]);
  }
};

// Where they are not, a thread takes the same columns of two rows and puts each pair in a word.
template <class In, int THREADS, int VEC, int EXTENT, int BK, int PAD>
struct HalvesAcrossK {
  using Walk = TypedFetch<In, float, THREADS, VEC, EXTENT, BK / 2, false>;
  using Tile = unsigned[BK / 2][EXTENT + PAD];
  static constexpr int CHUNK = VEC < 4 ? VEC : 4;

  const In* first;
  const int ld, inside;
  Pack<In, VEC> held[Walk::STEPS][2];

  __device__ __forceinline__ HalvesAcrossK(const In* tile, int ld, int inside)
      : first(element(tile, ld, 2 * Walk::row(0), Walk::col(0))), ld(ld), inside(inside) {}

  __device__ __forceinline__ void fetch(int depth) {
#pragma unroll
    for (int step = 0; step < Walk::STEPS; ++step) {
      const int k = 2 * Walk::row(step), col = Walk::col(step);
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        held[step][odd] = {};
        if (Walk::mine(step) && k + odd < depth && col < inside) {
          const int down = k + odd - 2 * Walk::row(0);
          held[step][odd].load(element(first, ld, down, col - Walk::col(0)));
        }
      }
    }
  }
  __device__ __forceinline__ void advance() { first = element(first, ld, BK, 0); }

  __device__ __forceinline__ void put(Tile& tile) const {
#pragma unroll
    for (int step = 0; step < Walk::STEPS; ++step) {
      if (!Walk::mine(step)) continue;
#pragma unroll
      for (int v = 0; v < VEC; v += CHUNK) {
        alignas(16) unsigned words[CHUNK];
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) {
          const unsigned low = held[step][0].get(v + i).bits, high = held[step][1].get(v + i).bits;
          words[i] = low | high << 16;
        }
        copy_words(&tile[Walk::row(step)][Walk::col(step) + v], words);
      }
    }
  }
  static __device__ __forceinline__ unsigned read(const Tile& tile, int place, int k) {
    return tile[k / 2][place];
  }

 private:
  static __device__ __forceinline__ void copy_words(unsigned* to, const unsigned (&from)[CHUNK]) {
    if constexpr (CHUNK == 4) {
      *reinterpret_cast<uint4*>(to) = {from[0], from[1], from[2], from[3]};
    } else if constexpr (CHUNK == 2) {
      *reinterpret_cast<uint2*>(to) = {from[0], from[1]};
    } else {
      *to = from[0];
    }
  }
};

template <class In, int THREADS, int VEC, int EXTENT, int BK, int PAD, bool ALONG_K>
using Halves = Either<ALONG_K, HalvesAlongK<In, THREADS, VEC, EXTENT, BK, PAD>,
                      HalvesAcrossK<In, THREADS, VEC, EXTENT, BK, PAD>>;

template <class In, int THREADS, int VEC, int EXTENT, int BK, int PAD, bool ALONG_K>
using MmaOperand =
    Either<sizeof(In) == sizeof(double), Doubles<In, THREADS, VEC, EXTENT, BK, PAD, ALONG_K>,
           Halves<In, THREADS, VEC, EXTENT, BK, PAD, ALONG_K>>;

// The mainloop: two stages in shared memory, filled through registers.
template <class In, Tile TILE, Access ACCESS, Layout LAYOUT>
struct MmaSync {
  using Tensor = Mma<In>;
  using Register = typename Tensor::Register;
  using Sum = typename Tensor::Sum;
  static constexpr bool A_T = TRANSPOSED_A<LAYOUT>, B_T = TRANSPOSED_B<LAYOUT>;
  static constexpr int BM = TILE.BM, BN = TILE.BN, BK = TILE.BK, WM = TILE.WM, WN = TILE.WN;
  static constexpr int PAIR = Tensor::IN_REGISTER;
  using TilesOfA = MmaOperand<In, TILE.threads, ACCESS.a, BM, BK, TILE.pad, !A_T>;
  using TilesOfB = MmaOperand<In, TILE.threads, ACCESS.b, BN, BK, TILE.pad, B_T>;
  struct Stage {
    alignas(16) typename TilesOfA::Tile As;
    alignas(16) typename TilesOfB::Tile Bs;
  };
  using Sums = Sum[WM / 16][WN / 8][4];

  Stage* const stages;  // in shared memory
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;

  __device__ __forceinline__ explicit MmaSync(void* shared) : stages(static_cast<Stage*>(shared)) {}

  // sums += A B over K steps, A and B given from the block's first row and column on, of which there
  // are `rows` and `cols`.
  __device__ __forceinline__ void multiply(Sums& sums, const In* A, int lda, int rows, const In* B,
                                           int ldb, int cols, int K) const {
    TilesOfA a_tiles(A, lda, rows);
    TilesOfB b_tiles(B, ldb, cols);
    a_tiles.fetch(K);
    b_tiles.fetch(K);
    for (int stage = 0; K > 0; stage ^= 1) {
      a_tiles.put(stages[stage].As);
      b_tiles.put(stages[stage].Bs);
      __syncthreads();  // the tiles are complete, and nobody reads those of two steps ago

      a_tiles.advance(), b_tiles.advance();
      K -= BK;           // what is left
      a_tiles.fetch(K);  // past the last tiles nothing is read
      b_tiles.fetch(K);

#pragma unroll
      for (int k = 0; k < BK; k += Tensor::DEPTH) {
        Register a[WM / 16][Tensor::A_REGISTERS], b[WN / 8][Tensor::B_REGISTERS];
#pragma unroll
        for (int i = 0; i < WM / 16; ++i) {
#pragma unroll
          for (int r = 0; r < Tensor::A_REGISTERS; ++r) {
            a[i][r] = TilesOfA::read(stages[stage].As, warp_row + i * 16 + g + r % 2 * 8,
                                     k + PAIR * t + r / 2 * 8);
          }
        }
#pragma unroll
        for (int j = 0; j < WN / 8; ++j) {
#pragma unroll
          for (int r = 0; r < Tensor::B_REGISTERS; ++r) {
            b[j][r] = TilesOfB::read(stages[stage].Bs, warp_col + j * 8 + g, k + PAIR * t + r * 8);
          }
        }
#pragma unroll
        for (int i = 0; i < WM / 16; ++i) {
#pragma unroll
          for (int j = 0; j < WN / 8; ++j) Tensor::multiply(sums[i][j], a[i], b[j]);
        }
      }
    }
  }

  // Finishes the results and stores them, the block's tile being at (block_row, block_col) of C.
  template <class Epilogue>
  __device__ __forceinline__ void store(const Sums& sums, const Epilogue& epilogue,
                                        typename Epilogue::Out* C, int ldc, int M, int N,
                                        int block_row, int block_col) const {
#pragma unroll
    for (int i = 0; i < WM / 8; ++i) {
      const int row = block_row + warp_row + i * 8 + g;
      const int pitch = opaque(ldc);  // one row's addresses at a time, or they fill the registers
#pragma unroll
      for (int j = 0; j < WN / 8; ++j) {
#pragma unroll
        for (int v = 0; v < 2; v += ACCESS.c) {
          const int col = block_col + warp_col + j * 8 + t * 2 + v;
          if (row < M && col < N) {
            epilogue.template store_vector<ACCESS.c>(element(C, pitch, row, col),
                                                     &sums[i / 2][j][i % 2 * 2 + v], row, col);
          }
        }
      }
    }
  }
};
