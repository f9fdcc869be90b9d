// Products of different shapes in one launch, as in `gemm_grouped`, of every type that `typed` takes and
// with its mainloop.
#include "grouped_products.cuh"
#include "mainloop/register_staged.cuh"

template <class In, Tile TILE, Access ACCESS, Layout LAYOUT, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, TILE.min_blocks)
    grouped_typed(GROUPED_PARAMETERS(In, Epilogue)) {
  extern __shared__ float4 shared[];
  using Mainloop = RegisterStaged<In, typename Epilogue::Sum, TILE, ACCESS, LAYOUT>;
  using Sums = typename Epilogue::Sum[TILE.TM][TILE.TN];
  const Groups<SCHEDULE.raster, In, typename Epilogue::Out> groups{list, group_count, tile_count};
  multiply_groups<Sums, TILE.BM, TILE.BN, Mainloop, Epilogue>(Mainloop(shared), groups, alpha, beta,
                                                              scale CUSTOM);
}
