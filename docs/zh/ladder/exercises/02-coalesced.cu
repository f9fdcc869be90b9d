// 练习 2：合并访存。题目见 02-naive.md。
// 下面的命令不再报告问题，并且满足所有限值，练习就完成了：
//
//   gemmkit check 02-coalesced.cu --grid '(N+31)/32,(M+31)/32' --block 32,32 \
//     --limit 'sectors_per_request <= 2.5' \
//     --limit 'sectors_per_store_request <= 4'

__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  // TODO: 选择 row 和 col，使一个 warp 的 32 个线程访问相邻的字。网格沿 x 方向每 32 列
  // 有一个线程块，沿 y 方向每 32 行有一个线程块。
  const int row = 0;
  const int col = 0;
  if (row >= M || col >= N) return;

  float sum = 0.0f;
  for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + col];
  C[row * N + col] = sum;
}
