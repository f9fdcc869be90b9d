// Operands of 8 bits on Hopper's tensor cores, whose sums are promoted to fp32 registers, or are as the
// tensor cores make them (fast accumulation).
//
// wgmma reads such operands along k; `copy_operands` has turned those that lie otherwise.
#include "mainloop/along_k.cuh"
#include "wgmma_product.cuh"

template <class In, Sums SUMS, WgmmaTile TILE, Layout LAYOUT, WriteBack WAY, Schedule SCHEDULE,
          class Epilogue>
__global__ void __launch_bounds__(TILE.threads, 1)
    gemm_fp8(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
             const __grid_constant__ TensorMap map_c, GEMM_PARAMETERS(In, Epilogue)) {
  multiply_tiles<AlongK<In, SUMS>, TILE, LAYOUT, WAY, SCHEDULE>(
      map_a, map_b, map_c, Arguments<In, Epilogue>{GEMM_ARGUMENTS});
}

// The same with scales of A and B.
template <class In, Sums SUMS, Scales SCALES, WgmmaTile TILE, Layout LAYOUT, WriteBack WAY,
          Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, 1)
    gemm_fp8_scaled(const __grid_constant__ TensorMap map_a,
                    const __grid_constant__ TensorMap map_b,
                    const __grid_constant__ TensorMap map_c, SCALE_PARAMETERS,
                    GEMM_PARAMETERS(In, Epilogue)) {
  multiply_tiles<ScaledAlongK<In, SUMS, SCALES>, TILE, LAYOUT, WAY, SCHEDULE>(
      map_a, map_b, map_c, Arguments<In, Epilogue>{GEMM_ARGUMENTS},
      OperandScales<SCALES>{SCALES_OF_A, SCALES_OF_B});
}

// Both where TMA moves what the epilogue reads and keeps besides, too.
template <class In, Sums SUMS, WgmmaTile TILE, Layout LAYOUT, WriteBack WAY, Schedule SCHEDULE,
          class Epilogue>
__global__ void __launch_bounds__(TILE.threads, 1)
    gemm_fp8_fused(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                   const __grid_constant__ TensorMap map_c, FURTHER_MAPS_PARAMETERS,
                   GEMM_PARAMETERS(In, Epilogue)) {
  multiply_tiles<AlongK<In, SUMS>, TILE, LAYOUT, WAY, SCHEDULE>(
      map_a, map_b, map_c, Arguments<In, Epilogue>{GEMM_ARGUMENTS}, Unscaled{}, FURTHER_MAPS);
}
template <class In, Sums SUMS, Scales SCALES, WgmmaTile TILE, Layout LAYOUT, WriteBack WAY,
          Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, 1)
    gemm_fp8_scaled_fused(const __grid_constant__ TensorMap map_a,
                          const __grid_constant__ TensorMap map_b,
                          const __grid_constant__ TensorMap map_c, FURTHER_MAPS_PARAMETERS,
                          SCALE_PARAMETERS, GEMM_PARAMETERS(In, Epilogue)) {
  multiply_tiles<ScaledAlongK<In, SUMS, SCALES>, TILE, LAYOUT, WAY, SCHEDULE>(
      map_a, map_b, map_c, Arguments<In, Epilogue>{GEMM_ARGUMENTS},
      OperandScales<SCALES>{SCALES_OF_A, SCALES_OF_B}, FURTHER_MAPS);
}
