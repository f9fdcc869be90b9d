// Rung 17: wgmma. Four warps, a warpgroup, multiply 64 x BN x 16 with one instruction.
//
// It reads A and B from shared memory by descriptors, in the swizzle of rung 15 over lines of 128
// bytes, so that no fragment passes through registers, and runs beside the warps that started it.
//
//   copies     tile 2     tile 3     tile 4     tile 5    cp.async, two tiles ahead of the products
//   products   tile 0 ----+ tile 1 --+ tile 2 --+ ...     one group under way at each barrier
//
// Loads per result, 128 x 256: 3K/256 elements from global memory, 5K/256 shared, by wgmma.
#include "epilogue.cuh"
#include "tma.cuh"
#include "typed_async.cuh"
#include "warpgroup.cuh"

template <class In, int BM, int BN, int BK, int STAGES, int VEC, class Epilogue>
__global__ void __launch_bounds__(BM / WGMMA_ROWS * 128)
    wgmma(int M, int N, int K, float alpha, const In* A, int lda, const In* B, int ldb, float beta,
          typename Epilogue::Out* C, int ldc,
          const typename Epilogue::Out* bias CUSTOM_PARAMETERS) {
  constexpr int THREADS = BM / WGMMA_ROWS * 128, AHEAD = STAGES - 2;
  struct Stage {
    WarpgroupTile<In, BM, BK, true> As;   // a line for each row
    WarpgroupTile<In, BN, BK, false> Bs;  // a line for each k, in boxes of 64 columns
  };
  extern __shared__ __align__(1024) unsigned char memory[];
  Stage* const stages = reinterpret_cast<Stage*>(memory);  // STAGES of them

  const int block_row = grid_row() * BM, block_col = blockIdx.x * BN;
  const int warpgroup_row = threadIdx.x / 128 * WGMMA_ROWS;
  if (block_row >= M) return;  // a surplus block of the grid
  if (alpha == 0.0f) K = 0;    // BLAS: alpha = 0 never reads A or B

  TypedTileCopy<In, THREADS, VEC, BM, BK> a_tiles(element(A, lda, block_row, 0), lda);
  TypedTileCopy<In, THREADS, VEC, BK, BN> b_tiles(element(B, ldb, 0, block_col), ldb);
  int k_left = K;  // from the tiles that are copied next to the end
  // Starts the copies of the next tiles; past the last, zeros.
  const auto copy_next = [&](Stage& stage) {
    a_tiles.copy(stage.As, M - block_row, k_left, 0, 1);
    b_tiles.copy(stage.Bs, k_left, N - block_col, 0, 1);
    cp_async_commit();
    a_tiles.advance(0, BK), b_tiles.advance(BK, 0);
    k_left -= BK;
  };

  for (int stage = 0; stage < AHEAD; ++stage) copy_next(stages[stage]);
  float sums[BN / 2];
  leave_undefined(sums);
  const int steps = K > 0 ? (K + BK - 1) / BK : 1;  // without products, one of zeros
#pragma unroll 1
  for (int step = 0, stage = 0, next = AHEAD; step < steps; ++step) {
    cp_async_wait<AHEAD - 1>();
    fence_for_tma();  // wgmma reads through the asynchronous proxy, copies write through another
    __syncthreads();  // this stage is complete; all products but the last step's are finished

    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BK; k += 16) {
      Wgmma<In, BN, true, false>::multiply(sums, stages[stage].As.descriptor(warpgroup_row, k),
                                           stages[stage].Bs.descriptor(0, k), step > 0 || k > 0);
    }
    wgmma_commit();
    copy_next(stages[next]);  // where the tiles of two steps ago were
    wgmma_wait<1>();          // the products of the step before
    stage = stage + 1 < STAGES ? stage + 1 : 0;
    next = next + 1 < STAGES ? next + 1 : 0;
  }
  wgmma_wait<0>(sums);
  cp_async_wait<0>();  // a block must not end before its copies

  store_sums<VEC == 1 ? 1 : 2>(sums, Epilogue{alpha, beta, bias, {} CUSTOM}, C, ldc, M, N,
                               block_row + warpgroup_row, block_col);
}
