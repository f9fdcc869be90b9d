// Rung 14: tensor cores, through nvcuda::wmma.
//
// A warp loads 16 x 16 fragments of A and B, which are spread over its lanes, and multiplies two in
// one call. Which lane holds which element is not specified: results reach the epilogue by way of
// shared memory, and all that keeps rows of a tile in different banks is padding.
//
//   warp tile   | sums[0][0] | sums[0][1] |    a[i]: 16 rows of A, 16 steps of k
//               | sums[1][0] | sums[1][1] |    b[j]: 16 steps of k, 16 columns of B
// Loads per result, 128 x 128, warps of 64 x 32: K/64 elements from global memory, 3K/64 shared.
#include <mma.h>

#include "epilogue.cuh"
#include "typed_tile.cuh"

namespace tc = nvcuda::wmma;

// The element types by the names of CUDA's headers.
template <class In>
struct Number {
  using Type = __half;
};
template <>
struct Number<BFloat16> {
  using Type = __nv_bfloat16;
};

template <class Matrix, class In>
using Fragment = tc::fragment<Matrix, 16, 16, 16, typename Number<In>::Type, tc::row_major>;

template <class In, class Fragment>
__device__ __forceinline__ void load_fragment(Fragment& fragment, const In* tile, int pitch) {
  tc::load_matrix_sync(fragment, reinterpret_cast<const typename Number<In>::Type*>(tile), pitch);
}

template <class In, int BM, int BN, int BK, int WM, int WN, int PAD, int VEC, class Epilogue>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * 32)
    wmma(int M, int N, int K, float alpha, const In* A, int lda, const In* B, int ldb, float beta,
         typename Epilogue::Out* C, int ldc, const typename Epilogue::Out* bias CUSTOM_PARAMETERS) {
  constexpr int WARPS = BM / WM * (BN / WN), THREADS = WARPS * 32;
  __shared__ PaddedTile<In, BM, BK, PAD> As[2];
  __shared__ PaddedTile<In, BK, BN, PAD> Bs[2];
  __shared__ alignas(32) float results[WARPS][16][16];

  const int block_row = grid_row() * BM, block_col = blockIdx.x * BN;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;
  if (block_row >= M) return;  // a surplus block of the grid
  if (alpha == 0.0f) K = 0;    // BLAS: alpha = 0 never reads A or B

  TypedTileFetch<In, THREADS, VEC, BM, BK> a_tiles(element(A, lda, block_row, 0), lda);
  TypedTileFetch<In, THREADS, VEC, BK, BN> b_tiles(element(B, ldb, 0, block_col), ldb);
  tc::fragment<tc::accumulator, 16, 16, 16, float> sums[WM / 16][WN / 16];
#pragma unroll
  for (int i = 0; i < WM / 16; ++i) {
#pragma unroll
    for (int j = 0; j < WN / 16; ++j) tc::fill_fragment(sums[i][j], 0.0f);
  }

  a_tiles.fetch(M - block_row, K);
  b_tiles.fetch(K, N - block_col);
  for (int stage = 0; K > 0; stage ^= 1) {
    a_tiles.put(As[stage]);
    b_tiles.put(Bs[stage]);
    __syncthreads();  // this stage is complete; no thread reads the other one

    a_tiles.advance(0, BK), b_tiles.advance(BK, 0);
    K -= BK;                          // K: what is left
    a_tiles.fetch(M - block_row, K);  // past the last tiles nothing is read
    b_tiles.fetch(K, N - block_col);

#pragma unroll
    for (int k = 0; k < BK; k += 16) {
      Fragment<tc::matrix_a, In> a[WM / 16];
      Fragment<tc::matrix_b, In> b[WN / 16];
#pragma unroll
      for (int i = 0; i < WM / 16; ++i) {
        load_fragment<In>(a[i], As[stage].at(warp_row + i * 16, k), BK + PAD);
      }
#pragma unroll
      for (int j = 0; j < WN / 16; ++j) {
        load_fragment<In>(b[j], Bs[stage].at(k, warp_col + j * 16), BN + PAD);
      }
#pragma unroll
      for (int i = 0; i < WM / 16; ++i) {
#pragma unroll
        for (int j = 0; j < WN / 16; ++j) tc::mma_sync(sums[i][j], a[i], b[j], sums[i][j]);
      }
    }
  }

  const Epilogue epilogue{alpha, beta, bias, {} CUSTOM};
#pragma unroll
  for (int i = 0; i < WM / 16; ++i) {
#pragma unroll
    for (int j = 0; j < WN / 16; ++j) {
      tc::store_matrix_sync(results[warp][0], sums[i][j], 16, tc::mem_row_major);
      __syncwarp();
#pragma unroll
      for (int place = lane * VEC; place < 16 * 16; place += 32 * VEC) {
        const int row = warp_row + i * 16 + place / 16, col = warp_col + j * 16 + place % 16;
        if (block_row + row < M && block_col + col < N) {
          epilogue.template store_vector<VEC>(element(C, ldc, block_row + row, block_col + col),
                                              &results[warp][place / 16][place % 16],
                                              block_row + row, block_col + col);
        }
      }
      __syncwarp();  // the lanes have read what the next fragment replaces
    }
  }
}
