// Products of different shapes in one launch, as in `gemm_grouped`, of every type that `typed` takes and
// with its mainloop.
#include "grouped_products.cuh"
#include "mainloop/scaled_chunks.cuh"
#include "scheduler/scaled_groups.cuh"

template <class In, Tile TILE, Access ACCESS, Layout LAYOUT, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, TILE.min_blocks)
    grouped_typed(GROUPED_PARAMETERS(Group, In, Epilogue)) {
  extern __shared__ float4 shared[];
  using Mainloop = RegisterStaged<In, typename Epilogue::Sum, TILE, ACCESS, LAYOUT>;
  using Sums = typename Epilogue::Sum[TILE.TM][TILE.TN];
  const Groups<SCHEDULE.raster, In, typename Epilogue::Out> groups{list, group_count, tile_count};
  multiply_groups<Sums, TILE.BM, TILE.BN>(Mainloop(shared), groups,
                                          SharedArguments<Epilogue>{alpha, beta, scale CUSTOM});
}

// The same with scales of A and B.
template <class In, Tile TILE, Access ACCESS, Layout LAYOUT, Schedule SCHEDULE, Scales SCALES,
          class Epilogue>
__global__ void __launch_bounds__(TILE.threads, TILE.min_blocks)
    grouped_typed_scaled(GROUPED_PARAMETERS(ScaledGroup, In, Epilogue)) {
  extern __shared__ float4 shared[];
  using Mainloop = ScaledChunks<SCALES, In, TILE, ACCESS, LAYOUT>;
  using Its = ScaledGroup<In, typename Epilogue::Out>;
  const Groups<SCHEDULE.raster, In, typename Epilogue::Out, Its> groups{list, group_count,
                                                                        tile_count};
  multiply_groups<float[TILE.TM][TILE.TN], TILE.BM, TILE.BN>(
      Mainloop(shared), groups, SharedArguments<Epilogue>{alpha, beta, scale CUSTOM},
      ScalesOfGroup<SCALES>{});
}
