// Rung 19: warp specialization. A producer only loads, two consumer warpgroups only multiply.
//
// The producer waits for empty stages where nobody else has to, and gives its registers to the
// consumers: 40 a thread instead of 168, which leaves them 232.
//
//   producer     load 4  load 5 ...  waits for `empty`, sets the bytes of `full`
//   consumer 0   | products 0 | products 1 | products 2 |   rows 0-63
//   consumer 1     | products 0 | products 1 | products 2 | rows 64-127
//
// Loads per result, 128 x 256: 3K/256 elements from global memory, by TMA, 5K/256 shared.
#include "epilogue.cuh"
#include "tma.cuh"
#include "warpgroup.cuh"

template <class In, int BM, int BN, int BK, int STAGES, int VEC, class Epilogue>
__global__ void __launch_bounds__(BM / WGMMA_ROWS * 128 + 128, 1)
    warp_specialized(const __grid_constant__ TensorMap map_a,
                     const __grid_constant__ TensorMap map_b, int M, int N, int K, float alpha,
                     float beta, typename Epilogue::Out* C, int ldc,
                     const typename Epilogue::Out* bias CUSTOM_PARAMETERS) {
  constexpr int CONSUMERS = BM / WGMMA_ROWS, PRODUCER = CONSUMERS * 128;
  // With one block per SM in the launch bounds, a block has 168 registers a thread.
  static_assert(CONSUMERS == 2, "3 x 168 registers are 40 + 2 x 232");
  struct Stage {
    WarpgroupTile<In, BM, BK, true> As;
    WarpgroupTile<In, BN, BK, false> Bs;
  };
  struct Shared {
    Stage stages[STAGES];
    Barrier full[STAGES], empty[STAGES];
  };
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);

  const int block_row = grid_row() * BM, block_col = blockIdx.x * BN;
  if (block_row >= M) return;                               // a surplus block of the grid
  const int steps = alpha != 0.0f ? (K + BK - 1) / BK : 0;  // BLAS: alpha = 0 never reads A or B

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      shared.full[stage].init(1);
      shared.empty[stage].init(CONSUMERS * 4);  // a warp each
    }
    make_barriers_visible();
  }
  __syncthreads();

  StageCounter<STAGES> at;
  if (threadIdx.x >= PRODUCER) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x > PRODUCER) return;
    for (int step = 0; step < steps; ++step, at.advance()) {
      Stage& to = shared.stages[at.stage];
      Barrier& full = shared.full[at.stage];
      shared.empty[at.stage].wait(at.parity ^ 1);  // in the first round at once
      full.arrive_expecting(sizeof(Stage));
      tma_load<false, false>(to.As.box(0), map_a, {step * BK, block_row, 0}, full, 0);
#pragma unroll
      for (int box = 0; box < to.Bs.BOXES; ++box) {
        const int col = block_col + box * to.Bs.SPAN;
        tma_load<false, false>(to.Bs.box(box), map_b, {col, step * BK, 0}, full, 0);
      }
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  const int consumer_row = threadIdx.x / 128 * WGMMA_ROWS;
  float sums[BN / 2];
  leave_undefined(sums);
  int held = 0;  // the stage that products under way read
#pragma unroll 1
  for (int step = 0; step < steps; ++step, at.advance()) {
    const Stage& tiles = shared.stages[at.stage];
    shared.full[at.stage].wait(at.parity);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BK; k += 16) {
      Wgmma<In, BN, true, false>::multiply(sums, tiles.As.descriptor(consumer_row, k),
                                           tiles.Bs.descriptor(0, k), step > 0 || k > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();  // the products of the step before
    if (step > 0 && threadIdx.x % 32 == 0) shared.empty[held].arrive();
    held = at.stage;
  }
  wgmma_wait<0>(sums);
  if (steps == 0) {
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
  }
  store_sums<VEC == 1 ? 1 : 2>(sums, Epilogue{alpha, beta, bias, {} CUSTOM}, C, ldc, M, N,
                               block_row + consumer_row, block_col);
}
