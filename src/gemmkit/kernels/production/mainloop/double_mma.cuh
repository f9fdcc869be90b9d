// The mainloop of fp64 by mma.sync: cp.async fills STAGES tiles ahead, and groups of warps, the slices,
// share each step of k.
#pragma once

#include "cp_async.cuh"
#include "layout.cuh"
#include "mma.cuh"
#include "tile.cuh"
#include "typed_tile.cuh"

// A block's tile, BK along k; a warp's; the stages, the slices, and the depth of an mma (4, 8 or 16).
struct DoubleTile {
  int BM = 0, BN = 0, BK = 0, WM = 0, WN = 0;
  int stages = 2, slice_k = 1, mma_k = 4;
  int threads = 0;
};

// 16 x 8 results: of A a lane has rows g and g + 8, of A and of B steps t, t + 4, ... of k. The deeper
// ones read and write the sums less often for as many multiply-adds.
template <int DEPTH>
struct DoubleMma {
  static constexpr int A_REGISTERS = DEPTH / 2, B_REGISTERS = DEPTH / 4;

  static __device__ __forceinline__ void multiply(double (&d)[4], const double (&a)[A_REGISTERS],
                                                  const double (&b)[B_REGISTERS]) {
    if constexpr (DEPTH == 4) {
      Mma<double>::multiply(d, a, b);
    } else if constexpr (DEPTH == 8) {
      asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, {%0, %1, %2, %3};"
          : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
          : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
    } else {
      asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, "
          "%8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3};"
          : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
          : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]),
            "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]));
    }
  }
};

// Starts the copy of VEC numbers (1 or 2); with `inside` false nothing is read and they become zero.
template <int VEC>
__device__ __forceinline__ void cp_async_double(double* shared, const double* global, bool inside) {
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int bytes = inside ? 8 * VEC : 0;
  if constexpr (VEC == 2) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
                 "r"(bytes));
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(global), "r"(bytes));
  }
}

// The tiles of one operand, EXTENT rows of A or columns of B by BK along k, as they lie in memory: lines
// of k if ALONG_K. They are padded so that the four lines of which half a warp reads four numbers
// each lie in different banks.
template <int THREADS, int VEC, int EXTENT, int BK, bool ALONG_K>
struct DoubleTiles : TypedWalk<double, THREADS, VEC, ALONG_K ? EXTENT : BK, ALONG_K ? BK : EXTENT> {
  static constexpr int ROWS = ALONG_K ? EXTENT : BK, COLS = ALONG_K ? BK : EXTENT, PAD = 4;
  using Walk = TypedWalk<double, THREADS, VEC, ROWS, COLS>;
  using Tile = PaddedTile<double, ROWS, COLS, PAD>;

  const int inside;  // rows or columns of the operand from the tile on

  __device__ __forceinline__ DoubleTiles(const double* tile, int ld, int inside)
      : Walk(tile, ld), inside(inside) {}

  // Starts part `part` of `parts` of a tile's copies, of which `depth` steps of k are inside.
  __device__ __forceinline__ void copy(Tile& tile, int depth, int part, int parts) const {
    const int rows = ALONG_K ? inside : depth, cols = ALONG_K ? depth : inside;
#pragma unroll
    for (int step = part; step < Walk::STEPS; step += parts) {
      const int row = Walk::row(step), col = Walk::col(step);
      cp_async_double<VEC>(tile.at(row, col), this->source(step), row < rows && col < cols);
    }
  }
  __device__ __forceinline__ void advance() { Walk::advance(ALONG_K ? 0 : BK, ALONG_K ? BK : 0); }

  // Number `k` of line `line` of the operand.
  static __device__ __forceinline__ double read(Tile& tile, int line, int k) {
    return ALONG_K ? *tile.at(line, k) : *tile.at(k, line);
  }
};

template <DoubleTile TILE, Access ACCESS, Layout LAYOUT>
struct DoubleMainloop {
  static constexpr bool A_T = TRANSPOSED_A<LAYOUT>, B_T = TRANSPOSED_B<LAYOUT>;
  static constexpr int BM = TILE.BM, BN = TILE.BN, BK = TILE.BK, WM = TILE.WM, WN = TILE.WN;
  static constexpr int STAGES = TILE.stages, SLICES = TILE.slice_k, DEPTH = TILE.mma_k;
  static constexpr int GROUP = TILE.threads / SLICES;  // threads of a slice
  static constexpr int STEPS = BK / SLICES / DEPTH;
  using Tensor = DoubleMma<DEPTH>;
  // Fragments alternate between two sets of registers where there is room for both, else the compiler
  // reads those of one set as products set them free.
  static constexpr int SUM_REGISTERS = WM * WN / 16;
  static constexpr int FRAGMENT_REGISTERS = (WM + WN) * DEPTH / 16;
  static constexpr bool AHEAD = STEPS % 2 == 0 && SUM_REGISTERS + 2 * FRAGMENT_REGISTERS <= 224;
  using TilesOfA = DoubleTiles<TILE.threads, ACCESS.a, BM, BK, !A_T>;
  using TilesOfB = DoubleTiles<TILE.threads, ACCESS.b, BN, BK, B_T>;
  struct Stage {
    typename TilesOfA::Tile As;
    typename TilesOfB::Tile Bs;
  };
  struct Fragments {
    double a[WM / 16][Tensor::A_REGISTERS], b[WN / 8][Tensor::B_REGISTERS];
  };
  using Sums = double[WM / 16][WN / 8][4];
  // Neighbors in a row of C, of which a thread has two: those of a warp's tile, and of a thread once
  // the slices have met.
  static constexpr int PAIRS = WM / 16 * (WN / 8) * 2, OWN_PAIRS = PAIRS / SLICES;
  static_assert(PAIRS % SLICES == 0, "slices finish equally many results");
  using Results = double[OWN_PAIRS][2];

