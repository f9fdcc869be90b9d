// 练习 10：异步拷贝。题目见 10-async_copy.md。
// 下面的命令不再报告问题，并且满足所有限值，练习就完成了：
//
//   gemmkit check 10-async-copies.cu --grid '(N+127)/128,(M+127)/128' --block 256 \
//     --multiple-of 1,4,4 --limit-at 256x256x248 \
//     --limit 'gemmkit__cp_async_share_pct >= 100' \
//     --limit 'l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum == 0' \
//     --limit 'shared_bytes >= 3*4*8*(128+128)' \
//     --limit 'gemmkit__shared_loads_per_result <= K/4' \
//     --limit 'ptx__inst_executed_op_synchronize.sum <= 3*8*(K/8+3) * M*N/128/128'

constexpr int BM = 128, BN = 128, BK = 8;  // 线程块分块，以及沿 k 方向的步长
constexpr int WM = 32, WN = 64;            // warp 分块
constexpr int TM = 8, TN = 8;              // 线程分块
constexpr int PAD = 4;                     // As 每行末尾空着不用的 float 个数
constexpr int STAGES = 3;                  // 共享内存中 A 和 B 的分块各有几个
constexpr int THREADS = BM * BN / (TM * TN);

// 把相邻的四个 float 作为一次 128 位访问；地址必须是 16 字节的倍数。
__device__ const float4& vec4(const float& first) { return reinterpret_cast<const float4&>(first); }
__device__ float4& vec4(float& first) { return reinterpret_cast<float4&>(first); }

// 启动一次从全局内存到共享内存的拷贝，4 或 16 字节；`inside` 为假时填入同样多的零。
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
// 把上次调用以来启动的拷贝归为一组。
__device__ void commit() { asm volatile("cp.async.commit_group;"); }
// 等待，直到未完成的至多是最近的 N 组。
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
  const int thread_row = warp_row + lane_row * 4;  // 另一半在下方 WM / 2 处
  const int thread_col = warp_col + lane_col * 4;  // 另一半在右边 WN / 2 处
  // 每个线程逐个拷贝 A 的四个 float，一次拷贝 B 的四个 float。
  const int a_row = threadIdx.x / 8, a_k = threadIdx.x % 8;
  const int b_k = threadIdx.x / 32, b_col = threadIdx.x % 32 * 4;

  const auto start = [&](int stage, int k0) {
    // TODO 1: 启动本线程的拷贝，把 k0 处的分块拷入流水级 `stage`：四次 4 字节写到 As，
    // 一次 16 字节写到 Bs。然后提交为一组。
  };

  // TODO 2: 启动前 STAGES - 1 组分块的拷贝。
  float sums[TM][TN] = {};
  for (int k0 = 0, stage = 0; k0 < K; k0 += BK, stage = (stage + 1) % STAGES) {
    // TODO 3: 等待这一级，并启动后面的分块的拷贝。拷到哪一级？

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
  wait<0>();  // 线程块不能在自己的拷贝完成之前结束
  for (int i = 0; i < TM; ++i) {
    for (int j = 0; j < TN; j += 4) {
      const int row = block_row + thread_row + i / 4 * (WM / 2) + i % 4;
      const int col = block_col + thread_col + j / 4 * (WN / 2);
      if (row < M && col < N) vec4(C[row * N + col]) = vec4(sums[i][j]);
    }
  }
}
