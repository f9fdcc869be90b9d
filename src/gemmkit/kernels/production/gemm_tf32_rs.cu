// fp32 on Hopper's tensor cores, rounded to TF32 as by `gemm_tf32`, where one operand lies across k:
// that one comes from registers, the other from shared memory ("RS"), and none has to be turned.
//
// A wgmma's registers have its rows: those of A (AT_BT), or those of B^T (A_B), so that the transpose
// of a tile is computed. Of two operands across k, `copy_operands` has turned one.
#include "mainloop/register_operand.cuh"
#include "wgmma_product.cuh"

struct OneInRegisters {
  template <WgmmaTile TILE, Layout, bool BATCHED>
  using Mainloop = RegisterOperandMainloop<TILE, BATCHED>;
};

template <WgmmaTile TILE, Layout LAYOUT, WriteBack WAY, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, 1)
    gemm_tf32_rs(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                 const __grid_constant__ TensorMap map_c, GEMM_PARAMETERS(float, Epilogue)) {
  static_assert(LAYOUT == A_B || LAYOUT == AT_BT, "one operand lies along k, the other across");
  constexpr bool SWAPPED = LAYOUT == A_B;
  multiply_tiles<OneInRegisters, TILE, LAYOUT, WAY, SCHEDULE, SWAPPED>(
      map_a, map_b, map_c, Arguments<float, Epilogue>{GEMM_ARGUMENTS});
}
