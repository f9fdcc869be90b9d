// float16, bfloat16 and float64 on the tensor cores: a warp multiplies 16 x 8 tiles by mma.sync.
//
// Tiles go through registers to shared memory as in `typed`, two pairs in turn. There halves lie in
// pairs along k, as the fragments of mma.sync have them: side by side where memory has them so, and
// else put together on the way. Of a WM x WN tile each lane of a warp reads (WM + WN) / 4 words of 32
// bits for WM WN / 128 products of 16 x 8 x 16.
#include "mma.cuh"
#include "typed_epilogue.cuh"
#include "typed_place.cuh"

template <class In, class Out, int BM, int BN, int BK, int WM, int WN, int VEC_A, int VEC_B,
          int VEC_C, bool BATCHED, Layout LAYOUT, class Epilogue, class Sum = typename Mma<In>::Sum>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * 32)
    typed_mma(int M, int N, int K, Sum alpha, const In* A, int lda, const In* B, int ldb, Sum beta,
              Out* C, int ldc, const Out* bias, int batch, long long stride_a, long long stride_b,
              long long stride_c, const Out* residual, int ldr, long long stride_r, Out* auxiliary,
              int ldx, long long stride_x, Sum scale CUSTOM_PARAMETERS) {
  using Tensor = Mma<In>;
  using Register = typename Tensor::Register;
  constexpr bool A_T = TRANSPOSED_A<LAYOUT>, B_T = TRANSPOSED_B<LAYOUT>;
  constexpr int THREADS = BM / WM * (BN / WN) * 32, PAIR = Tensor::IN_REGISTER;
  using TilesOfA = MmaOperand<In, THREADS, VEC_A, BM, BK, !A_T>;
  using TilesOfB = MmaOperand<In, THREADS, VEC_B, BN, BK, B_T>;
  struct Stage {
    alignas(16) typename TilesOfA::Tile As;
    alignas(16) typename TilesOfB::Tile Bs;
  };
  extern __shared__ float4 shared[];
  Stage* const stages = reinterpret_cast<Stage*>(shared);

  const TypedPlace<BM, BN, BATCHED> block(M, N, batch);
  if (block.surplus) return;
  block.enter(A, stride_a, B, stride_b, C, stride_c, residual, stride_r, auxiliary, stride_x);
  if (alpha == Sum(0)) K = 0;  // BLAS: alpha = 0 never reads A or B

  TilesOfA a_tiles(element_of<A_T>(A, lda, block.row, 0), lda, M - block.row);
  TilesOfB b_tiles(element_of<B_T>(B, ldb, 0, block.col), ldb, N - block.col);
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;
  Sum sums[WM / 16][WN / 8][4] = {};

  a_tiles.fetch(K);
  b_tiles.fetch(K);
  for (int stage = 0; K > 0; stage ^= 1) {
    a_tiles.put(stages[stage].As);
    b_tiles.put(stages[stage].Bs);
    __syncthreads();  // the tiles are complete, and nobody reads those of two steps ago

    a_tiles.advance(), b_tiles.advance();
    K -= BK;           // what is left
    a_tiles.fetch(K);  // past the last tiles nothing is read
    b_tiles.fetch(K);

#pragma unroll
    for (int k = 0; k < BK; k += Tensor::DEPTH) {
      Register a[WM / 16][Tensor::A_REGISTERS], b[WN / 8][Tensor::B_REGISTERS];
#pragma unroll
      for (int i = 0; i < WM / 16; ++i) {
#pragma unroll
        for (int r = 0; r < Tensor::A_REGISTERS; ++r) {
          a[i][r] = TilesOfA::read(stages[stage].As, warp_row + i * 16 + g + r % 2 * 8,
                                   k + PAIR * t + r / 2 * 8);
        }
      }
#pragma unroll
      for (int j = 0; j < WN / 8; ++j) {
#pragma unroll
        for (int r = 0; r < Tensor::B_REGISTERS; ++r) {
          b[j][r] = TilesOfB::read(stages[stage].Bs, warp_col + j * 8 + g, k + PAIR * t + r * 8);
        }
      }
#pragma unroll
      for (int i = 0; i < WM / 16; ++i) {
#pragma unroll
        for (int j = 0; j < WN / 8; ++j) Tensor::multiply(sums[i][j], a[i], b[j]);
      }
    }
  }

  const Epilogue epilogue{alpha, beta, bias, {residual, ldr, auxiliary, ldx, scale} CUSTOM};
#pragma unroll
  for (int i = 0; i < WM / 8; ++i) {
    const int row = block.row + warp_row + i * 8 + g;
    const int pitch = opaque(ldc);  // one row's addresses at a time, or they fill the registers
#pragma unroll
    for (int j = 0; j < WN / 8; ++j) {
#pragma unroll
      for (int v = 0; v < 2; v += VEC_C) {
        const int col = block.col + warp_col + j * 8 + t * 2 + v;
        if (row < M && col < N) {
          epilogue.template store_vector<VEC_C>(element(C, pitch, row, col),
                                                &sums[i / 2][j][i % 2 * 2 + v], row, col);
        }
      }
    }
  }
}
