// Residue tiles: a few rows or columns of C past the last whole tile. Whole tiles for them would be
// all but empty and take as long as full ones, perhaps a wave more; further blocks compute them in
// tiles of their shape.
#pragma once

#include "epilogue/fix_up.cuh"
#include "mainloop/cp_async_fma.cuh"

//        whole tiles  | columns       Up to WIDTH rows and columns get residue tiles, if there is
//   -----------------------------     a whole tile before them. Their blocks come last in the grid,
//    rows (with the corner)           and so run where the last wave leaves SMs idle.
template <Tile TILE, Residue RESIDUE, Layout LAYOUT>
struct ResidueTiles {
  static constexpr int BM = TILE.BM, BN = TILE.BN, THREADS = TILE.threads;
  static constexpr int WIDTH = RESIDUE.width, LENGTH = RESIDUE.length;
  // A warp, or a part of one, has a share of each step of k, a lane 4 x 4 results.
  static constexpr int SLICES = 16 * THREADS / (WIDTH * LENGTH);
  template <int HEIGHT, int BREADTH>
  using Mainloop = CpAsyncFma<Tile{.BM = HEIGHT,
                                   .BN = BREADTH,
                                   .BK = RESIDUE.depth,
                                   .WM = HEIGHT,
                                   .WN = BREADTH,
                                   .TM = 4,
                                   .TN = 4,
                                   .stages = RESIDUE.stages,
                                   .slice_k = SLICES,
                                   .pad = TILE.pad,
                                   .map_k = TILE.map_k},
                              1, LAYOUT>;

  int M, N, rows, cols;  // of C, and those in whole tiles

  __device__ __forceinline__ ResidueTiles(int M, int N)
      : M(M), N(N), rows(M - leftover(M, BM)), cols(N - leftover(N, BN)) {}

  static __device__ __forceinline__ int leftover(int extent, int tile) {
    const int left = extent % tile;
    return RESIDUE.least_tile <= tile && left <= WIDTH && left < extent ? left : 0;
  }

  // Rows and columns of whole tiles.
  __device__ __forceinline__ int tile_rows() const { return (rows + BM - 1) / BM; }
  __device__ __forceinline__ int tile_cols() const { return (cols + BN - 1) / BN; }

  // Computes tile `number`, those of the rows being first; surplus blocks have none.
  template <class Arguments>
  __device__ __forceinline__ void compute(int number, void* shared, const Arguments& args) const {
    const int row_tiles = rows < M ? (N + LENGTH - 1) / LENGTH : 0;
    if (number < row_tiles) {
      tile<WIDTH, LENGTH>(rows, number * LENGTH, M, shared, args);
    } else if (cols < N && (number - row_tiles) * LENGTH < rows) {
      tile<LENGTH, WIDTH>((number - row_tiles) * LENGTH, cols, rows, shared, args);
    }
  }

 private:
  template <int HEIGHT, int BREADTH, class Arguments>
  __device__ __forceinline__ void tile(int first_row, int first_col, int end_row, void* shared,
                                       const Arguments& args) const {
    using Tiles = Mainloop<HEIGHT, BREADTH>;
    const Tiles tiles(shared);
    float sums[4][4] = {};
    tiles.multiply(sums, element_of<Tiles::A_T>(args.A, args.lda, first_row, 0), args.lda,
                   {first_row, end_row}, element_of<Tiles::B_T>(args.B, args.ldb, 0, first_col),
                   args.ldb, {first_col, N}, args.depth());

    __syncthreads();  // nobody reads the stages any more
    float* const slices = static_cast<float*>(shared);
    const auto epilogue = args.float4_epilogue(0);
    tiles.store(sums, PartOrWhole{true, epilogue}, slices + tiles.slice * (WIDTH * LENGTH), BREADTH,
                HEIGHT, BREADTH, 0, 0);
    __syncthreads();
    const auto read = [&](int slice, int quad) {
      return reinterpret_cast<const float4*>(slices)[slice * (WIDTH * LENGTH / 4) + quad];
    };
    add_parts<THREADS, HEIGHT, BREADTH>(SLICES, read, [&](int quad, const float4& sum) {
      store_quad<BREADTH, 1>(quad, sum, epilogue, args.C, args.ldc, end_row, N, first_row,
                             first_col);
    });
  }
};
