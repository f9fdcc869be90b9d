// 练习 4：每线程一列结果。题目见 04-coarsening_1d.md。
// 下面的命令不再报告问题，并且满足所有限值，练习就完成了：
//
//   gemmkit check 04-column-per-thread.cu --grid '(N+31)/32,(M+31)/32' --block 32,4 \
//     --limit 'gemmkit__shared_loads_per_result <= K*(8+1)/8' \
//     --limit 'gemmkit__global_loads_per_result <= 2*K/32'

constexpr int T = 32;  // 线程块分块的行数和列数，也是沿 k 方向的步长
constexpr int TM = 8;  // 每个线程的结果数，上下相邻

__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  __shared__ float As[T][T];
  __shared__ float Bs[T][T];

  const int thread_row = threadIdx.y * TM, thread_col = threadIdx.x;
  const int row = blockIdx.y * T + thread_row;
  const int col = blockIdx.x * T + thread_col;

  float sums[TM] = {};
  for (int k0 = 0; k0 < K; k0 += T) {
    for (int i = 0; i < TM; ++i) {
      const int a_col = k0 + thread_col, b_row = k0 + thread_row + i;
      As[thread_row + i][thread_col] = row + i < M && a_col < K ? A[(row + i) * K + a_col] : 0.0f;
      Bs[thread_row + i][thread_col] = b_row < K && col < N ? B[b_row * N + col] : 0.0f;
    }
    __syncthreads();

    // TODO 1: 对分块中的每个 k，加载 Bs 的一个元素，与 As 的 TM 个元素相乘，累加到 sums。

    __syncthreads();
  }
  for (int i = 0; i < TM; ++i) {
    // TODO 2: 如果 sums[i] 所在的行和列都在矩阵内，就写回。
  }
}
