// Rung 20: clusters. Two blocks, one above the other in C, need the same tile of B.
//
// Each loads half of it, and TMA multicasts that half to both. A stage is empty when the consumers
// of both blocks have read it, since both producers write there.
//
//   block 0   A 0 ──► [A 0 | B left  B right]      B left  ──► both
//   block 1   A 1 ──► [A 1 | B left  B right]      B right ──► both
//
// Loads per result, 2 x 128 x 256: K/128 elements from global memory, by TMA, 5K/256 shared.
#include "epilogue.cuh"
#include "tma.cuh"
#include "warpgroup.cuh"

template <class In, int BM, int BN, int BK, int STAGES, int VEC, class Epilogue>
__global__ void __launch_bounds__(BM / WGMMA_ROWS * 128 + 128, 1)
    cluster_multicast(const __grid_constant__ TensorMap map_a,
                      const __grid_constant__ TensorMap map_b, int M, int N, int K, float alpha,
                      float beta, typename Epilogue::Out* C, int ldc,
                      const typename Epilogue::Out* bias CUSTOM_PARAMETERS) {
  constexpr int CONSUMERS = BM / WGMMA_ROWS, PRODUCER = CONSUMERS * 128, CLUSTER = 2;
  constexpr unsigned short BOTH = 0b11;
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

  // The blocks of a cluster are neighbors along x. One past the end of C still loads its half.
  const int rank = cluster_rank(), cluster_row = grid_row() * CLUSTER * BM;
  const int block_row = cluster_row + rank * BM, block_col = blockIdx.x / CLUSTER * BN;
  if (cluster_row >= M) return;                             // a surplus cluster of the grid
  const int steps = alpha != 0.0f ? (K + BK - 1) / BK : 0;  // BLAS: alpha = 0 never reads A or B

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      shared.full[stage].init(1);
      shared.empty[stage].init(CLUSTER * CONSUMERS * 4);
    }
    make_barriers_visible();
  }
  cluster_sync();  // the peer finds them, too

  StageCounter<STAGES> at;
  if (threadIdx.x >= PRODUCER) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x > PRODUCER) return;
    for (int step = 0; step < steps; ++step, at.advance()) {
      Stage& to = shared.stages[at.stage];
      Barrier& full = shared.full[at.stage];
      shared.empty[at.stage].wait(at.parity ^ 1);
      full.arrive_expecting(sizeof(Stage));  // with the peer's half
      tma_load<false, false>(to.As.box(0), map_a, {step * BK, block_row, 0}, full, 0);
#pragma unroll
      for (int i = 0; i < to.Bs.BOXES / CLUSTER; ++i) {
        const int box = i * CLUSTER + rank, col = block_col + box * to.Bs.SPAN;
        tma_load<false, true>(to.Bs.box(box), map_b, {col, step * BK, 0}, full, BOTH);
      }
    }
    // A block must not end before the peer's last arrivals.
    for (int stage = 0; stage < STAGES; ++stage, at.advance()) {
      shared.empty[at.stage].wait(at.parity ^ 1);
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  const int consumer_row = threadIdx.x / 128 * WGMMA_ROWS;
  // Lanes 0 and 1 of a warp tell both producers that it has read a stage.
  const auto release = [&](int stage) {
    if (threadIdx.x % 32 < CLUSTER) shared.empty[stage].arrive_at(threadIdx.x % 32);
  };
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
    if (step > 0) release(held);
    held = at.stage;
  }
  wgmma_wait<0>(sums);
  if (steps > 0) release(held);
  if (steps == 0) {
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
  }
  store_sums<VEC == 1 ? 1 : 2>(sums, Epilogue{alpha, beta, bias, {} CUSTOM}, C, ldc, M, N,
                               block_row + consumer_row, block_col);
}
