// 练习 5：每线程一个结果分块。题目见 05-coarsening_2d.md。
// 下面的命令不再报告问题，并且满足所有限值，练习就完成了：
//
//   gemmkit check 05-tile-per-thread.cu --grid '(N+63)/64,(M+63)/64' --block 64 \
//     --limit 'gemmkit__shared_loads_per_result <= K/4' \
//     --limit 'gemmkit__global_loads_per_result <= K/32'

constexpr int BM = 64, BN = 64, BK = 8;  // 线程块分块，以及沿 k 方向的步长
constexpr int TM = 8, TN = 8;            // 线程分块
constexpr int THREADS = BM * BN / (TM * TN);

__global__ void __launch_bounds__(THREADS)
    gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  __shared__ float As[BM][BK];
  __shared__ float Bs[BK][BN];

  const int block_row = blockIdx.y * BM, block_col = blockIdx.x * BN;
  const int thread_row = threadIdx.x / (BN / TN) * TM;
  const int thread_col = threadIdx.x % (BN / TN) * TN;

  float sums[TM][TN] = {};
  for (int k0 = 0; k0 < K; k0 += BK) {
    for (int i = threadIdx.x; i < BM * BK; i += THREADS) {
      const int row = block_row + i / BK, k = k0 + i % BK;
      As[i / BK][i % BK] = row < M && k < K ? A[row * K + k] : 0.0f;
    }
    for (int i = threadIdx.x; i < BK * BN; i += THREADS) {
      const int k = k0 + i / BN, col = block_col + i % BN;
      Bs[i / BN][i % BN] = k < K && col < N ? B[k * N + col] : 0.0f;
    }
    __syncthreads();

    for (int k = 0; k < BK; ++k) {
      // TODO 1: 把 As 的 TM 个元素和 Bs 的 TN 个元素加载到寄存器，
      // 再把 A 的每个元素与 B 的每个元素相乘。
    }
    __syncthreads();
  }
  for (int i = 0; i < TM; ++i) {
    for (int j = 0; j < TN; ++j) {
      // TODO 2: 如果 sums[i][j] 所在的行和列都在矩阵内，就写回。
    }
  }
}
