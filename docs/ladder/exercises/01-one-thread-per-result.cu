// Exercise 1: one thread per result. The task is in 01-naive_uncoalesced.md.
// It is done when this command finds nothing and all limits are met:
//
//   gemmkit check 01-one-thread-per-result.cu --grid '(M+31)/32,(N+31)/32' --block 32,32 \
//     --limit 'load_requests <= 2*M*N*K/32' \
//     --limit 'store_requests <= M*N/32'

__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  const int row = blockIdx.x * 32 + threadIdx.x;
  const int col = blockIdx.y * 32 + threadIdx.y;

  // TODO: end the thread if it is outside of C; otherwise compute C[row][col] and store it, once.
}
