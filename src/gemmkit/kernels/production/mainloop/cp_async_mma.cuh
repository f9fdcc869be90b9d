// The mainloop of mma.sync: cp.async fills STAGES tiles ahead of the products, and each fragment is read
// from shared memory while the one before it is multiplied.
#pragma once

#include "layout.cuh"
#include "mma.cuh"
#include "tile.cuh"
#include "typed_async.cuh"

// Copies 16 bytes, of which the first `bytes` are read and the others become zero.
__device__ __forceinline__ void cp_async_part(void* shared, const void* global, int bytes) {
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes));
}

// Whether fragments are read number by number, which ldmatrix does not do: of fp64, and of fp32 whose
// neighbors do not lie along k, since it turns pairs of 16 bits only.
template <class In, bool ALONG_K>
constexpr bool BY_NUMBERS = sizeof(In) == sizeof(double) || (sizeof(In) == 4 && !ALONG_K);

// How a tile lies in shared memory: swizzled for ldmatrix, else padded, so that the four rows of which a
// warp reads eight numbers, or of fp64 half a warp reads four, lie in different banks.
template <class In, int ROWS, int COLS, bool ALONG_K>
using StagedTile = Either<BY_NUMBERS<In, ALONG_K>, PaddedTile<In, ROWS, COLS, 32 / sizeof(In)>,
                          SwizzledRows<In, ROWS, COLS>>;

// The tiles of one operand, EXTENT rows of A or columns of B by BK along k, as they lie in memory:
// lines of k if ALONG_K. Lines begin at multiples of 16 bytes; what lies outside becomes zero.
template <class In, int THREADS, int EXTENT, int BK, bool ALONG_K>
struct StagedTiles
    : TypedWalk<In, THREADS, 16 / sizeof(In), ALONG_K ? EXTENT : BK, ALONG_K ? BK : EXTENT> {
  static constexpr int ROWS = ALONG_K ? EXTENT : BK, COLS = ALONG_K ? BK : EXTENT;
  static constexpr int VEC = 16 / sizeof(In);
  using Walk = TypedWalk<In, THREADS, VEC, ROWS, COLS>;
  using Tile = StagedTile<In, ROWS, COLS, ALONG_K>;

  const int inside;  // rows or columns of the operand from the tile on

  __device__ __forceinline__ StagedTiles(const In* tile, int ld, int inside)
      : Walk(tile, ld), inside(inside) {}

  // Starts part `part` of `parts` of a tile's copies, of which `depth` steps of k are inside.
  __device__ __forceinline__ void copy(Tile& tile, int depth, int part, int parts) const {
    const int rows = ALONG_K ? inside : depth, cols = ALONG_K ? depth : inside;
#pragma unroll
    for (int step = part; step < Walk::STEPS; step += parts) {
      const int row = Walk::row(step), col = Walk::col(step);
      const int elements = row < rows ? max(0, min(VEC, cols - col)) : 0;
      cp_async_part(tile.at(row, col), this->source(step), elements * static_cast<int>(sizeof(In)));
    }
  }
  __device__ __forceinline__ void advance() { Walk::advance(ALONG_K ? 0 : BK, ALONG_K ? BK : 0); }
};

// The products of a warp's fragments, in this way unless there is another for a tensor core's type.
template <class Tensor, int ROWS, int COLS>
__device__ __forceinline__ void multiply_fragments(
    Tensor, typename Tensor::Sum (&sums)[ROWS][COLS][4],
    const typename Tensor::Register (&a)[ROWS][Tensor::A_REGISTERS],
    const typename Tensor::Register (&b)[COLS][Tensor::B_REGISTERS]) {
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
#pragma unroll
    for (int j = 0; j < COLS; ++j) Tensor::multiply(sums[i][j], a[i], b[j]);
  }
}

template <class In, Tile TILE, Access ACCESS, Layout LAYOUT, class Product = Mma<In>>
struct CpAsyncMma {
  static constexpr bool A_T = TRANSPOSED_A<LAYOUT>, B_T = TRANSPOSED_B<LAYOUT>;
  static constexpr int BM = TILE.BM, BN = TILE.BN, BK = TILE.BK, WM = TILE.WM, WN = TILE.WN;
  using Tensor = Product;
  using Register = typename Tensor::Register;
  static constexpr int STAGES = TILE.stages, DEPTH = Tensor::DEPTH, PRODUCTS = BK / DEPTH;
  static_assert(PRODUCTS % 2 == 0, "fragments alternate between two sets of registers");
  using TilesOfA = StagedTiles<In, TILE.threads, BM, BK, !A_T>;
  using TilesOfB = StagedTiles<In, TILE.threads, BN, BK, B_T>;
  struct Stage {
    typename TilesOfA::Tile As;
    typename TilesOfB::Tile Bs;
  };
  using Sums = typename Tensor::Sum[WM / 16][WN / 8][4];
  struct Fragments {
    Register a[WM / 16][Tensor::A_REGISTERS], b[WN / 8][Tensor::B_REGISTERS];
  };

  Stage* const stages;  // in shared memory
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;

  __device__ __forceinline__ explicit CpAsyncMma(void* shared)
      : stages(static_cast<Stage*>(shared)) {}

