// Products of a short k, of any type: the time is that of writing C.
//
// Each lane keeps its columns of B in registers and goes down the rows of its warp's tile. A's rows
// are in shared memory, where all lanes of a warp read the same address at once. A warp's store
// covers 32 neighbors of a row, so that it writes whole sectors whatever the alignment of C.
//
//   shared   A tile, k contiguous: BM x BK        registers   B: BK x TN per lane
//   row r:   C[r][lane], C[r][lane + 32], ...  =  dot(A[r], B of that column)
//
// Loads per result: K/BN of A and K/WM of B from global memory, K/(4 TN) wide ones from shared.
#include "arguments.cuh"
#include "scheduler/batch.cuh"
#include "tile.cuh"

template <class In, Tile TILE, Access ACCESS, Layout LAYOUT, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, TILE.min_blocks)
    gemm_small_k(GEMM_PARAMETERS(In, Epilogue)) {
  const Arguments<In, Epilogue> args{GEMM_ARGUMENTS};
  using Sum = typename Epilogue::Sum;
  constexpr int BM = TILE.BM, BN = TILE.BN, BK = TILE.BK, WM = TILE.WM, WN = TILE.WN;
  constexpr int TM = TILE.TM, TN = TILE.TN, VEC = ACCESS.c, PACK = 16 / sizeof(Sum);
  constexpr bool A_T = TRANSPOSED_A<LAYOUT>, B_T = TRANSPOSED_B<LAYOUT>;
  static_assert(WN == 32 * TN && BK % PACK == 0, "32 lanes of TN columns, whole vectors of A");
  __shared__ alignas(16) Sum As[BM][BK];

  K = args.depth();
  const BatchPlace<SCHEDULE.batched> place((M + BM - 1) / BM, (N + BN - 1) / BN, args.batch);
  const int block_row = place.tile_row * BM, block_col = place.tile_col * BN;
  if (block_row >= M || (SCHEDULE.batched && place.product >= args.batch)) return;  // surplus
  A = args.a(place.product), B = args.b(place.product);

  // Neighboring threads copy neighbors in memory.
#pragma unroll 4
  for (int i = threadIdx.x; i < BM * BK; i += TILE.threads) {
    const int row = A_T ? i % BM : i / BK, k = A_T ? i / BM : i % BK;
    const bool inside = block_row + row < M && k < K;
    As[row][k] = inside ? widened<Sum>(*element_of<A_T>(A, lda, block_row + row, k)) : Sum(0);
  }

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / (BN / WN) * WM, warp_col = block_col + warp % (BN / WN) * WN;
  const auto column = [&](int j) { return warp_col + (j / VEC * 32 + lane) * VEC + j % VEC; };
  Sum b[BK][TN];
#pragma unroll
  for (int k = 0; k < BK; ++k) {
#pragma unroll
    for (int j = 0; j < TN; ++j) {
      const bool inside = k < K && column(j) < N;
      b[k][j] = inside ? widened<Sum>(*element_of<B_T>(B, ldb, k, column(j))) : Sum(0);
    }
  }
  __syncthreads();  // the rows of A are complete

  const Epilogue epilogue = args.epilogue(place.product);
  C = args.c(place.product);
#pragma unroll 1
  for (int first = warp_row; first < warp_row + WM && block_row + first < M; first += TM) {
    Sum sums[TM][TN] = {};
#pragma unroll
    for (int k = 0; k < BK; k += PACK) {
#pragma unroll
      for (int i = 0; i < TM; ++i) {
        Pack<Sum, PACK> a;
        a.load(&As[first + i][k]);
#pragma unroll
        for (int p = 0; p < PACK; ++p) {
#pragma unroll
          for (int j = 0; j < TN; ++j) sums[i][j] += a.get(p) * b[k + p][j];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < TM; ++i) {
      const int row = block_row + first + i;
#pragma unroll
      for (int j = 0; j < TN; j += VEC) {
        if (row < M && column(j) < N) {
          epilogue.template store_vector<VEC>(element(C, args.ldc, row, column(j)), &sums[i][j],
                                              row, column(j));
        }
      }
    }
  }
}
