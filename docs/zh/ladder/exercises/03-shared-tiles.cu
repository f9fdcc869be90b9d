// 练习 3：共享内存中的线程块分块。题目见 03-shared_tiling.md。
// 下面的命令不再报告问题，并且满足所有限值，练习就完成了：
//
//   gemmkit check 03-shared-tiles.cu --grid '(N+31)/32,(M+31)/32' --block 32,32 \
//     --limit 'gemmkit__global_loads_per_result <= 2*K/32' \
//     --limit 'bank_conflicts == 0'

constexpr int T = 32;  // 线程块分块的行数和列数，也是沿 k 方向的步长

__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  __shared__ float As[T][T];
  __shared__ float Bs[T][T];

  const int thread_row = threadIdx.y, thread_col = threadIdx.x;
  const int row = blockIdx.y * T + thread_row;
  const int col = blockIdx.x * T + thread_col;

  float sum = 0.0f;
  for (int k0 = 0; k0 < K; k0 += T) {
    // TODO 1: 把 A 的一个元素拷贝到 As，把 B 的一个元素拷贝到 Bs。这个线程负责哪两个元素？
    // 矩阵之外的元素用零代替。

    // TODO 2: 这个循环在哪里需要 __syncthreads()？共两处。

    // TODO 3: 用 As 和 Bs 计算这一步的 T 个乘积，累加到 sum。
  }
  if (row < M && col < N) C[row * N + col] = sum;
}