  Stage* const stages;  // in shared memory
  const int lane = threadIdx.x % 32, warp = threadIdx.x % GROUP / 32;
  const int slice = SLICES > 1 ? threadIdx.x / GROUP : 0;
  const int warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;

  __device__ __forceinline__ explicit DoubleMainloop(void* shared)
      : stages(static_cast<Stage*>(shared)) {}

  // sums += A B over the slice's share of K steps, A and B given from the block's first row and column
  // on, of which there are `rows` and `cols`.
  __device__ __forceinline__ void multiply(Sums& sums, const double* A, int lda, int rows,
                                           const double* B, int ldb, int cols, int K) const {
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
    // The oldest stage on its way is complete, and nobody reads the one before it any more.
    const auto wait = [] {
      cp_async_wait<STAGES - 2>();
      __syncthreads();
    };
    if (K <= 0) return;
    for (int stage = 0; stage < STAGES - 1; ++stage) copy(stages[stage], 0, 1), next_tiles();
    Fragments fragments[AHEAD ? 2 : 1];
    if constexpr (AHEAD) {
      wait();
      read(fragments[0], stages[0], 0);
    }
    for (int stage = 0, free = STAGES - 1; K > 0; K -= BK) {
      const int next = stage + 1 < STAGES ? stage + 1 : 0;
      if constexpr (!AHEAD) {
        wait();
        copy(stages[free], 0, 1);
        next_tiles();
      }
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        if constexpr (AHEAD) {
          const bool last = step == STEPS - 1;
          if (last) next_tiles(), wait();
          read(fragments[(step + 1) % 2], stages[last ? next : stage], last ? 0 : step + 1);
          // The last step's part would come after the commit.
          if (!last) copy(stages[free], step, STEPS - 1);
        } else {
          read(fragments[0], stages[stage], step);
        }
        const Fragments& own = fragments[AHEAD ? step % 2 : 0];
#pragma unroll
        for (int i = 0; i < WM / 16; ++i) {
#pragma unroll
          for (int j = 0; j < WN / 8; ++j) Tensor::multiply(sums[i][j], own.a[i], own.b[j]);
        }
      }
      free = stage, stage = next;
    }
    cp_async_wait<0>();  // a block must not end before its copies
  }

  // The results that the thread finishes: the sums of all slices, added up in their order in the memory
  // of the stages.
  __device__ __forceinline__ void add_slices(Results& results, const Sums& sums) const {
    const auto first = [&](int pair) {
      return &sums[pair / 2 / (WN / 8)][pair / 2 % (WN / 8)][pair % 2 * 2];
    };
    if constexpr (SLICES == 1) {
#pragma unroll
      for (int pair = 0; pair < PAIRS; ++pair) {
        results[pair][0] = first(pair)[0], results[pair][1] = first(pair)[1];
      }
      return;
    }
    double2* const all = reinterpret_cast<double2*>(stages) + threadIdx.x % GROUP;
    __syncthreads();  // nobody reads the stages any more
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) {
      all[(slice * PAIRS + pair) * GROUP] = {first(pair)[0], first(pair)[1]};
    }
    __syncthreads();
#pragma unroll
    for (int own = 0; own < OWN_PAIRS; ++own) {
      double2 sum = all[number(own) * GROUP];
#pragma unroll
      for (int other = 1; other < SLICES; ++other) {
        const double2 more = all[(other * PAIRS + number(own)) * GROUP];
        sum.x += more.x, sum.y += more.y;
      }
      results[own][0] = sum.x, results[own][1] = sum.y;
    }
  }

  // Finishes the results and stores them, the block's tile being at (block_row, block_col) of C.
  template <class Epilogue>
  __device__ __forceinline__ void store(const Results& results, const Epilogue& epilogue,
                                        typename Epilogue::Out* C, int ldc, int M, int N,
                                        int block_row, int block_col) const {
#pragma unroll
    for (int own = 0; own < OWN_PAIRS; ++own) {
      const int pair = number(own), i = pair / 2 / (WN / 8), j = pair / 2 % (WN / 8);
      const int row = block_row + warp_row + i * 16 + pair % 2 * 8 + lane / 4;
      // One pair's address at a time, or they fill the registers.
      const int pitch = opaque(ldc);
#pragma unroll
      for (int v = 0; v < 2; v += ACCESS.c) {
        const int col = block_col + warp_col + j * 8 + lane % 4 * 2 + v;
        if (row < M && col < N) {
          epilogue.template store_vector<ACCESS.c>(element(C, pitch, row, col), &results[own][v],
                                                   row, col);
        }
      }
    }
  }

 private:
  // Which of a warp's pairs is number `own` of the thread.
  __device__ __forceinline__ int number(int own) const { return own * SLICES + slice; }

  // The fragments of one of the slice's steps along k.
  __device__ __forceinline__ void read(Fragments& to, Stage& from, int step) const {
    const int g = lane / 4, k = slice * (BK / SLICES) + step * DEPTH + lane % 4;
#pragma unroll
    for (int i = 0; i < WM / 16; ++i) {
#pragma unroll
      for (int r = 0; r < Tensor::A_REGISTERS; ++r) {
        const int row = warp_row + i * 16 + r % 2 * 8 + g;
        to.a[i][r] = TilesOfA::read(from.As, row, k + r / 2 * 4);
      }
    }
#pragma unroll
    for (int j = 0; j < WN / 8; ++j) {
#pragma unroll
      for (int r = 0; r < Tensor::B_REGISTERS; ++r) {
        to.b[j][r] = TilesOfB::read(from.Bs, warp_col + j * 8 + g, k + r * 4);
      }
    }
  }
};
