// Exercise 10: asynchronous copies. The task is in 10-async_copy.md.
// It is done when this command finds nothing and all limits are met:
//
//   gemmkit check 10-async-copies.cu --grid '(N+127)/128,(M+127)/128' --block 256 \
//     --multiple-of 1,4,4 --limit-at 256x256x248 \
//     --limit 'gemmkit__cp_async_share_pct >= 100' \
//     --limit 'l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum == 0' \
//     --limit 'shared_bytes >= 3*4*8*(128+128)' \
//     --limit 'gemmkit__shared_loads_per_result <= K/4' \
//     --limit 'ptx__inst_executed_op_synchronize.sum <= 3*8*(K/8+3) * M*N/128/128'

constexpr int BM = 128, BN = 128, BK = 8;  // tile of a block, and the step along k
constexpr int WM = 32, WN = 64;            // tile of a warp
constexpr int TM = 8, TN = 8;              // tile of a thread
constexpr int PAD = 4;                     // unused floats at the end of each row of As
constexpr int STAGES = 3;                  // tiles of A and of B in shared memory
constexpr int THREADS = BM * BN / (TM * TN);

// Four adjacent floats as one 128-bit access; the address must be a multiple of 16 bytes.
__device__ const float4& vec4(const float& first) { return reinterpret_cast<const float4&>(first); }
__device__ float4& vec4(float& first) { return reinterpret_cast<float4&>(first); }

// Start a copy of 4 or 16 bytes from global to shared memory; unless `inside`, of that many zeros.
template <int BYTES>
__device__ void copy(float* to, const float* from, bool inside) {
  const unsigned address = __cvta_generic_to_shared(to);
  const int read = inside ? BYTES : 0;
  if (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address),
                 "l"(from), "r"(read) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address),
                 "l"(from), "r"(read) : "memory");
  }
}
// Close the copies started since the last call into a group.
__device__ void commit() { asm volatile("cp.async.commit_group;"); }
// Wait until at most the last N groups are under way.
template <int N>
__device__ void wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

__global__ void __launch_bounds__(THREADS)
    gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  __shared__ alignas(16) float As[STAGES][BK][BM + PAD];
  __shared__ alignas(16) float Bs[STAGES][BK][BN];

  const int block_row = blockIdx.y * BM, block_col = blockIdx.x * BN;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;
  const int lane_row = lane % 2 + lane / 16 * 2, lane_col = lane % 16 / 2;
  const int thread_row = warp_row + lane_row * 4;  // and WM / 2 further down
  const int thread_col = warp_col + lane_col * 4;  // and WN / 2 further right
  // Each thread copies four floats of A, one at a time, and four of B at once.
  const int a_row = threadIdx.x / 8, a_k = threadIdx.x % 8;
  const int b_k = threadIdx.x / 32, b_col = threadIdx.x % 32 * 4;

  const auto start = [&](int stage, int k0) {
    // TODO 1: start this thread's copies of the tiles at k0 to stage `stage`: four of 4 bytes to
    // As, one of 16 bytes to Bs. Then commit them as a group.
  };

  // TODO 2: start the copies of the first STAGES - 1 tiles.
  float sums[TM][TN] = {};
  for (int k0 = 0, stage = 0; k0 < K; k0 += BK, stage = (stage + 1) % STAGES) {
    // TODO 3: wait for this stage, and start the copies of a further tile. To which stage?

    for (int k = 0; k < BK; ++k) {
      alignas(16) float a[TM], b[TN];
      for (int i = 0; i < TM; i += 4) {
        vec4(a[i]) = vec4(As[stage][k][thread_row + i / 4 * (WM / 2)]);
      }
      for (int j = 0; j < TN; j += 4) {
        vec4(b[j]) = vec4(Bs[stage][k][thread_col + j / 4 * (WN / 2)]);
      }
      for (int i = 0; i < TM; ++i) {
        for (int j = 0; j < TN; ++j) sums[i][j] += a[i] * b[j];
      }
    }
  }
  wait<0>();  // a block must not end before its copies
  for (int i = 0; i < TM; ++i) {
    for (int j = 0; j < TN; j += 4) {
      const int row = block_row + thread_row + i / 4 * (WM / 2) + i % 4;
      const int col = block_col + thread_col + j / 4 * (WN / 2);
      if (row < M && col < N) vec4(C[row * N + col]) = vec4(sums[i][j]);
    }
  }
}
