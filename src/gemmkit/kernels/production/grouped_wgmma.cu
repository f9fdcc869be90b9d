// Products of different shapes in one launch, as in `gemm_grouped`, of 16 bits on Hopper's tensor cores: TMA
// loads tiles, warpgroups multiply them by wgmma, as in `gemm_wgmma` and to the same bits.
#include "wgmma_groups.cuh"

template <class In, WgmmaTile TILE, Layout LAYOUT, WriteBack WAY, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, 1)
    grouped_wgmma(MAPPED_GROUPS_PARAMETERS(MappedGroup, In, Epilogue)) {
  multiply_mapped_groups<In, InPlace<In>, TILE, LAYOUT, WAY, SCHEDULE>(
      list, group_count, tile_count, CommonArguments<Epilogue>{alpha, beta, scale CUSTOM});
}
