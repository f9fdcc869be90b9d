// 练习 1：每线程一个结果。题目见 01-naive_uncoalesced.md。
// 下面的命令不再报告问题，并且满足所有限值，练习就完成了：
//
//   gemmkit check 01-one-thread-per-result.cu --grid '(M+31)/32,(N+31)/32' --block 32,32 \
//     --limit 'load_requests <= 2*M*N*K/32' \
//     --limit 'store_requests <= M*N/32'

__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  const int row = blockIdx.x * 32 + threadIdx.x;
  const int col = blockIdx.y * 32 + threadIdx.y;

  // TODO: 如果线程位于 C 之外，就结束；否则计算 C[row][col]，并且只写回一次。
}
