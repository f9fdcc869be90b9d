// Rung 12: skinny products, reduced by warp shuffles.
//
// With 16 rows or fewer, almost all the work is to read B once. The lanes of a warp, and the warps
// of a block, share k, so that all of them read; then their sums are added up: of lanes by
// shuffles, of warps in shared memory. With 16 columns or fewer (TALL) the same is done with A.
//
//   a warp, 4 x 4 floats per lane:   x -> 32 floats of a row, 8 lanes     k runs along y in B,
//                                    y -> 16 rows, 4 lanes                along x in A
//
// Loads per result, M = 16: K/16 of B and K/32 of A from global memory, 5K/16 from shared.
#include "cp_async.cuh"
#include "epilogue.cuh"

template <int SMALL, bool TALL, int BN, int BK, int STAGES, int PAD, int VEC, class Epilogue>
__global__ void __launch_bounds__(BN* BK / 16)
    warp_reduce(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb,
                float beta, float* C, int ldc, const float* bias CUSTOM_PARAMETERS) {
  // SMALL is M, or N if TALL; a block takes BN results along the other side, BK of k in a step.
  constexpr int THREADS = BN * BK / 16, X = TALL ? BK : BN, Y = TALL ? BN : BK;
  constexpr int WARPS_X = X / 32, WARPS_K = TALL ? WARPS_X : Y / 16;
  constexpr int LINE_VEC = TALL ? 1 : VEC;
  struct Stage {
    float large[Y][X];             // a tile of B, or A, as it lies in memory
    float lines[SMALL][BK + PAD];  // that of the other matrix, along k
  };
  extern __shared__ float4 shared[];
  Stage* const stages = reinterpret_cast<Stage*>(shared);  // STAGES of them

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int x = warp % WARPS_X * 32 + lane % 8 * 4, y = warp / WARPS_X * 16 + lane / 8 * 4;
  const int thread_k = TALL ? x : y, thread_n = TALL ? y : x;
  const int block_n = blockIdx.x * BN, n_left = (TALL ? M : N) - block_n;
  if (alpha == 0.0f) K = 0;  // BLAS: alpha = 0 never reads A or B

  TileWalk<THREADS, VEC, Y, X> tiles(TALL ? element(A, lda, block_n, 0) : B + block_n,
                                     TALL ? lda : ldb);
  const float* small = TALL ? B : A;
  int k_left = K;  // not yet copied
  const auto start_copies = [&](Stage& stage) {
#pragma unroll
    for (int step = 0; step < tiles.STEPS; ++step) {
      const int row = tiles.row(step), col = tiles.col(step);
      cp_async<VEC>(&stage.large[row][col], tiles.source(step),
                    row < (TALL ? n_left : k_left) && col < (TALL ? k_left : n_left));
    }
#pragma unroll
    for (int first = 0; first < SMALL * BK; first += THREADS * LINE_VEC) {
      const int i = first + threadIdx.x * LINE_VEC;  // neighbors in memory
      const int line = TALL ? i % SMALL : i / BK, k = TALL ? i / SMALL : i % BK;
      const float* from = TALL ? element(small, ldb, k, line) : element(small, lda, line, k);
      if (i < SMALL * BK) cp_async<LINE_VEC>(&stage.lines[line][k], from, k < k_left);
    }
    cp_async_commit();
    tiles.advance(TALL ? 0 : BK, TALL ? BK : 0);
    small = TALL ? element(small, ldb, BK, 0) : small + BK;
    k_left -= BK;
  };

  for (int stage = 0; stage < STAGES - 1; ++stage) start_copies(stages[stage]);
  float sums[SMALL][4] = {};
  for (int stage = 0, previous = STAGES - 1; K > 0; K -= BK) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();  // this stage is complete; nobody reads the previous stage
    start_copies(stages[previous]);

    alignas(16) float piece[4][4];  // of the large matrix
#pragma unroll
    for (int i = 0; i < 4; ++i) copy_vector<4>(piece[i], &stages[stage].large[y + i][x]);
#pragma unroll
    for (int s = 0; s < SMALL; ++s) {
      alignas(16) float line[4];
      copy_vector<4>(line, &stages[stage].lines[s][thread_k]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[s][j] += line[i] * (TALL ? piece[j][i] : piece[i][j]);
      }
    }
    previous = stage;
    stage = stage + 1 < STAGES ? stage + 1 : 0;
  }
  cp_async_wait<0>();
  __syncthreads();  // the stages are free: their memory takes the sums of the warps

  const auto warp_sums = reinterpret_cast<float (*)[SMALL][BN]>(shared);
  constexpr int K_LANES = TALL ? 0b00111 : 0b11000;  // the bits of a lane's number that tell its k
#pragma unroll
  for (int s = 0; s < SMALL; ++s) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int bit = 1; bit < 32; bit *= 2) {
        if (K_LANES & bit) sums[s][j] += __shfl_xor_sync(~0u, sums[s][j], bit);
      }
      const int warp_k = TALL ? warp % WARPS_X : warp / WARPS_X;
      if ((lane & K_LANES) == 0) warp_sums[warp_k][s][thread_n + j] = sums[s][j];
    }
  }
  __syncthreads();

  const Epilogue epilogue{alpha, beta, bias, {} CUSTOM};
  for (int i = threadIdx.x; i < SMALL * BN; i += THREADS) {
    const int s = TALL ? i % SMALL : i / BN, n = TALL ? i / SMALL : i % BN;
    const int row = TALL ? block_n + n : s, col = TALL ? s : block_n + n;
    float sum = 0.0f;
    for (int warp = 0; warp < WARPS_K; ++warp) sum += warp_sums[warp][s][n];
    if (n < n_left) epilogue.store(element(C, ldc, row, col), sum, row, col);
  }
}
