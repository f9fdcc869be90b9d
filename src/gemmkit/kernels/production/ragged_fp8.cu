// Ragged products of 8 bits on Hopper's tensor cores, as in `ragged_wgmma`, with the sums and the scales of
// `gemm_fp8`, to the same bits.
#include "mainloop/along_k.cuh"
#include "ragged_product.cuh"

template <class In, Sums SUMS, WgmmaTile TILE, Layout LAYOUT, WriteBack WAY, Schedule SCHEDULE,
          class Offset, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, 1)
    ragged_fp8(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
               const __grid_constant__ TensorMap map_c, RAGGED_PARAMETERS(Offset, Epilogue)) {
  multiply_ragged<AlongK<In, SUMS>, TILE, LAYOUT, WAY, SCHEDULE>(
      map_a, map_b, map_c, RaggedArguments<Offset, Epilogue>{RAGGED_ARGUMENTS});
}

// The same with scales: those of A are of its rows, whatever group these belong to, or `scale_a_stride`
// apart from group to group.
template <class In, Sums SUMS, Scales SCALES, WgmmaTile TILE, Layout LAYOUT, WriteBack WAY,
          Schedule SCHEDULE, class Offset, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, 1)
    ragged_fp8_scaled(const __grid_constant__ TensorMap map_a,
                      const __grid_constant__ TensorMap map_b,
                      const __grid_constant__ TensorMap map_c, SCALE_PARAMETERS,
                      RAGGED_PARAMETERS(Offset, Epilogue)) {
  multiply_ragged<ScaledAlongK<In, SUMS, SCALES>, TILE, LAYOUT, WAY, SCHEDULE>(
      map_a, map_b, map_c, RaggedArguments<Offset, Epilogue>{RAGGED_ARGUMENTS},
      OperandScales<SCALES>{SCALES_OF_A, SCALES_OF_B});
}
