// Scales of A and B, of type fp32, which their elements are multiplied by: one for each line (a row of
// A, a column of B) or for 128 lines, and either for all of k or for each chunk of 128. Where all lines
// share one, they lie 0 elements apart.
//
// A product with them is the sum over chunks of (scale of A x scale of B) x the chunk's sum.
#pragma once

#include "wgmma.cuh"

// Template arguments that the host passes by name: whether chunks of k have scales of their own, and
// the lines that share one, 0 for an operand that has none.
struct Scales {
  bool of_chunks = false;
  int lines_a = 1, lines_b = 1;
};

// Elements of k in a chunk, and lines that share a scale if each has none of its own.
constexpr int CHUNK = 128, LINES_OF_BLOCK = 128;

// The scales of one operand. `ld` elements lie from those of a line, or of a block of lines, to the
// next, `step` from a chunk of k to the next, `stride` from a product to the next.
struct ScaleArray {
  const float* scales;
  long long ld, step, stride;

  // That of a line, or of the block of LINES that it belongs to.
  template <int LINES>
  __device__ __forceinline__ const float* at(int product, int line, int chunk) const {
    return scales + product * stride + (LINES > 1 ? line / LINES : line) * ld + chunk * step;
  }
  template <int LINES>
  __device__ __forceinline__ float get(int product, int line, int chunk) const {
    return LINES == 0 ? 1.0f : *at<LINES>(product, line, chunk);
  }
};

// The parameters of a kernel that has scales, before its others: see `GEMM_PARAMETERS`.
#define SCALE_PARAMETERS                                                                        \
  const float *scale_a, long long scale_a_ld, long long scale_a_step, long long scale_a_stride, \
      const float *scale_b, long long scale_b_ld, long long scale_b_step, long long scale_b_stride
#define SCALES_OF_A \
  ScaleArray { scale_a, scale_a_ld, scale_a_step, scale_a_stride }
#define SCALES_OF_B \
  ScaleArray { scale_b, scale_b_ld, scale_b_step, scale_b_stride }

__host__ __device__ constexpr int greatest_common_divisor(int a, int b) {
  return b == 0 ? a : greatest_common_divisor(b, a % b);
}

// The scales that a thread needs for its sums of ROW_TILES wgmmas of 64 rows and COLS columns, which
// begin at (row, col): of one chunk of k, loaded while tensor cores multiply the next one.
//
// Columns of a block share a scale. A tile may begin and end within a block, but blocks begin where
// segments do: whatever the tile's place, a segment has one scale.
template <int ROW_TILES, int COLS, int ROW_LINES, int COL_LINES>
struct TileScales {
  static constexpr int OF_ROW_TILE = ROW_LINES == 1 ? 2 : 1, COUNT = COLS / 2;
  static constexpr int SEGMENT = COL_LINES == 1 ? 1 : greatest_common_divisor(COLS, COL_LINES);
  static constexpr int OF_COLS = COL_LINES == 1 ? COUNT / 2 : COLS / SEGMENT;
  static_assert(ROW_LINES == 1 || ROW_LINES % WGMMA_ROWS == 0, "those of a wgmma share a scale");

  const float* of_row[ROW_TILES][OF_ROW_TILE];
  const float* of_cols;
  long long row_step, col_step, col_ld;
  int col, last_col;
  float rows[ROW_TILES][OF_ROW_TILE], cols[OF_COLS];

