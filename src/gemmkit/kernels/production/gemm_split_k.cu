// the k of a tile is cut, over blocks and over the warps of a block.
//
// A small product has fewer tiles than the board has SMs. Here several blocks share a tile, each
// on its part of k; all leave their sums in the workspace, and the last to arrive adds them up.
// Within a block SLICES groups of warps share each step of k, and meet in shared memory.
//
//   k:  | part 0: slices 0 1 2 0 1 2 | part 1: slices 0 1 2 0 1 2 |   2 blocks of 3 groups of warps
//
// Loads per result: those of rung 10 with the same tile; besides, a float goes to the workspace and
// back per part.
#include "arrival.cuh"
#include "async_tiles.cuh"
#include "batch.cuh"
#include "epilogue.cuh"
#include "fixup.cuh"
#include "fringe.cuh"

template <int BM, int BN, int BK, int WM, int WN, int TM, int TN, int STAGES, int SLICES,
          int BURSTS, int ORDER, int VEC, class Strips, bool BATCHED, Layout LAYOUT, class Epilogue>
__global__ void __launch_bounds__(BM* BN / (TM * TN) * SLICES,
                                  BLOCKS_PER_SM<BM * BN / (TM * TN) * SLICES, TM * TN>)
    gemm_split_k(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb,
            float beta, float* C, int ldc, const float* bias, float* workspace, int* arrivals,
            int batch, long long stride_a, long long stride_b, long long stride_c,
            const float* residual, int ldr, long long stride_r, float* auxiliary, int ldx,
            long long stride_x, float scale CUSTOM_PARAMETERS) {
  extern __shared__ __align__(128) float4 shared[];
  using Tiles = AsyncTiles<BM, BN, BK, WM, WN, TM, TN, STAGES, SLICES, BURSTS, ORDER, VEC, LAYOUT>;
  const Tiles tiles(shared);
  constexpr int THREADS = Tiles::THREADS;
  constexpr int RING = STAGES * Tiles::STAGE_FLOATS, SUMS = SLICES > 1 ? SLICES * BM * BN : 0;

  // Parts of k run over z; but with more row tiles than y has room for, z is theirs and k whole.
  const BatchPlace<BATCHED> place((M + BM - 1) / BM, (N + BN - 1) / BN, batch);
  const bool cut = Strips::WIDTH > 0 ? Strips::CUT : !BATCHED && gridDim.y * BM >= M;
  const int parts = cut ? gridDim.z : place.parts, part = cut ? blockIdx.z : place.part;
  const int tile_row = cut ? blockIdx.y : place.tile_row;
  const int block_row = tile_row * BM, block_col = place.tile_col * BN;
  if constexpr (Strips::WIDTH > 0) {
    const Fringe<BM, BN, THREADS, Strips, LAYOUT> fringe(M, N);
    const Epilogue epilogue{alpha, beta, bias, {residual, ldr, auxiliary, ldx, scale} CUSTOM};
    const int rows = fringe.tile_rows();
    if (tile_row >= rows) {
      const int line = part * (gridDim.y - rows) + tile_row - rows;
      const int strip = line * gridDim.x + blockIdx.x;
      return fringe.compute(strip, shared, epilogue, K, A, lda, B, ldb, C, ldc);
    }
  }
  if (block_row >= M || (BATCHED && place.product >= batch)) return;  // surplus in the grid
  A += place.product * stride_a, B += place.product * stride_b, C += place.product * stride_c;
  residual += place.product * stride_r, auxiliary += place.product * stride_x;
  if (alpha == 0.0f) K = 0;  // BLAS: alpha = 0 never reads A or B

  // Whole steps of k, the first parts taking one more where they do not come out even.
  const int steps = (K + BK - 1) / BK, share = steps / parts, more = steps % parts;
  const int k = (part * share + min(part, more)) * BK;
  const int depth = min(K - k, (share + (part < more)) * BK);

  // The columns' biases come along with the first tiles: in the end, results would wait for them.
  constexpr bool BIASES = Epilogue::BY_COLUMN;
  float* const biases = reinterpret_cast<float*>(shared) + (RING > SUMS ? RING : SUMS);
#pragma unroll
  for (int first = 0; first < (BIASES ? BN : 0); first += THREADS) {
    const int i = first + threadIdx.x;
    if (i < BN) cp_async<1>(biases + i, bias + min(block_col + i, N - 1), true);
  }
  float sums[TM][TN] = {};
  tiles.multiply(sums, element_of<Tiles::A_T>(A, lda, block_row, k), lda, {block_row, M},
                 element_of<Tiles::B_T>(B, ldb, k, block_col), ldb, {block_col, N}, depth);
  if (BIASES) {
    if (SLICES == 1) __syncthreads();  // else there are barriers below
    bias = biases - block_col;
  }
  const Epilogue epilogue{alpha, beta, bias, {residual, ldr, auxiliary, ldx, scale} CUSTOM};
  const int tile = (place.product * gridDim.y + tile_row) * gridDim.x + place.tile_col;
  float* const tile_parts = element(workspace, BM * BN, tile * parts, 0);
  float4* const own_part = reinterpret_cast<float4*>(element(tile_parts, BM * BN, part, 0));
  const auto to_result = [&](int quad, const float4& sum) {
    store_quad<BN, VEC>(quad, sum, epilogue, C, ldc, M, N, block_row, block_col);
  };

  const bool whole = SLICES == 1 && parts == 1;
  if (SLICES > 1) __syncthreads();  // nobody reads the stages any more
  float* const slice_sums = reinterpret_cast<float*>(shared) + tiles.slice * BM * BN;
  float* const to = SLICES > 1 ? slice_sums : whole ? C : reinterpret_cast<float*>(own_part);
  tiles.store(sums, PartOrWhole<Epilogue>{!whole, epilogue}, to, whole ? ldc : BN, whole ? M : BM,
              whole ? N : BN, whole ? block_row : 0, whole ? block_col : 0);
  if (whole) return;

  if (SLICES > 1) {
    __syncthreads();
    const auto read = [&](int slice, int quad) { return shared[slice * (BM * BN / 4) + quad]; };
    if (parts == 1) return add_parts<THREADS, BM, BN>(SLICES, read, to_result);
    add_parts<THREADS, BM, BN>(SLICES, read,
                               [&](int quad, const float4& sum) { own_part[quad] = sum; });
  }
  if (!arrives_last(arrivals + tile, parts)) return;
  const auto read = [&](int number, int quad) {
    return __ldcg(reinterpret_cast<float4*>(tile_parts) + number * (BM * BN / 4) + quad);
  };
  add_parts<THREADS, BM, BN>(parts, read, to_result);
}
