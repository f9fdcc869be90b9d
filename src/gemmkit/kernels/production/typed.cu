// Matrices of float64, float16, bfloat16 and float32, also mixed: elements of type In are added up
// as Sum and stored as Out.
//
// The ways of rungs 8 and 9: two pairs of tiles in shared memory, the next one on its way in
// registers while a warp multiplies its compact piece of this one. What is loaded stays as it is in
// memory until it goes to shared memory; there it lies as Sum, k by k, whatever the layout.
//
//   global -> registers (In)     tile 1 ......    tile 2 ......
//   arithmetic (Sum)             tile 0           tile 1
//   registers -> shared (Sum)           tile 1           tile 2
#include "typed_epilogue.cuh"
#include "typed_place.cuh"
#include "typed_tiles.cuh"

template <class In, class Out, class Sum, int BM, int BN, int BK, int WM, int WN, int TM, int TN,
          int VEC_A, int VEC_B, int VEC_C, bool BATCHED, Layout LAYOUT, class Epilogue>
__global__ void __launch_bounds__(BM* BN / (TM * TN),
                                  TYPED_BLOCKS<Sum, BM * BN / (TM * TN), TM * TN>)
    typed(int M, int N, int K, Sum alpha, const In* A, int lda, const In* B, int ldb, Sum beta,
          Out* C, int ldc, const Out* bias, int batch, long long stride_a, long long stride_b,
          long long stride_c, const Out* residual, int ldr, long long stride_r, Out* auxiliary,
          int ldx, long long stride_x, Sum scale CUSTOM_PARAMETERS) {
  constexpr bool A_T = TRANSPOSED_A<LAYOUT>, B_T = TRANSPOSED_B<LAYOUT>;
  constexpr int THREADS = BM * BN / (TM * TN), LANES_M = WM / TM, LANES_N = WN / TN, PAD = 4;
  static_assert(LANES_M * LANES_N == 32, "a warp has 32 lanes");
  struct Stage {
    alignas(16) Sum As[BK][BM + PAD];
    alignas(16) Sum Bs[BK][BN + PAD];
  };
  extern __shared__ float4 shared[];
  Stage* const stages = reinterpret_cast<Stage*>(shared);

  const TypedPlace<BM, BN, BATCHED> block(M, N, batch);
  if (block.surplus) return;
  block.enter(A, stride_a, B, stride_b, C, stride_c, residual, stride_r, auxiliary, stride_x);
  if (alpha == Sum(0)) K = 0;  // BLAS: alpha = 0 never reads A or B

  TypedFetch<In, Sum, THREADS, VEC_A, BM, BK, !A_T> a_tiles(element_of<A_T>(A, lda, block.row, 0),
                                                            lda, M - block.row);
  TypedFetch<In, Sum, THREADS, VEC_B, BN, BK, B_T> b_tiles(element_of<B_T>(B, ldb, 0, block.col),
                                                           ldb, N - block.col);
  const int warp = threadIdx.x / 32;
  const int warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;
  const LanePlace<LANES_N> lane;
  Sum sums[TM][TN] = {};

  a_tiles.fetch(K);
  b_tiles.fetch(K);
  for (int stage = 0; K > 0; stage ^= 1) {
    a_tiles.put(stages[stage].As);
    b_tiles.put(stages[stage].Bs);
    __syncthreads();  // the tiles are complete, and nobody reads those of two steps ago

    a_tiles.advance(), b_tiles.advance();
    K -= BK;  // what is left

#pragma unroll
    for (int k = 0; k < BK; ++k) {
      Sum a[TM], b[TN];
      load_numbers<LANES_M>(a, &stages[stage].As[k][warp_row], lane.row);
      load_numbers<LANES_N>(b, &stages[stage].Bs[k][warp_col], lane.col);
      if (k == 2) {        // not sooner, for the first fragments would have to queue behind this
        a_tiles.fetch(K);  // past the last tiles nothing is read
        b_tiles.fetch(K);
      }
      add_products(sums, a, b);
    }
  }

  const Epilogue epilogue{alpha, beta, bias, {residual, ldr, auxiliary, ldx, scale} CUSTOM};
#pragma unroll
  for (int i = 0; i < TM; ++i) {
    const int row = block.row + warp_row + piece_place<LANES_M, QUAD<Sum>>(lane.row, i);
    const int pitch = opaque(ldc);  // one row's addresses at a time, or they fill the registers
#pragma unroll
    for (int j = 0; j < TN; j += VEC_C) {
      const int col = block.col + warp_col + piece_place<LANES_N, QUAD<Sum>>(lane.col, j);
      if (row < M && col < N) {
        epilogue.template store_vector<VEC_C>(element(C, pitch, row, col), &sums[i][j], row, col);
      }
    }
  }
}
