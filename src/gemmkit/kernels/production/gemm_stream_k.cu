// as many blocks as the board holds, and each gets the same amount of work.
//
// Tiles seldom come in whole waves, and the last wave leaves SMs idle. Here the tiles of the last
// waves are cut: their steps of k, tile after tile, make one line of which each block takes an even
// share. Who has a tile to itself stores it; of those that share one, the last to arrive does.
//
//   tiles  |    0    |    1    |    2    |   ...   and then whole tiles, one block each
//   blocks |  0   |  1   |  2   |  3   |
//
// Loads per result: those of rung 10; at most two tiles a block go by way of the workspace.
#include "arrival.cuh"
#include "async_tiles.cuh"
#include "epilogue.cuh"
#include "fixup.cuh"
#include "fringe.cuh"
#include "stream.cuh"

template <int BM, int BN, int BK, int WM, int WN, int TM, int TN, int STAGES, int BURSTS, int ORDER,
          int VEC, int RUNS, class Strips, bool BATCHED, Layout LAYOUT, class Epilogue>
__global__ void __launch_bounds__(BM* BN / (TM * TN), BLOCKS_PER_SM<BM * BN / (TM * TN), TM * TN>)
    gemm_stream_k(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb,
             float beta, float* C, int ldc, const float* bias, float* workspace, int* arrivals,
             int batch, long long stride_a, long long stride_b, long long stride_c,
             const float* residual, int ldr, long long stride_r, float* auxiliary, int ldx,
             long long stride_x, float scale CUSTOM_PARAMETERS) {
  extern __shared__ __align__(128) float4 shared[];
  using Tiles = AsyncTiles<BM, BN, BK, WM, WN, TM, TN, STAGES, 1, BURSTS, ORDER, VEC, LAYOUT>;
  const Tiles tiles(shared);
  if (alpha == 0.0f) K = 0;  // BLAS: alpha = 0 never reads A or B

  int rows = (M + BM - 1) / BM, cols = (N + BN - 1) / BN;  // of tiles
  if constexpr (Strips::WIDTH > 0) {
    const Fringe<BM, BN, Tiles::THREADS, Strips, LAYOUT> fringe(M, N);
    const Epilogue epilogue{alpha, beta, bias, {residual, ldr, auxiliary, ldx, scale} CUSTOM};
    if (blockIdx.y > 0) {
      const int strip = (blockIdx.y - 1) * gridDim.x + blockIdx.x;
      return fringe.compute(strip, shared, epilogue, K, A, lda, B, ldb, C, ldc);
    }
    rows = fringe.tile_rows(), cols = fringe.tile_cols();
  }
  const Stream<BATCHED> stream(rows, cols, max(1, (K + BK - 1) / BK), batch);
  const auto start = [&](const Segment& work) {
    const auto [product, tile] = stream.find(work.tile);
    const int row = tile.row * BM, col = tile.col * BN, k = work.first * BK;
    return tiles.start(element_of<Tiles::A_T>(A + product * stride_a, lda, row, k), lda, {row, M},
                       element_of<Tiles::B_T>(B + product * stride_b, ldb, k, col), ldb, {col, N},
                       min(K - k, work.count * BK));
  };
  Segment next;
  bool more = stream.start(next);
  if (!more) return;
  auto feed = start(next);
  while (more) {
    float sums[TM][TN] = {};
    tiles.template multiply<RUNS>(sums, feed);
    __syncthreads();  // nobody reads the stages any more
    const Segment work = next;
    more = stream.next(next);
    if (more) feed = start(next);  // on its way while these sums are stored

    const auto [product, tile] = stream.find(work.tile);
    const int block_row = tile.row * BM, block_col = tile.col * BN;
    float* const result = C + product * stride_c;
    const Epilogue epilogue{
        alpha,
        beta,
        bias,
        {residual + product * stride_r, ldr, auxiliary + product * stride_x, ldx, scale} CUSTOM};
    const bool whole = work.count == stream.steps;
    const int first = stream.owner(work.tile * stream.steps);
    const int parts = stream.owner((work.tile + 1) * stream.steps - 1) - first + 1;
    // A block's first share lies in the middle or at the end of a tile, its last at the start.
    const auto slot = [&](int part) {
      return element(workspace, BM * BN, 2 * (first + part) + (part == 0), 0);
    };
    tiles.store(sums, PartOrWhole<Epilogue>{!whole, epilogue},
                whole ? result : slot(blockIdx.x - first), whole ? ldc : BN, whole ? M : BM,
                whole ? N : BN, whole ? block_row : 0, whole ? block_col : 0);
    if (!whole && arrives_last(arrivals + work.tile, parts)) {
      add_parts<Tiles::THREADS, BM, BN>(
          parts,
          [&](int part, int quad) { return __ldcg(reinterpret_cast<float4*>(slot(part)) + quad); },
          [&](int quad, const float4& sum) {
            store_quad<BN, VEC>(quad, sum, epilogue, result, ldc, M, N, block_row, block_col);
          });
    }
  }
}
