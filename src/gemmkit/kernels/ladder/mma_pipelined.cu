// Rung 16: mma.sync with a pipeline of STAGES tiles, filled by cp.async.
//
// Copies go to shared memory by themselves, STAGES - 1 tiles ahead of the products. The registers
// that they no longer pass through hold results: 64 x 64 of a warp, 128 a lane.
//
//   stage 0   multiplied    tile 3 arrives  ............    ............
//   stage 1   ............  multiplied      tile 4 arrives  ............    one barrier a step
//   stage 2   ............  ............    multiplied      tile 5 arrives
//
// Loads per result, 128 x 256, warps of 64 x 64: 3K/256 elements from global memory, K/32 shared.
#include "epilogue.cuh"
#include "mma.cuh"
#include "typed_async.cuh"

template <class In, int BM, int BN, int BK, int WM, int WN, int STAGES, int VEC, class Epilogue>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * 32)
    mma_pipelined(int M, int N, int K, float alpha, const In* A, int lda, const In* B, int ldb,
                  float beta, typename Epilogue::Out* C, int ldc,
                  const typename Epilogue::Out* bias CUSTOM_PARAMETERS) {
  constexpr int THREADS = BM / WM * (BN / WN) * 32;
  struct Stage {
    SwizzledRows<In, BM, BK> As;
    SwizzledRows<In, BK, BN> Bs;
  };
  extern __shared__ float4 shared[];
  Stage* const stages = reinterpret_cast<Stage*>(shared);  // STAGES of them

  const int block_row = grid_row() * BM, block_col = blockIdx.x * BN;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;
  if (block_row >= M) return;  // a surplus block of the grid
  if (alpha == 0.0f) K = 0;    // BLAS: alpha = 0 never reads A or B

  TypedTileCopy<In, THREADS, VEC, BM, BK> a_tiles(element(A, lda, block_row, 0), lda);
  TypedTileCopy<In, THREADS, VEC, BK, BN> b_tiles(element(B, ldb, 0, block_col), ldb);
  int k_left = K;  // from the tiles that are copied next to the end

  // Starts part `part` of `parts` of the copies of the next tiles; past the last, zeros.
  const auto copy = [&](Stage& stage, int part, int parts) {
    a_tiles.copy(stage.As, M - block_row, k_left, part, parts);
    b_tiles.copy(stage.Bs, k_left, N - block_col, part, parts);
  };
  const auto next_tiles = [&] {
    cp_async_commit();
    a_tiles.advance(0, BK), b_tiles.advance(BK, 0);
    k_left -= BK;
  };

  for (int stage = 0; stage < STAGES - 1; ++stage) copy(stages[stage], 0, 1), next_tiles();
  float sums[WM / 16][WN / 8][4] = {};
  for (int stage = 0, previous = STAGES - 1; K > 0; K -= BK) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();  // the tiles of this stage are complete; nobody reads the previous stage

#pragma unroll
    for (int k = 0; k < BK; k += 16) {
      unsigned a[WM / 16][4], b[WN / 8][2];
#pragma unroll
      for (int i = 0; i < WM / 16; ++i) {
        ldmatrix(a[i], stages[stage].As.at(warp_row + i * 16 + lane % 16, k + lane / 16 * 8));
      }
#pragma unroll
      for (int j = 0; j < WN / 8; j += 2) {
        ldmatrix_transposed(b[j], b[j + 1],
                            stages[stage].Bs.at(k + lane % 16, warp_col + j * 8 + lane / 16 * 8));
      }
      copy(stages[previous], k / 16, BK / 16);  // a part for each k: all at once would delay these
#pragma unroll
      for (int i = 0; i < WM / 16; ++i) {
#pragma unroll
        for (int j = 0; j < WN / 8; ++j) Mma<In>::multiply(sums[i][j], a[i], b[j]);
      }
    }
    next_tiles();
    previous = stage;
    stage = stage + 1 < STAGES ? stage + 1 : 0;
  }
  cp_async_wait<0>();  // a block must not end before its copies

  store_products<VEC == 1 ? 1 : 2>(sums, Epilogue{alpha, beta, bias, {} CUSTOM}, C, ldc, M, N,
                                   block_row + warp_row, block_col + warp_col);
}
