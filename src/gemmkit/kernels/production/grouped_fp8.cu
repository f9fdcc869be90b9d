// Products of different shapes in one launch, as in `grouped_wgmma`, of 8 bits, with the sums and the scales
// of `gemm_fp8`, to the same bits.
#include "mainloop/along_k.cuh"
#include "scheduler/scaled_groups.cuh"
#include "wgmma_groups.cuh"

template <class In, Sums SUMS, WgmmaTile TILE, Layout LAYOUT, WriteBack WAY, Schedule SCHEDULE,
          class Epilogue>
__global__ void __launch_bounds__(TILE.threads, 1)
    grouped_fp8(MAPPED_GROUPS_PARAMETERS(MappedGroup, In, Epilogue)) {
  multiply_mapped_groups<In, AlongK<In, SUMS>, TILE, LAYOUT, WAY, SCHEDULE>(
      list, group_count, tile_count, CommonArguments<Epilogue>{alpha, beta, scale CUSTOM});
}

template <class In, Sums SUMS, Scales SCALES, WgmmaTile TILE, Layout LAYOUT, WriteBack WAY,
          Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, 1)
    grouped_fp8_scaled(MAPPED_GROUPS_PARAMETERS(ScaledMappedGroup, In, Epilogue)) {
  multiply_mapped_groups<In, ScaledAlongK<In, SUMS, SCALES>, TILE, LAYOUT, WAY, SCHEDULE>(
      list, group_count, tile_count, CommonArguments<Epilogue>{alpha, beta, scale CUSTOM},
      ScalesOfGroup<SCALES>{});
}
