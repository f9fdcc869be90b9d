// The mainloop of mma.sync for operands of 8 bits along k, whose products tensor cores add up with few
// bits: the sums of each chunk of k are promoted, added to others in registers, where fp32 rounds, or
// are left to the tensor cores.
#pragma once

#include "float8.cuh"
#include "mainloop/cp_async_mma.cuh"
#include "mainloop/operand_scales.cuh"

// mma.sync of 16 x 8 x 32: a register holds four neighbors along k.
template <class In>
struct Float8Mma {
  using Sum = float;
  using Register = unsigned;
  static constexpr int DEPTH = 32, A_REGISTERS = 4, B_REGISTERS = 2;

  static __device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4],
                                                  const unsigned (&b)[2]) {
    if constexpr (IS_SAME<In, Float8E4M3>) {
      asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, {%0, %1, %2, %3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
      asm("mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, {%0, %1, %2, %3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
  }
};

// How the sums of chunks count that have no scales: as they are. See `TileScales`.
struct PlainChunks {
  __device__ __forceinline__ void load() const {}
  __device__ __forceinline__ void advance() const {}
  template <int I, int COUNT>
  __device__ __forceinline__ void add(float (&sums)[COUNT], const float (&chunk)[COUNT]) const {
#pragma unroll
    for (int j = 0; j < COUNT; ++j) sums[j] += chunk[j];
  }
};

// The scales that a lane needs for its sums of ROW_TILES products of 16 rows and COLS columns, which
// begin at (row, col). Its sums of 16 rows lie as in a wgmma, of which a warp has as many. Where their
// scales are is found anew for each chunk: sums leave no registers for so many addresses.
template <int ROW_TILES, int COLS, Scales HOW>
struct WarpScales : TileScales<ROW_TILES, COLS, HOW.lines_a, HOW.lines_b> {
  using Base = TileScales<ROW_TILES, COLS, HOW.lines_a, HOW.lines_b>;
  ScaleArray of_rows;
  int first_row, last_row;

  __device__ __forceinline__ WarpScales(const ScaleArray& of_a, const ScaleArray& of_b, int product,
                                        int row, int last_row, int col, int last_col)
      : Base(of_a, of_b, product, row, last_row, col, last_col, 0),
        of_rows(of_a),
        first_row(row + (HOW.lines_a == 1 ? threadIdx.x % 32 / 4 : 0)),
        last_row(last_row) {
    of_rows.scales += product * of_a.stride;
  }

  __device__ __forceinline__ void load() {
    find_rows();
    Base::load();
  }
  __device__ __forceinline__ void advance() {
    of_rows.scales += of_rows.step;
    Base::advance();
  }
  __device__ __forceinline__ void multiply(float (&sums)[ROW_TILES][COLS / 2]) {
    find_rows();
    Base::multiply(sums);
  }

 private:
  __device__ __forceinline__ void find_rows() {
    const int row = opaque(first_row);
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
      for (int half = 0; half < Base::OF_ROW_TILE; ++half) {
        const int own = min(row + i * 16 + half * 8, last_row);
        this->of_row[i][half] = of_rows.template at<HOW.lines_a>(0, own, 0);
      }
    }
  }
};

template <class In, Tile TILE, Access ACCESS, bool PROMOTES>
struct Float8Mainloop {
  static constexpr bool A_T = false, B_T = true;
  static constexpr int BM = TILE.BM, BN = TILE.BN, BK = TILE.BK, WM = TILE.WM, WN = TILE.WN;
  static constexpr int ROW_TILES = WM / 16, COL_TILES = WN / 8, COUNT = 4 * COL_TILES;
  using Tensor = Float8Mma<In>;
  static constexpr int STAGES = TILE.stages, DEPTH = Tensor::DEPTH, PRODUCTS = BK / DEPTH;
  static_assert(PRODUCTS % 2 == 0, "fragments alternate between two sets of registers");
  static_assert(CHUNK % BK == 0, "whole steps to a chunk");
  using TilesOfA = StagedTiles<In, TILE.threads, BM, BK, true>;
  using TilesOfB = StagedTiles<In, TILE.threads, BN, BK, true>;
  struct Stage {
    typename TilesOfA::Tile As;
    typename TilesOfB::Tile Bs;
  };
  using Sums = float[ROW_TILES][COL_TILES][4];
  struct Fragments {
    unsigned a[ROW_TILES][4], b[COL_TILES][2];
  };

  Stage* const stages;  // in shared memory
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;

  __device__ __forceinline__ explicit Float8Mainloop(void* shared)
      : stages(static_cast<Stage*>(shared)) {}

  // sums += A B over K steps, A and B given from the block's first row and column on, of which there
  // are `rows` and `cols`. `chunks` adds the sums of chunks, which have their scales there.
  template <class Chunks = PlainChunks>
  __device__ __forceinline__ void multiply(Sums& sums, const In* A, int lda, int rows, const In* B,
                                           int ldb, int cols, int K, Chunks chunks = {}) const {
    TilesOfA a_tiles(A, lda, rows);
    TilesOfB b_tiles(B, ldb, cols);
    int depth = K;  // from the tiles that are copied next to the end
    const auto copy = [&](Stage& stage, int part, int parts) {
      a_tiles.copy(stage.As, depth, part, parts);
      b_tiles.copy(stage.Bs, depth, part, parts);
    };
    const auto next_tiles = [&] {
      cp_async_commit();
      a_tiles.advance(), b_tiles.advance();
      depth -= BK;
    };
    if (K <= 0) return;
    for (int stage = 0; stage < STAGES - 1; ++stage) copy(stages[stage], 0, 1), next_tiles();
    chunks.load();
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    Fragments fragments[2];
    read(fragments[0], stages[0], 0);
    int stage = 0, free = STAGES - 1;
#pragma unroll 1
    for (; K > 0; K -= CHUNK) {
      Sums chunk = {};
#pragma unroll
      for (int product = 0; product < CHUNK / DEPTH; ++product) {
        const int place = product % PRODUCTS;
        const bool last = place == PRODUCTS - 1;
        if (last) {
          next_tiles();
          cp_async_wait<STAGES - 2>();
          __syncthreads();  // the next stage is complete, and nobody reads this one any more
          free = stage;
          stage = stage + 1 < STAGES ? stage + 1 : 0;
        }
        read(fragments[(product + 1) % 2], stages[stage], last ? 0 : (place + 1) * DEPTH);
        // The last products' part would come after the commit.
        if (!last) copy(stages[free], place, PRODUCTS - 1);
        const Fragments& own = fragments[product % 2];
        multiply_fragments(Tensor{}, PROMOTES ? chunk : sums, own.a, own.b);
      }
      if constexpr (PROMOTES) {
        promote<0>(sums, chunk, chunks);
        if (K > CHUNK) {
          // On their way while the next chunk is multiplied.
          chunks.advance();
          chunks.load();
        }
      }
    }
    cp_async_wait<0>();  // a block must not end before its copies
  }

  // Multiplies complete sums by the scales of their lines.
  template <class LineScales>
  static __device__ __forceinline__ void scale(Sums& sums, LineScales scales) {
    scales.multiply(reinterpret_cast<float (&)[ROW_TILES][COUNT]>(sums));
  }

  // Finishes the results and stores them, the block's tile being at (block_row, block_col) of C.
  template <class Epilogue>
  __device__ __forceinline__ void store(const Sums& sums, const Epilogue& epilogue,
                                        typename Epilogue::Out* C, int ldc, int M, int N,
                                        int block_row, int block_col) const {
    store_products<ACCESS.c>(sums, epilogue, C, ldc, M, N, block_row + warp_row,
                             block_col + warp_col);
  }

 private:
  template <int I, class Chunks>
  static __device__ __forceinline__ void promote(Sums& sums, Sums& chunk, const Chunks& chunks) {
    chunks.template add<I>(reinterpret_cast<float (&)[COUNT]>(sums[I]),
                           reinterpret_cast<float (&)[COUNT]>(chunk[I]));
    if constexpr (I < ROW_TILES - 1) promote<I + 1>(sums, chunk, chunks);
  }

  // The fragments of one step along k: 16 bytes are a row of an 8 x 8 matrix of 16 bits each, whose
  // elements are pairs of neighbors.
  __device__ __forceinline__ void read(Fragments& to, Stage& from, int k) const {
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
      ldmatrix(to.a[i], from.As.at(warp_row + i * 16 + lane % 16, k + lane / 16 * 16));
    }
#pragma unroll
    for (int j = 0; j < COL_TILES; j += 2) {
      const int col = warp_col + j * 8 + lane / 16 * 8 + lane % 8;
      unsigned both[4];
      ldmatrix(both, from.Bs.at(col, k + lane / 8 % 2 * 16));
      to.b[j][0] = both[0], to.b[j][1] = both[1];
      to.b[j + 1][0] = both[2], to.b[j + 1][1] = both[3];
    }
  }
};
