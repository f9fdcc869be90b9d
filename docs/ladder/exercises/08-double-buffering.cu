// Exercise 8: double buffering. The task is in 08-double_buffered.md.
// It is done when this command finds nothing and all limits are met:
//
//   gemmkit check 08-double-buffering.cu --grid '(N+127)/128,(M+127)/128' --block 256 \
//     --multiple-of 1,4,4 --limit-at 256x256x248 \
//     --limit 'ptx__inst_executed_op_synchronize.sum <= 8*(K/8+1) * M*N/128/128' \
//     --limit 'gemmkit__shared_loads_per_result <= K/4' \
//     --limit 'shared_bytes <= 2*4*8*(128+128+32)' \
//     --limit 'gemmkit__global_loads_per_result <= K/64' \
//     --limit 'bank_conflicts == 0'

constexpr int BM = 128, BN = 128, BK = 8;  // tile of a block, and the step along k
constexpr int TM = 8, TN = 8;              // tile of a thread
constexpr int PAD = 4;                     // unused floats at the end of each row of As
constexpr int THREADS = BM * BN / (TM * TN);

// Four adjacent floats as one 128-bit access; the address must be a multiple of 16 bytes.
__device__ const float4& vec4(const float& first) { return reinterpret_cast<const float4&>(first); }
__device__ float4& vec4(float& first) { return reinterpret_cast<float4&>(first); }

__global__ void __launch_bounds__(THREADS)
    gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  __shared__ alignas(16) float As[2][BK][BM + PAD];
  __shared__ alignas(16) float Bs[2][BK][BN];

  const int block_row = blockIdx.y * BM, block_col = blockIdx.x * BN;
  const int thread_row = threadIdx.x / (BN / TN) * TM;
  const int thread_col = threadIdx.x % (BN / TN) * 4;  // and BN / 2 further right
  // Each thread copies four floats of each tile.
  const int a_row = threadIdx.x / 2, a_k = threadIdx.x % 2 * 4;
  const int b_k = threadIdx.x / 32, b_col = threadIdx.x % 32 * 4;

  float4 a4, b4;  // on their way from global to shared memory
  const auto fetch = [&](int k0) {
    a4 = b4 = {};
    if (block_row + a_row < M && k0 + a_k < K) a4 = vec4(A[(block_row + a_row) * K + k0 + a_k]);
    if (k0 + b_k < K && block_col + b_col < N) b4 = vec4(B[(k0 + b_k) * N + block_col + b_col]);
  };
  const auto put = [&](int stage) {
    As[stage][a_k + 0][a_row] = a4.x;
    As[stage][a_k + 1][a_row] = a4.y;
    As[stage][a_k + 2][a_row] = a4.z;
    As[stage][a_k + 3][a_row] = a4.w;
    vec4(Bs[stage][b_k][b_col]) = b4;
  };

  float sums[TM][TN] = {};
  // TODO 1: start the loads of the first tiles.
  for (int k0 = 0, stage = 0; k0 < K; k0 += BK, stage ^= 1) {
    // TODO 2: put, fetch and one barrier, so that the loads of the next tiles are on their way
    // while the block computes on this stage. In which order?

    for (int k = 0; k < BK; ++k) {
      alignas(16) float a[TM], b[TN];
      for (int i = 0; i < TM; i += 4) {
        vec4(a[i]) = vec4(As[stage][k][thread_row + i]);
      }
      for (int j = 0; j < TN; j += 4) {
        vec4(b[j]) = vec4(Bs[stage][k][thread_col + j / 4 * (BN / 2)]);
      }
      for (int i = 0; i < TM; ++i) {
        for (int j = 0; j < TN; ++j) sums[i][j] += a[i] * b[j];
      }
    }
  }
  for (int i = 0; i < TM; ++i) {
    for (int j = 0; j < TN; j += 4) {
      const int row = block_row + thread_row + i;
      const int col = block_col + thread_col + j / 4 * (BN / 2);
      if (row < M && col < N) vec4(C[row * N + col]) = vec4(sums[i][j]);
    }
  }
}
