// Many products of different shapes in one launch.
//
// A small product leaves most of the board idle, and launching thousands takes longer than they do.
// Here the tiles of all products make one line. A block finds out whose tile it has, works on it as
// `gemm_tiled` does, and takes the tile one grid further; its first copies are in flight while the
// sums of the last one are stored.
//
//   groups |   0   |1|     2     | 3 |      each with sizes and addresses of its own
//   tiles  | 0 1 2 |3| 4 5 6 7 8 |9 10|     block b: b, b + gridDim.x, b + 2 gridDim.x ...
#include "epilogue/float4_store.cuh"
#include "mainloop/cp_async_fma.cuh"
#include "scheduler/grouped.cuh"

template <Tile TILE, Access ACCESS, Layout LAYOUT, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, TILE.min_blocks)
    gemm_grouped(const Group<>* list, int group_count, int tile_count, float alpha, float beta,
                 float scale CUSTOM_PARAMETERS) {
  extern __shared__ float4 shared[];
  using Mainloop = CpAsyncFma<TILE, ACCESS.c, LAYOUT>;
  const Mainloop mainloop(shared);
  const Groups<SCHEDULE.raster> groups{list, group_count, tile_count};

  const auto start = [&](const GroupTile& place) {
    const Group<>& group = list[place.group];
    const int row = place.row * TILE.BM, col = place.col * TILE.BN;
    const int K = alpha == 0.0f ? 0 : group.K;  // BLAS: alpha = 0 never reads A or B
    return mainloop.start(element_of<Mainloop::A_T>(group.A, group.lda, row, 0), group.lda,
                          {row, group.M}, element_of<Mainloop::B_T>(group.B, group.ldb, 0, col),
                          group.ldb, {col, group.N}, K);
  };
  int tile = blockIdx.x;
  if (tile >= tile_count) return;
  GroupTile next = groups.place(tile);
  auto feed = start(next);
  for (bool more = true; more;) {
    float sums[TILE.TM][TILE.TN] = {};
    mainloop.multiply(sums, feed);
    __syncthreads();  // nobody reads the stages any more
    const GroupTile work = next;
    more = tile_count - tile > static_cast<int>(gridDim.x);
    if (more) {
      tile += gridDim.x;
      next = groups.place(tile);
      feed = start(next);  // in flight while these sums are stored
    }

    const Group<>& group = list[work.group];
    const Float4Store<Epilogue> epilogue{
        {alpha,
         beta,
         group.bias,
         {group.residual, group.ldr, group.auxiliary, group.ldx, scale} CUSTOM}};
    mainloop.store(sums, epilogue, group.C, group.ldc, group.M, group.N, work.row * TILE.BM,
                   work.col * TILE.BN);
  }
}
