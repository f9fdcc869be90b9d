// Products of different shapes in one launch, as in `gemm_grouped`, on the tensor cores: float16,
// bfloat16 and float64, with the mainloop of `typed_mma`.
#include "grouped_products.cuh"
#include "mainloop/mma_sync.cuh"

template <class In, Tile TILE, Access ACCESS, Layout LAYOUT, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads)
    grouped_mma(GROUPED_PARAMETERS(Group, In, Epilogue)) {
  extern __shared__ float4 shared[];
  using Mainloop = MmaSync<In, TILE, ACCESS, LAYOUT>;
  using Sums = typename Mainloop::Sums;
  const Groups<SCHEDULE.raster, In, typename Epilogue::Out> groups{list, group_count, tile_count};
  multiply_groups<Sums, TILE.BM, TILE.BN>(Mainloop(shared), groups,
                                          SharedArguments<Epilogue>{alpha, beta, scale CUSTOM});
}
