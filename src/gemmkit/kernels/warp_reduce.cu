// Rung 12: skinny products, reduced by warp shuffles.
//
// With 16 rows or fewer (or columns: TALL) the other matrix is read once, and its bytes set the
// time. It streams in 4 x 4 pieces, STAGES of them ahead of a thread's arithmetic. Lanes, warps and
// blocks share k, so that all have work, and in the end add up their sums in a fixed order.
//
//   a warp's piece of B:  lanes 0-7 read 128 bytes of 4 rows, lanes 8-15 of the next 4 ...
//   the sums of lanes meet by shuffles, of warps in shared memory, of blocks in global memory
//
// Loads per result, M = 8: K/8 of B and K/32 of A from global memory, none from shared.
#include "arrival.cuh"
#include "batch.cuh"
#include "cp_async.cuh"
#include "epilogue.cuh"
#include "skinny.cuh"

template <int SMALL, bool TALL, bool STAGED, int BN, int BK, int WN, int STAGES, int VEC,
          int SMALL_VEC, bool BATCHED, class Epilogue>
__global__ void __launch_bounds__(BN* BK / 16)
    warp_reduce(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb,
                float beta, float* C, int ldc, const float* bias, float* workspace, int* arrivals,
                int batch, long long stride_a, long long stride_b, long long stride_c) {
  // The block takes BN results along the long side and BK steps of k at a time, so that each thread
  // has a 4 x 4 piece of the streamed matrix. There x runs along rows in memory and y across them.
  constexpr int THREADS = BN * BK / 16, RESULTS = SMALL * BN, PITCH = BK + 4;
  constexpr int LANES_X = WN / 4, LANES_Y = 32 / LANES_X, WARPS_X = (TALL ? BK : BN) / WN;
  constexpr int WARPS_K = TALL ? WARPS_X : THREADS / 32 / WARPS_X;
  // Pieces on their way are in registers, or in a ring where the sums leave no room for them. The
  // small matrix comes through L1, or STAGED in the ring, turned into lines along k.
  constexpr bool RING = SMALL > 8, WAITS = RING || STAGED;
  constexpr int LINES = RING ? 16 * THREADS : 0, STAGE = LINES + (STAGED ? SMALL * PITCH : 0);
  extern __shared__ float4 shared[];
  float* const ring = reinterpret_cast<float*>(shared);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_x = warp % WARPS_X * WN;
  const int y = (warp / WARPS_X * LANES_Y + lane / LANES_X) * 4;
  const auto x = [=](int j) {  // whole warps read neighbours, with single floats too
    return warp_x + (j / VEC * LANES_X + lane % LANES_X) * VEC + j % VEC;
  };
  if (alpha == 0.0f) K = 0;  // BLAS: alpha = 0 never reads A or B
  const int tiles = ((TALL ? M : N) + BN - 1) / BN;
  const BatchPlace<BATCHED> at(gridDim.y, tiles, batch);
  if (BATCHED && at.product >= batch) return;  // surplus in the grid
  A += at.product * stride_a, B += at.product * stride_b, C += at.product * stride_c;
  const int block_result = at.tile_col * BN, parts = gridDim.y, part = blockIdx.y;
  const int all_steps = (K + BK - 1) / BK, share = all_steps / parts, more = all_steps % parts;
  const int steps = share + (part < more), k_begin = (part * share + min(part, more)) * BK;

  const float* const streamed = TALL ? element(A, lda, block_result + y, k_begin)
                                     : element(B, ldb, k_begin + y, block_result);
  const auto start = [&](int step, int stage, float (&piece)[4][4]) {
    const int k = step * BK, k_left = step < steps ? K - k_begin - k : 0;
    const int x_left = TALL ? k_left : N - block_result, y_left = TALL ? M - block_result : k_left;
    const float* const from = TALL ? streamed + k : element(streamed, ldb, k, 0);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; j += VEC) {
        const float* const source = element(from, TALL ? lda : ldb, i, x(j));
        const bool inside = x(j) < x_left && y + i < y_left;
        if (RING) {
          const int slot = ((4 * i + j) / VEC * THREADS + threadIdx.x) * VEC;
          cp_async<VEC>(ring + stage * STAGE + slot, source, inside);
        } else {
#pragma unroll
          for (int v = 0; v < VEC; ++v) piece[i][j + v] = 0.0f;
          if (inside) read_once<VEC>(&piece[i][j], source);
        }
      }
    }
    if (STAGED) {
      copy_lines<THREADS, SMALL, BK, PITCH, TALL>(
          ring + stage * STAGE + LINES, TALL ? element(B, ldb, k_begin + k, 0) : A + k_begin + k,
          TALL ? ldb : lda, TALL ? N : M, k_left);
    }
    if (WAITS) cp_async_commit();
  };

  // One piece at work, STAGES on their way; TURNS steps go by before a register is used again.
  constexpr int TURNS = RING ? 1 : STAGES + 1;
  alignas(16) float pieces[TURNS][4][4];
