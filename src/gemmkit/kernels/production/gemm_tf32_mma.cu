// fp32 on tensor cores from compute capability 8.0 on, with operands rounded to TF32: ten bits of mantissa.
//
// As `gemm_mma`, but that fragments are rounded between shared memory and mma.sync.
#include "mainloop/tf32_mma.cuh"
#include "mma_product.cuh"

template <Tile TILE, Access ACCESS, Layout LAYOUT, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads) gemm_tf32_mma(GEMM_PARAMETERS(float, Epilogue)) {
  extern __shared__ float4 shared[];
  multiply_tile<CpAsyncMma<float, TILE, ACCESS, LAYOUT, RoundedTf32>, TILE, SCHEDULE>(
      Arguments<float, Epilogue>{GEMM_ARGUMENTS}, shared);
}