  // `chunk` is the first. Of lines outside of C, those of the last one stand for them.
  __device__ __forceinline__ TileScales(const ScaleArray& row_scales, const ScaleArray& col_scales,
                                        int product, int first_row, int last_row, int first_col,
                                        int last_col, int chunk)
      : row_step(row_scales.step),
        col_step(col_scales.step),
        col_ld(col_scales.ld),
        col(first_col + (COL_LINES == 1 ? threadIdx.x % 4 * 2 : 0)),
        last_col(last_col) {
    const int own = ROW_LINES == 1 ? threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 : 0;
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
      for (int half = 0; half < OF_ROW_TILE; ++half) {
        const int row = min(first_row + i * WGMMA_ROWS + own + 8 * half, last_row);
        of_row[i][half] = row_scales.template at<ROW_LINES>(product, row, chunk);
      }
    }
    of_cols = col_scales.template at<1>(product, 0, chunk);
  }

  // Loads those of the chunk that the pointers are at.
  __device__ __forceinline__ void load() {
    load_rows();
#pragma unroll
    for (int i = 0; i < OF_COLS; ++i) cols[i] = of_col(i);
  }

  // Goes on to the next chunk.
  __device__ __forceinline__ void advance() {
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
      for (int half = 0; half < OF_ROW_TILE; ++half) of_row[i][half] += row_step;
    }
    of_cols += col_step;
  }

  // sums += factors x chunk, for row tile I.
  template <int I>
  __device__ __forceinline__ void add(float (&sums)[COUNT], const float (&chunk)[COUNT]) const {
#pragma unroll
    for (int j = 0; j < COUNT; ++j) sums[j] = fmaf(factor<I>(j), chunk[j], sums[j]);
  }

  // sums *= factors, of which those of columns are loaded as they are needed: sums may take all registers.
  __device__ __forceinline__ void multiply(float (&sums)[ROW_TILES][COUNT]) {
    load_rows();
#pragma unroll
    for (int j = 0; j < COUNT; j += 4) {
#pragma unroll
      for (int i = index_of_col(j); i <= index_of_col(j + 1); ++i) cols[i] = of_col(i);
      multiply_from<0>(sums, j);
    }
  }

 private:
  __device__ __forceinline__ void load_rows() {
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
      for (int half = 0; half < OF_ROW_TILE; ++half) {
        rows[i][half] = ROW_LINES == 0 ? 1.0f : *of_row[i][half];
      }
    }
  }

  __device__ __forceinline__ float of_col(int i) const {
    if constexpr (COL_LINES == 0) return 1.0f;
    const int line = min(col + (COL_LINES == 1 ? i / 2 * 8 + i % 2 : i * SEGMENT), last_col);
    return of_cols[(COL_LINES > 1 ? line / COL_LINES : line) * col_ld];
  }

  template <int I>
  __device__ __forceinline__ void multiply_from(float (&sums)[ROW_TILES][COUNT], int first) const {
#pragma unroll
    for (int j = first; j < first + 4; ++j) sums[I][j] *= factor<I>(j);
    if constexpr (I < ROW_TILES - 1) multiply_from<I + 1>(sums, first);
  }

  // Which of the columns' factors is that of sum j.
  static __device__ __forceinline__ constexpr int index_of_col(int j) {
    return COL_LINES == 1 ? j / 4 * 2 + j % 2 : j / 4 * 8 / SEGMENT;
  }

  // What sum j is multiplied by. The compiler computes products that sums share once.
  template <int I>
  __device__ __forceinline__ float factor(int j) const {
    const int half = j / 2 % 2;
    return rows[I][OF_ROW_TILE == 1 ? 0 : half] * cols[index_of_col(j)];
  }
};

// The scales of both operands, as `multiply_tiles` takes them.
template <Scales HOW>
struct OperandScales {
  static constexpr bool SCALES = false, IN_MAINLOOP = true;
  ScaleArray a, b;

  // Those of a consumer's rows of a tile of C, or, if SWAPPED, of one of its transpose.
  template <bool SWAPPED, int ROW_TILES, int COLS, class Arguments>
  __device__ __forceinline__ auto of_tile(const Arguments& args, int product, int row, int col,
                                          int chunk) const {
    constexpr int LINES_A = HOW.lines_a, LINES_B = HOW.lines_b;
    if constexpr (SWAPPED) {
      return TileScales<ROW_TILES, COLS, LINES_B, LINES_A>(b, a, product, row, args.N - 1, col,
                                                           args.M - 1, chunk);
    } else {
      return TileScales<ROW_TILES, COLS, LINES_A, LINES_B>(a, b, product, row, args.M - 1, col,
                                                           args.N - 1, chunk);
    }
  }
};