#pragma unroll
  for (int step = 0; step < STAGES; ++step) start(step, step, pieces[step % TURNS]);

  const float* lines = TALL ? B + k_begin : A + k_begin + y;  // of the small matrix, along k
  alignas(16) float sums[SMALL * 4] = {};
  for (int step = 0, stage = 0; step < steps;) {
#pragma unroll
    for (int turn = 0; turn < TURNS && step < steps; ++turn, ++step) {
      if (WAITS) {
        cp_async_wait<STAGES - 1>();
        __syncthreads();  // this stage is there, and nobody reads the one before it any more
      }
      start(step + STAGES, stage == 0 ? STAGES : stage - 1, pieces[(turn + STAGES) % TURNS]);

      alignas(16) float line[SMALL][4] = {};
      const float* const staged = ring + stage * STAGE;
      const int k_left = K - k_begin - step * BK;
#pragma unroll
      for (int s = 0; s < SMALL; ++s) {
#pragma unroll
        for (int i = 0; i < 4; i += SMALL_VEC) {
          const int k = TALL ? x(i) : y + i;
          if (STAGED) {
            copy_vector<SMALL_VEC>(&line[s][i], staged + LINES + s * PITCH + k);
          } else if (k < k_left) {  // the last line stands for those that nobody wants
            const int row = TALL ? 0 : min(s, M - 1);
            read_cached<SMALL_VEC>(&line[s][i], element(lines, lda, row, TALL ? k : i));
          }
        }
      }
      float (&piece)[4][4] = pieces[turn];
#pragma unroll
      for (int i = 0; RING && i < 16; i += VEC) {
        const int slot = (i / VEC * THREADS + threadIdx.x) * VEC;
        copy_vector<VEC>(&piece[i / 4][i % 4], staged + slot);
      }
#pragma unroll
      for (int s = 0; s < SMALL; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            sums[4 * s + (TALL ? i : j)] += line[s][TALL ? j : i] * piece[i][j];
          }
        }
      }
      lines += BK;
      stage = stage == STAGES ? 0 : stage + 1;
    }
  }
  if (WAITS) cp_async_wait<0>();
  __syncthreads();  // the ring is free: it takes the sums of the warps now

  constexpr int LANES_K = TALL ? LANES_X : LANES_Y, STRIDE = TALL ? 1 : LANES_X;
  constexpr int LEFT = 4 * SMALL > LANES_K ? 4 * SMALL / LANES_K : 1;
  const int warp_k = TALL ? warp % WARPS_X : warp / WARPS_X;
  const int first = reduce_lanes<LANES_K, STRIDE, 4 * SMALL>(sums);
  constexpr int WIDTH = !TALL && LEFT % VEC == 0 ? VEC : 1;
#pragma unroll
  for (int i = 0; i < LEFT; i += WIDTH) {
    const int s = (first + i) / 4, j = (first + i) % 4;
    const int place = TALL ? (y + j) * SMALL + s : s * BN + x(j);
    copy_vector<WIDTH>(&ring[warp_k * RESULTS + place], sums + i);
  }
  __syncthreads();

  const Epilogue epilogue{alpha, beta, bias};
  const auto finish = [&](int place, float sum) {
    const int row = TALL ? block_result + place / SMALL : place / BN;
    const int col = TALL ? place % SMALL : block_result + place % BN;
    if (row < M && col < N) epilogue.store(element(C, ldc, row, col), sum, col);
  };
  if (parts == 1) return add_up<THREADS, RESULTS>(ring, WARPS_K, finish);
  const unsigned slot = at.product * tiles + at.tile_col;
  float* const left = workspace + static_cast<long long>(slot) * parts * RESULTS;
  add_up<THREADS, RESULTS>(ring, WARPS_K,
                           [&](int place, float sum) { left[part * RESULTS + place] = sum; });
  if (arrives_last(&arrivals[slot], parts)) add_up<THREADS, RESULTS>(left, parts, finish);
}
