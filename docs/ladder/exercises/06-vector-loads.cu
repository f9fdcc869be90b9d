// Exercise 6: 128-bit accesses. The task is in 06-vectorized.md.
// It is done when this command finds nothing and all limits are met:
//
//   gemmkit check 06-vector-loads.cu --grid '(N+127)/128,(M+127)/128' --block 256 \
//     --multiple-of 1,4,4 \
//     --limit 'load_requests <= M*N*K/64/128' \
//     --limit 'store_requests <= M*N/128' \
//     --limit 'gemmkit__bytes_per_lane_shared_op_ld >= 16'

constexpr int BM = 128, BN = 128, BK = 8;  // tile of a block, and the step along k
constexpr int TM = 8, TN = 8;              // tile of a thread
constexpr int THREADS = BM * BN / (TM * TN);

// Four adjacent floats as one 128-bit access; the address must be a multiple of 16 bytes.
__device__ const float4& vec4(const float& first) { return reinterpret_cast<const float4&>(first); }
__device__ float4& vec4(float& first) { return reinterpret_cast<float4&>(first); }

__global__ void __launch_bounds__(THREADS)
    gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  __shared__ alignas(16) float As[BK][BM];  // transposed: row k has column k of the tile
  __shared__ alignas(16) float Bs[BK][BN];

  const int block_row = blockIdx.y * BM, block_col = blockIdx.x * BN;
  const int thread_row = threadIdx.x / (BN / TN) * TM;
  const int thread_col = threadIdx.x % (BN / TN) * TN;
  // Each thread copies four floats of each tile.
  const int a_row = threadIdx.x / 2, a_k = threadIdx.x % 2 * 4;
  const int b_k = threadIdx.x / 32, b_col = threadIdx.x % 32 * 4;

  float sums[TM][TN] = {};
  for (int k0 = 0; k0 < K; k0 += BK) {
    float4 a4 = {}, b4 = {};
    // TODO 1: load a4 and b4, unless they are outside of the matrix. M is any number, N and K are
    // multiples of 4: a vector is inside or outside as a whole.

    // TODO 2: store them to As and Bs; those of A go to four rows of As.

    __syncthreads();

    for (int k = 0; k < BK; ++k) {
      alignas(16) float a[TM], b[TN];
      // TODO 3: load TM floats of row k of As and TN of row k of Bs, four at a time.
      for (int i = 0; i < TM; ++i) a[i] = 0.0f;
      for (int j = 0; j < TN; ++j) b[j] = 0.0f;
      for (int i = 0; i < TM; ++i) {
        for (int j = 0; j < TN; ++j) sums[i][j] += a[i] * b[j];
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < TM; ++i) {
    for (int j = 0; j < TN; j += 4) {
      // TODO 4: store four of the sums at once.
    }
  }
}
