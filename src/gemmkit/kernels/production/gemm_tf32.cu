// fp32 on Hopper's tensor cores with operands rounded to TF32: ten bits of mantissa, as TMA loads them.
//
// wgmma reads such operands along k; `copy_operands` has turned those that lie otherwise.
#include "wgmma_product.cuh"

struct Rounded {
  template <WgmmaTile TILE, Layout, bool BATCHED>
  using Mainloop = WgmmaMainloop<Tf32, TILE, A_BT, BATCHED>;
};

template <WgmmaTile TILE, Layout LAYOUT, WriteBack WAY, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, 1)
    gemm_tf32(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
              const __grid_constant__ TensorMap map_c, GEMM_PARAMETERS(float, Epilogue)) {
  multiply_tiles<Rounded, TILE, LAYOUT, WAY, SCHEDULE>(map_a, map_b, map_c,
                                                       Arguments<float, Epilogue>{GEMM_ARGUMENTS});
}
