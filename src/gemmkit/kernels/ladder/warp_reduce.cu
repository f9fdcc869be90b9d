// Rung 12: skinny products, reduced by warp shuffles.
//
// With 16 rows or fewer, almost all the work is to read B once: a warp reads 128 bytes of each of
// 16 rows of B. So the lanes of a warp, and the warps of a block, share k, and their sums have to be
// added up: those of lanes by shuffles, those of warps in shared memory, each in a fixed order.
//
//   B, k along y:   lanes 0-7:   rows 0-3      With 16 columns or fewer (TALL), A is read the same
//   32 columns      lanes 8-15:  rows 4-7      way: its rows run along k, and k is x, not y.
//
// Loads per result, M = 16: K/16 of B and K/32 of A from global memory, K/4 from shared.
#include "cp_async.cuh"
#include "epilogue.cuh"

template <int SMALL, bool TALL, int BN, int BK, int PAD, int VEC, class Epilogue>
__global__ void __launch_bounds__(BN* BK / 16)
    warp_reduce(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb,
                float beta, float* C, int ldc, const float* bias CUSTOM_PARAMETERS) {
  // SMALL is M, or N if TALL; a block takes BN results along the other side, BK of k in a step.
  constexpr int WARP_X = 32, WARP_Y = 16;  // floats that a warp reads, each lane 4 x 4 of them
  constexpr int WARPS_K = BK / (TALL ? WARP_X : WARP_Y), THREADS = BN * BK / 16;
  extern __shared__ float4 shared[];
  const auto lines = reinterpret_cast<float(*)[SMALL][BK + PAD]>(shared);  // two stages of these
  const auto warp_sums = reinterpret_cast<float(*)[SMALL][BN]>(lines + 2);

  const int lane = threadIdx.x % 32, warp_k = threadIdx.x / 32 % WARPS_K;
  const int warp_n = threadIdx.x / 32 / WARPS_K;
  const int lane_x = lane % 8 * 4, lane_y = lane / 8 * 4;
  const int thread_k = TALL ? warp_k * WARP_X + lane_x : warp_k * WARP_Y + lane_y;
  const int thread_n = TALL ? warp_n * WARP_Y + lane_y : warp_n * WARP_X + lane_x;
  const int block_n = blockIdx.x * BN;
  if (alpha == 0.0f) K = 0;  // BLAS: alpha = 0 never reads A or B

  // Reads this thread's 4 x 4 floats of the large matrix for the step that begins at k; else zeros.
  const auto fetch = [&](float(&piece)[4][4], int k) {
    const int x = TALL ? k + thread_k : block_n + thread_n;
    const int y = TALL ? block_n + thread_n : k + thread_k;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; j += VEC) {
        for (int v = 0; v < VEC; ++v) piece[i][j + v] = 0.0f;
        if (y + i < (TALL ? M : K) && x + j < (TALL ? K : N)) {
          copy_vector<VEC>(&piece[i][j], TALL ? element(A, lda, y + i, x + j)
                                              : element(B, ldb, y + i, x + j));
        }
      }
    }
  };
  // Starts the copies of BK floats of each row of A (or column of B) to a stage.
  const auto copy_lines = [&](int stage, int k) {
#pragma unroll 4
    for (int i = threadIdx.x; i < SMALL * BK; i += THREADS) {
      const int line = TALL ? i % SMALL : i / BK, at = TALL ? i / SMALL : i % BK;
      const float* from = TALL ? element(B, ldb, k + at, line) : element(A, lda, line, k + at);
      cp_async<1>(&lines[stage][line][at], from, k + at < K);
    }
    cp_async_commit();
  };

  alignas(16) float next[4][4];
  fetch(next, 0);
  copy_lines(0, 0);
  float sums[SMALL][4] = {};
  for (int k = 0, stage = 0; k < K; k += BK, stage ^= 1) {
    cp_async_wait<0>();
    __syncthreads();  // the lines of this stage are complete; nobody reads the other stage
    float piece[4][4];
#pragma unroll
    for (int i = 0; i < 16; ++i) piece[i / 4][i % 4] = next[i / 4][i % 4];
    fetch(next, k + BK);  // under way during the arithmetic on this piece
    copy_lines(stage ^ 1, k + BK);

#pragma unroll
    for (int s = 0; s < SMALL; ++s) {
      alignas(16) float line[4];
      copy_vector<4>(line, &lines[stage][s][thread_k]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[s][j] += line[i] * (TALL ? piece[j][i] : piece[i][j]);
      }
    }
  }
  cp_async_wait<0>();  // a block must not end before its copies

  constexpr int K_LANES = TALL ? 0b00111 : 0b11000;  // the bits of a lane that say which k it has
#pragma unroll
  for (int s = 0; s < SMALL; ++s) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int bit = 1; bit < 32; bit *= 2) {
        if (K_LANES & bit) sums[s][j] += __shfl_xor_sync(~0u, sums[s][j], bit);
      }
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
    if (row < M && col < N) epilogue.store(element(C, ldc, row, col), sum, row, col);
  }
}
