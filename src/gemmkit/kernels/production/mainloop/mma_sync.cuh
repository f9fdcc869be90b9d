// The mainloop of mma.sync: tiles on their way to shared memory, and fragments read from there.
#pragma once

#include "mainloop/typed_fetch.cuh"
#include "mma.cuh"
#include "tile.cuh"

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
    store_products<ACCESS.c>(sums, epilogue, C, ldc, M, N, block_row + warp_row,
                             block_col + warp_col);
  }
};
