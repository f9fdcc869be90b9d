// Exercise 7: no bank conflicts. The task is in 07-conflict_free.md.
// It is done when this command finds nothing and all limits are met:
//
//   gemmkit check 07-bank-conflicts.cu --grid '(N+127)/128,(M+127)/128' --block 256 \
//     --multiple-of 1,4,4 \
//     --limit 'bank_conflicts == 0' \
//     --limit 'gemmkit__global_loads_per_result <= K/64' \
//     --limit 'sectors_per_store_request <= 16'

constexpr int BM = 128, BN = 128, BK = 8;  // tile of a block, and the step along k
constexpr int TM = 8, TN = 8;              // tile of a thread
// TODO 1: unused floats at the end of each row of As, so that a warp's transposed stores fall into
// 32 banks. Rows must still begin at multiples of 16 bytes.
constexpr int PAD = 0;
constexpr int THREADS = BM * BN / (TM * TN);

// Four adjacent floats as one 128-bit access; the address must be a multiple of 16 bytes.
__device__ const float4& vec4(const float& first) { return reinterpret_cast<const float4&>(first); }
__device__ float4& vec4(float& first) { return reinterpret_cast<float4&>(first); }

__global__ void __launch_bounds__(THREADS)
    gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  __shared__ alignas(16) float As[BK][BM + PAD];
  __shared__ alignas(16) float Bs[BK][BN];

  const int block_row = blockIdx.y * BM, block_col = blockIdx.x * BN;
  const int thread_row = threadIdx.x / (BN / TN) * TM;
  const int thread_col = threadIdx.x % (BN / TN) * 4;  // and BN / 2 further right
  // Each thread copies four floats of each tile.
  const int a_row = threadIdx.x / 2, a_k = threadIdx.x % 2 * 4;
  const int b_k = threadIdx.x / 32, b_col = threadIdx.x % 32 * 4;

  float sums[TM][TN] = {};
  for (int k0 = 0; k0 < K; k0 += BK) {
    float4 a4 = {}, b4 = {};
    if (block_row + a_row < M && k0 + a_k < K) a4 = vec4(A[(block_row + a_row) * K + k0 + a_k]);
    if (k0 + b_k < K && block_col + b_col < N) b4 = vec4(B[(k0 + b_k) * N + block_col + b_col]);
    As[a_k + 0][a_row] = a4.x;
    As[a_k + 1][a_row] = a4.y;
    As[a_k + 2][a_row] = a4.z;
    As[a_k + 3][a_row] = a4.w;
    vec4(Bs[b_k][b_col]) = b4;
    __syncthreads();

    for (int k = 0; k < BK; ++k) {
      alignas(16) float a[TM], b[TN];
      for (int i = 0; i < TM; i += 4) vec4(a[i]) = vec4(As[k][thread_row + i]);
      // TODO 2: the first four columns of this thread begin at thread_col, the other four BN / 2
      // further right.
      for (int j = 0; j < TN; j += 4) vec4(b[j]) = vec4(Bs[k][thread_col]);
      for (int i = 0; i < TM; ++i) {
        for (int j = 0; j < TN; ++j) sums[i][j] += a[i] * b[j];
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < TM; ++i) {
    for (int j = 0; j < TN; j += 4) {
      const int row = block_row + thread_row + i;
      const int col = block_col + thread_col;  // TODO 3: the same here
      if (row < M && col < N) vec4(C[row * N + col]) = vec4(sums[i][j]);
    }
  }
}