  // sums += A B over K steps, A and B given from the block's first row and column on, of which there
  // are `rows` and `cols`.
  __device__ __forceinline__ void multiply(Sums& sums, const In* A, int lda, int rows, const In* B,
                                           int ldb, int cols, int K) const {
    TilesOfA a_tiles(A, lda, rows);
    TilesOfB b_tiles(B, ldb, cols);
    int depth = K;  // from the tiles that are copied next to the end
    const auto copy = [&](Stage& stage, int part, int parts) {
      a_tiles.copy(stage.As, depth, part, parts);
      b_tiles.copy(stage.Bs, depth, part, parts);
    };
    const auto next_tiles = [&] {
      cp_async_commit();
      a_tiles.advance(), b_tiles.advance();
      depth -= BK;
    };
    if (K <= 0) return;
    for (int stage = 0; stage < STAGES - 1; ++stage) copy(stages[stage], 0, 1), next_tiles();
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    Fragments fragments[2];
    read(fragments[0], stages[0], 0);
    for (int stage = 0, free = STAGES - 1; K > 0; K -= BK) {
#pragma unroll
      for (int product = 0; product < PRODUCTS; ++product) {
        const bool last = product == PRODUCTS - 1;
        if (last) {
          next_tiles();
          cp_async_wait<STAGES - 2>();
          __syncthreads();  // the next stage is complete, and nobody reads this one any more
          free = stage;
          stage = stage + 1 < STAGES ? stage + 1 : 0;
        }
        read(fragments[(product + 1) % 2], stages[stage], last ? 0 : (product + 1) * DEPTH);
        // The last products' part would come after the commit.
        if (!last) copy(stages[free], product, PRODUCTS - 1);
        multiply_fragments(Tensor{}, sums, fragments[product % 2].a, fragments[product % 2].b);
      }
    }
    cp_async_wait<0>();  // a block must not end before its copies
  }

  // Finishes the results and stores them, the block's tile being at (block_row, block_col) of C.
  template <class Epilogue>
  __device__ __forceinline__ void store(const Sums& sums, const Epilogue& epilogue,
                                        typename Epilogue::Out* C, int ldc, int M, int N,
                                        int block_row, int block_col) const {
    store_products<ACCESS.c>(sums, epilogue, C, ldc, M, N, block_row + warp_row,
                             block_col + warp_col);
  }

 private:
  __device__ __forceinline__ void read(Fragments& to, Stage& from, int k) const {
    if constexpr (sizeof(In) == sizeof(double)) {
      read_numbers(to, from, k);
    } else if constexpr (sizeof(In) == 4) {
      read_words(to, from, k);
    } else {
      read_matrices(to, from, k);
    }
  }

  // The fragments of one step along k, a number in each register.
  __device__ __forceinline__ void read_numbers(Fragments& to, Stage& from, int k) const {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < WM / 16; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_row + i * 16 + half * 8 + g;
        to.a[i][half] = A_T ? *from.As.at(k + t, row) : *from.As.at(row, k + t);
      }
    }
#pragma unroll
    for (int j = 0; j < WN / 8; ++j) {
      const int col = warp_col + j * 8 + g;
      to.b[j][0] = B_T ? *from.Bs.at(col, k + t) : *from.Bs.at(k + t, col);
    }
  }

  // The same in 32 bits, where lines of k are rows of matrices of 8 x 4.
  __device__ __forceinline__ void read_words(Fragments& to, Stage& from, int k) const {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < WM / 16; ++i) {
      const int row = warp_row + i * 16;
      if constexpr (A_T) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          to.a[i][r] = __float_as_uint(*from.As.at(k + r / 2 * 4 + t, row + r % 2 * 8 + g));
        }
      } else {
        ldmatrix(to.a[i], from.As.at(row + lane % 16, k + lane / 16 * 4));
      }
    }
#pragma unroll
    for (int j = 0; j < WN / 8; j += 2) {
      const int col = warp_col + j * 8;
      unsigned both[4];
      if constexpr (B_T) {
        ldmatrix(both, from.Bs.at(col + lane / 16 * 8 + lane % 8, k + lane / 8 % 2 * 4));
      } else {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          both[r] = __float_as_uint(*from.Bs.at(k + r % 2 * 4 + t, col + r / 2 * 8 + g));
        }
      }
      to.b[j][0] = both[0], to.b[j][1] = both[1];
      to.b[j + 1][0] = both[2], to.b[j + 1][1] = both[3];
    }
  }

  // The same in 16 bits, four 8 x 8 matrices at a time; those that lie along the other dimension are
  // turned on the way.
  __device__ __forceinline__ void read_matrices(Fragments& to, Stage& from, int k) const {
#pragma unroll
    for (int i = 0; i < WM / 16; ++i) {
      const int row = warp_row + i * 16;
      if constexpr (A_T) {
        unsigned low[2], high[2];
        ldmatrix_transposed(low, high,
                            from.As.at(k + lane / 16 * 8 + lane % 8, row + lane / 8 % 2 * 8));
        to.a[i][0] = low[0], to.a[i][1] = low[1], to.a[i][2] = high[0], to.a[i][3] = high[1];
      } else {
        ldmatrix(to.a[i], from.As.at(row + lane % 16, k + lane / 16 * 8));
      }
    }
#pragma unroll
    for (int j = 0; j < WN / 8; j += 2) {
      const int col = warp_col + j * 8;
      if constexpr (B_T) {
        unsigned both[4];
        ldmatrix(both, from.Bs.at(col + lane / 16 * 8 + lane % 8, k + lane / 8 % 2 * 8));
        to.b[j][0] = both[0], to.b[j][1] = both[1];
        to.b[j + 1][0] = both[2], to.b[j + 1][1] = both[3];
      } else {
        ldmatrix_transposed(to.b[j], to.b[j + 1], from.Bs.at(k + lane % 16, col + lane / 16 * 8));
      }
    }
  }
};
