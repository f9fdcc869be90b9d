// fp32 on Hopper's tensor cores, as exact as by FFMA, in a single launch: as `gemm_fp16x3`, but that
// consumers split tiles of both operands where TMA has left them.
#include "epilogue/finite_sums.cuh"
#include "mainloop/fp16x3_fused.cuh"
#include "wgmma_product.cuh"

struct SplitOnTheWay {
  template <WgmmaTile TILE, Layout LAYOUT, bool BATCHED>
  using Mainloop = FusedFp16x3Mainloop<TILE, LAYOUT, BATCHED>;
};

template <WgmmaTile TILE, Layout LAYOUT, WriteBack WAY, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, 1)
    gemm_fp16x3_fused(const __grid_constant__ TensorMap map_a,
                      const __grid_constant__ TensorMap map_b,
                      const __grid_constant__ TensorMap map_c, GEMM_PARAMETERS(float, Epilogue)) {
  multiply_tiles<SplitOnTheWay, TILE, LAYOUT, WAY, SCHEDULE>(
      map_a, map_b, map_c, Arguments<float, Epilogue>{GEMM_ARGUMENTS}, FiniteSums<LAYOUT>{});
}
