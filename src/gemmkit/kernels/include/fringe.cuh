// The fringe: a few rows or columns of C past the last whole tile. Tiles for them would be all but
// empty and take as long as full ones, perhaps a wave more; further blocks do them in strips.
#pragma once

#include "async_tiles.cuh"
#include "fixup.cuh"

// Results of a strip, and whether the k of whole tiles is cut; there are no strips if it is 0 wide.
template <int WIDTH_, int LENGTH_, bool CUT_ = false>
struct StripSize {
  static constexpr int WIDTH = WIDTH_, LENGTH = LENGTH_;
  static constexpr bool CUT = CUT_;
};

//        whole tiles  | columns       Up to WIDTH rows and columns are a fringe, if there is a
//   -----------------------------     whole tile before them. The strips' blocks come last in the
//    rows (with the corner)           grid, and so run where the last wave leaves SMs idle.
template <int BM, int BN, int THREADS, class Strips, Layout LAYOUT>
struct Fringe {
  static constexpr int WIDTH = Strips::WIDTH, LENGTH = Strips::LENGTH, LEAST_TILE = 32;
  // A warp, or a part of one, has a share of each step of k, a lane 4 x 4 results.
  static constexpr int SLICES = 16 * THREADS / (WIDTH * LENGTH);
  static constexpr int BK = THREADS / WIDTH, STAGES = THREADS > 256 ? 2 : 4;
  template <int HEIGHT, int BREADTH>
  using Strip =
      AsyncTiles<HEIGHT, BREADTH, BK, HEIGHT, BREADTH, 4, 4, STAGES, SLICES, 1, 1, 1, LAYOUT>;

  int M, N, rows, cols;  // of C, and those in whole tiles

  __device__ __forceinline__ Fringe(int M, int N)
      : M(M), N(N), rows(M - leftover(M, BM)), cols(N - leftover(N, BN)) {}

  static __device__ __forceinline__ int leftover(int extent, int tile) {
    const int left = extent % tile;
    return LEAST_TILE <= tile && left <= WIDTH && left < extent ? left : 0;
  }

  // Rows and columns of whole tiles.
  __device__ __forceinline__ int tile_rows() const { return (rows + BM - 1) / BM; }
  __device__ __forceinline__ int tile_cols() const { return (cols + BN - 1) / BN; }

  // Computes strip `number`, those of the rows being first; surplus blocks have none.
  template <class Epilogue>
  __device__ __forceinline__ void compute(int number, void* shared, const Epilogue& epilogue, int K,
                                          const float* A, int lda, const float* B, int ldb,
                                          float* C, int ldc) const {
    if (epilogue.alpha == 0.0f) K = 0;  // BLAS: alpha = 0 never reads A or B
    const int row_strips = rows < M ? (N + LENGTH - 1) / LENGTH : 0;
    if (number < row_strips) {
      strip<WIDTH, LENGTH>(rows, number * LENGTH, M, shared, epilogue, K, A, lda, B, ldb, C, ldc);
    } else if (cols < N && (number - row_strips) * LENGTH < rows) {
      const int first = (number - row_strips) * LENGTH;
      strip<LENGTH, WIDTH>(first, cols, rows, shared, epilogue, K, A, lda, B, ldb, C, ldc);
    }
  }

 private:
  template <int HEIGHT, int BREADTH, class Epilogue>
  __device__ __forceinline__ void strip(int first_row, int first_col, int end_row, void* shared,
                                        const Epilogue& epilogue, int K, const float* A, int lda,
                                        const float* B, int ldb, float* C, int ldc) const {
    using Tiles = Strip<HEIGHT, BREADTH>;
    const Tiles tiles(shared);
    float sums[4][4] = {};
    tiles.multiply(sums, element_of<Tiles::A_T>(A, lda, first_row, 0), lda, {first_row, end_row},
                   element_of<Tiles::B_T>(B, ldb, 0, first_col), ldb, {first_col, N}, K);

    __syncthreads();  // nobody reads the stages any more
    float* const slices = static_cast<float*>(shared);
    tiles.store(sums, PartOrWhole<Epilogue>{true, epilogue},
                slices + tiles.slice * (WIDTH * LENGTH), BREADTH, HEIGHT, BREADTH, 0, 0);
    __syncthreads();
    const auto read = [&](int slice, int quad) {
      return reinterpret_cast<const float4*>(slices)[slice * (WIDTH * LENGTH / 4) + quad];
    };
    add_parts<THREADS, HEIGHT, BREADTH>(SLICES, read, [&](int quad, const float4& sum) {
      store_quad<BREADTH, 1>(quad, sum, epilogue, C, ldc, end_row, N, first_row, first_col);
    });
  }
};
