// Operands of 16 bits on Hopper's tensor cores: TMA loads tiles, warpgroups multiply them by wgmma.
#include "wgmma_product.cuh"

template <class In, WgmmaTile TILE, Layout LAYOUT, WriteBack WAY, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, 1)
    gemm_wgmma(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
               const __grid_constant__ TensorMap map_c, GEMM_PARAMETERS(In, Epilogue)) {
  multiply_tiles<InPlace<In>, TILE, LAYOUT, WAY, SCHEDULE>(map_a, map_b, map_c,
                                                           Arguments<In, Epilogue>{GEMM_ARGUMENTS});
}

// The same where TMA moves what the epilogue reads and keeps besides, too.
template <class In, WgmmaTile TILE, Layout LAYOUT, WriteBack WAY, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, 1)
    gemm_wgmma_fused(const __grid_constant__ TensorMap map_a,
                     const __grid_constant__ TensorMap map_b,
                     const __grid_constant__ TensorMap map_c, FURTHER_MAPS_PARAMETERS,
                     GEMM_PARAMETERS(In, Epilogue)) {
  multiply_tiles<InPlace<In>, TILE, LAYOUT, WAY, SCHEDULE>(
      map_a, map_b, map_c, Arguments<In, Epilogue>{GEMM_ARGUMENTS}, Unscaled{}, FURTHER_MAPS);
}
