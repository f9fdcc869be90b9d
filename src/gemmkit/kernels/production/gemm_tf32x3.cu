// fp32 on tensor cores from compute capability 8.0 on, as exact as by FFMA: each operand is the sum of two
// parts of TF32, and three of the four products of these count.
//
// As `gemm_mma`, but that fragments are split between shared memory and mma.sync, and fp32 registers take
// the sums of each 8 of k. Results that are not finite are computed again without tensor cores.
#include "mainloop/tf32_mma.cuh"
#include "mma_product.cuh"

template <Tile TILE, Access ACCESS, Layout LAYOUT, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads) gemm_tf32x3(GEMM_PARAMETERS(float, Epilogue)) {
  extern __shared__ float4 shared[];
  multiply_tile<Tf32x3Mainloop<TILE, ACCESS, LAYOUT>, TILE, SCHEDULE>(
      Arguments<float, Epilogue>{GEMM_ARGUMENTS}, shared);
}
