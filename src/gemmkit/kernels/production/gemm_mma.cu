// float16, bfloat16 and float64 on tensor cores from compute capability 8.0 on: a tile of C for each
// block, its operands copied by cp.async several stages ahead, and multiplied by mma.sync.
//
// The mainloop is that of rung 16, in every layout, with fragments that are read one step ahead. A
// matrix whose rows do not begin at multiples of 16 bytes is copied by a launch before.
#include "mainloop/cp_async_mma.cuh"
#include "mma_product.cuh"

template <class In, Tile TILE, Access ACCESS, Layout LAYOUT, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads) gemm_mma(GEMM_PARAMETERS(In, Epilogue)) {
  extern __shared__ float4 shared[];
  multiply_tile<CpAsyncMma<In, TILE, ACCESS, LAYOUT>, TILE, SCHEDULE>(
      Arguments<In, Epilogue>{GEMM_ARGUMENTS}, shared);
}
