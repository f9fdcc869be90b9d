// The k of a tile is split, over blocks and over the warps of a block.
//
// A small product has fewer tiles than the board has SMs. Here several blocks share a tile, each
// on its part of k; all leave their sums in the workspace, and the last to arrive adds them up.
// Within a block `slice_k` groups of warps share each step of k, and meet in shared memory.
//
//   k:  | part 0: slices 0 1 2 0 1 2 | part 1: slices 0 1 2 0 1 2 |   2 blocks of 3 groups of warps
//
// Loads per result: those of `gemm_tiled` with the same tile; besides, a float goes to the workspace
// and back per part.
#include "arguments.cuh"
#include "dependent_launch.cuh"
#include "epilogue/fix_up.cuh"
#include "mainloop/cp_async_fma.cuh"
#include "residue_tiles.cuh"
#include "scheduler/batch.cuh"

template <Tile TILE, Access ACCESS, Layout LAYOUT, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, TILE.min_blocks)
    gemm_split_k(GEMM_PARAMETERS(float, Epilogue)) {
  const Arguments<float, Epilogue> args{GEMM_ARGUMENTS};
  wait_for_previous_kernel();
  extern __shared__ __align__(128) float4 shared[];
  using Mainloop = CpAsyncFma<TILE, ACCESS.c, LAYOUT>;
  constexpr int BM = TILE.BM, BN = TILE.BN, BK = TILE.BK, THREADS = TILE.threads;
  constexpr int SLICES = TILE.slice_k, VEC = ACCESS.c;
  constexpr int PIPELINE = TILE.stages * Mainloop::STAGE_FLOATS;
  constexpr int SUMS = SLICES > 1 ? SLICES * BM * BN : 0;
  const Mainloop mainloop(shared);

  // Parts of k run over z; but with more row tiles than y has room for, z is theirs and k whole.
  const BatchPlace<SCHEDULE.batched> place((M + BM - 1) / BM, (N + BN - 1) / BN, args.batch);
  const bool split = SCHEDULE.residue.width > 0 ? SCHEDULE.residue.split
                                                : !SCHEDULE.batched && gridDim.y * BM >= M;
  const int parts = split ? gridDim.z : place.parts, part = split ? blockIdx.z : place.part;
  const int tile_row = split ? blockIdx.y : place.tile_row;
  const int block_row = tile_row * BM, block_col = place.tile_col * BN;
  if constexpr (SCHEDULE.residue.width > 0) {
    const ResidueTiles<TILE, SCHEDULE.residue, LAYOUT> residue(M, N);
    const int rows = residue.tile_rows();
    if (tile_row >= rows) {
      const int line = part * (gridDim.y - rows) + tile_row - rows;
      return residue.compute(line * gridDim.x + blockIdx.x, shared, args);
    }
  }
  if (block_row >= M || (SCHEDULE.batched && place.product >= args.batch)) return;  // surplus
  K = args.depth();

  // Whole steps of k, the first parts taking one more where they do not come out even.
  const int steps = (K + BK - 1) / BK, share = steps / parts, more = steps % parts;
  const int k = (part * share + min(part, more)) * BK;
  const int depth = min(K - k, (share + (part < more)) * BK);

  // The columns' biases come along with the first tiles: in the end, results would wait for them.
  constexpr bool BIASES = Epilogue::BY_COLUMN;
  float* const biases = reinterpret_cast<float*>(shared) + (PIPELINE > SUMS ? PIPELINE : SUMS);
#pragma unroll
  for (int first = 0; first < (BIASES ? BN : 0); first += THREADS) {
    const int i = first + threadIdx.x;
    if (i < BN) cp_async<1>(biases + i, args.bias + min(block_col + i, N - 1), true);
  }
  float sums[TILE.TM][TILE.TN] = {};
  mainloop.multiply(sums, element_of<Mainloop::A_T>(args.a(place.product), args.lda, block_row, k),
                    args.lda, {block_row, M},
                    element_of<Mainloop::B_T>(args.b(place.product), args.ldb, k, block_col),
                    args.ldb, {block_col, N}, depth);
  auto epilogue = args.float4_epilogue(place.product);
  if (BIASES) {
    if (SLICES == 1) __syncthreads();  // else there are barriers below
    epilogue.bias = biases - block_col;
  }
  C = args.c(place.product);
  const int tile = (place.product * gridDim.y + tile_row) * gridDim.x + place.tile_col;
  float* const tile_parts = element(args.workspace, BM * BN, tile * parts, 0);
  float4* const own_part = reinterpret_cast<float4*>(element(tile_parts, BM * BN, part, 0));
  const auto to_result = [&](int quad, const float4& sum) {
    store_quad<BN, VEC>(quad, sum, epilogue, C, args.ldc, M, N, block_row, block_col);
  };

  const bool whole = SLICES == 1 && parts == 1;
  if (SLICES > 1) __syncthreads();  // nobody reads the stages any more
  float* const slice_sums = reinterpret_cast<float*>(shared) + mainloop.slice * BM * BN;
  float* const to = SLICES > 1 ? slice_sums : whole ? C : reinterpret_cast<float*>(own_part);
  mainloop.store(sums, PartOrWhole{!whole, epilogue}, to, whole ? args.ldc : BN, whole ? M : BM,
                 whole ? N : BN, whole ? block_row : 0, whole ? block_col : 0);
  if (whole) return;

  if (SLICES > 1) {
    __syncthreads();
    const auto read = [&](int slice, int quad) { return shared[slice * (BM * BN / 4) + quad]; };
    if (parts == 1) return add_parts<THREADS, BM, BN>(SLICES, read, to_result);
    add_parts<THREADS, BM, BN>(SLICES, read,
                               [&](int quad, const float4& sum) { own_part[quad] = sum; });
  }
  if (!is_last_part(args.semaphores + tile, parts)) return;
  const auto read = [&](int number, int quad) {
    return __ldcg(reinterpret_cast<float4*>(tile_parts) + number * (BM * BN / 4) + quad);
  };
  add_parts<THREADS, BM, BN>(parts, read, to_result);
}
