// Rung 18: TMA. One thread starts the copy of a whole tile; it swizzles, and zero-fills the edges.
//
// Two barriers a stage take the place of __syncthreads: `full` counts the bytes that have come,
// `empty` the warps that have multiplied them. Who waits for neither goes on.
//
//   thread 0     load 3 --> stage 3      load 4 --> stage 0      one instruction a box
//   warpgroup 0    full 0 | products | empty 0   full 1 | products | empty 1
//   warpgroup 1      full 0 | products | empty 0   full 1 | products | empty 1
//
// Loads per result, 128 x 256: 3K/256 elements from global memory, by TMA, 5K/256 shared.
#include "epilogue.cuh"
#include "tma.cuh"
#include "warpgroup.cuh"

template <class In, int BM, int BN, int BK, int STAGES, int VEC, class Epilogue>
__global__ void __launch_bounds__(BM / WGMMA_ROWS * 128)
    tma(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, int M,
        int N, int K, float alpha, float beta, typename Epilogue::Out* C, int ldc,
        const typename Epilogue::Out* bias CUSTOM_PARAMETERS) {
  constexpr int WARPS = BM / WGMMA_ROWS * 4;
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
  const int warpgroup_row = threadIdx.x / 128 * WGMMA_ROWS;
  if (block_row >= M) return;                               // a surplus block of the grid
  const int steps = alpha != 0.0f ? (K + BK - 1) / BK : 0;  // BLAS: alpha = 0 never reads A or B

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      shared.full[stage].init(1);
      shared.empty[stage].init(WARPS);
    }
    make_barriers_visible();
  }
  __syncthreads();

  // By one thread, when the stage is empty.
  const auto load = [&](int step, int stage) {
    Stage& to = shared.stages[stage];
    Barrier& full = shared.full[stage];
    full.arrive_expecting(sizeof(Stage));
    tma_load<false, false>(to.As.box(0), map_a, {step * BK, block_row, 0}, full, 0);
#pragma unroll
    for (int box = 0; box < to.Bs.BOXES; ++box) {
      const int col = block_col + box * to.Bs.SPAN;
      tma_load<false, false>(to.Bs.box(box), map_b, {col, step * BK, 0}, full, 0);
    }
  };
  if (threadIdx.x == 0) {
    for (int step = 0; step < STAGES && step < steps; ++step) load(step, step);
  }

  float sums[BN / 2];
  leave_undefined(sums);
  StageCounter<STAGES> now, before;
#pragma unroll 1
  for (int step = 0; step < steps; ++step, now.advance()) {
    const Stage& tiles = shared.stages[now.stage];
    shared.full[now.stage].wait(now.parity);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BK; k += 16) {
      Wgmma<In, BN, true, false>::multiply(sums, tiles.As.descriptor(warpgroup_row, k),
                                           tiles.Bs.descriptor(0, k), step > 0 || k > 0);
    }
    wgmma_commit();
    if (step == 0) continue;
    wgmma_wait<1>();  // this warp's products of the step before
    if (threadIdx.x % 32 == 0) shared.empty[before.stage].arrive();
    if (threadIdx.x == 0 && step - 1 + STAGES < steps) {
      shared.empty[before.stage].wait(before.parity);  // those of all warps
      load(step - 1 + STAGES, before.stage);
    }
    before.advance();
  }
  wgmma_wait<0>(sums);
  if (steps == 0) {
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
  }
  store_sums<VEC == 1 ? 1 : 2>(sums, Epilogue{alpha, beta, bias, {} CUSTOM}, C, ldc, M, N,
                               block_row + warpgroup_row, block_col);
}
