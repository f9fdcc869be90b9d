// 练习 9：warp 分块。题目见 09-warp_tiled.md。
// 下面的命令不再报告问题，并且满足所有限值，练习就完成了：
//
//   gemmkit check 09-warp-tiles.cu --grid '(N+127)/128,(M+127)/128' --block 256 \
//     --multiple-of 1,4,4 \
//     --limit 'l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum <= M*N*K/256' \
//     --limit 'gemmkit__global_loads_per_result <= K/64' \
//     --limit 'bank_conflicts == 0'

constexpr int BM = 128, BN = 128, BK = 8;  // 线程块分块，以及沿 k 方向的步长
constexpr int WM = 32, WN = 64;            // warp 分块
constexpr int TM = 8, TN = 8;              // 线程分块
constexpr int PAD = 4;                     // As 每行末尾空着不用的 float 个数
constexpr int THREADS = BM * BN / (TM * TN);

// 把相邻的四个 float 作为一次 128 位访问；地址必须是 16 字节的倍数。
__device__ const float4& vec4(const float& first) { return reinterpret_cast<const float4&>(first); }
__device__ float4& vec4(float& first) { return reinterpret_cast<float4&>(first); }

__global__ void __launch_bounds__(THREADS)
    gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  __shared__ alignas(16) float As[2][BK][BM + PAD];
  __shared__ alignas(16) float Bs[2][BK][BN];

  const int block_row = blockIdx.y * BM, block_col = blockIdx.x * BN;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // TODO: 本 warp 的分块在线程块分块中的左上角；warp 的 lane 排成 4 行 8 列、成对编号，
  // 本 lane 在其中的位置。
  const int warp_row = warp * 0, warp_col = 0;
  const int lane_row = lane * 0, lane_col = 0;
  const int thread_row = warp_row + lane_row * 4;  // 另一半在下方 WM / 2 处
  const int thread_col = warp_col + lane_col * 4;  // 另一半在右边 WN / 2 处
  // 每个线程从两个分块各拷贝四个 float。
  const int a_row = threadIdx.x / 2, a_k = threadIdx.x % 2 * 4;
  const int b_k = threadIdx.x / 32, b_col = threadIdx.x % 32 * 4;

  float4 a4, b4;  // 从全局内存到共享内存途中的数据
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
  fetch(0);
  for (int k0 = 0, stage = 0; k0 < K; k0 += BK, stage ^= 1) {
    put(stage);
    __syncthreads();  // 这一级已经写完；不再有线程读另一级
    fetch(k0 + BK);   // 越过最后一个分块后什么也不读

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
  for (int i = 0; i < TM; ++i) {
    for (int j = 0; j < TN; j += 4) {
      const int row = block_row + thread_row + i / 4 * (WM / 2) + i % 4;
      const int col = block_col + thread_col + j / 4 * (WN / 2);
      if (row < M && col < N) vec4(C[row * N + col]) = vec4(sums[i][j]);
    }
  }
}
