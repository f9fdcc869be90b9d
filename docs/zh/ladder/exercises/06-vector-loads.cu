// 练习 6：128 位访问。题目见 06-vectorized.md。
// 下面的命令不再报告问题，并且满足所有限值，练习就完成了：
//
//   gemmkit check 06-vector-loads.cu --grid '(N+127)/128,(M+127)/128' --block 256 \
//     --multiple-of 1,4,4 \
//     --limit 'load_requests <= M*N*K/64/128' \
//     --limit 'store_requests <= M*N/128' \
//     --limit 'gemmkit__bytes_per_lane_shared_op_ld >= 16'

constexpr int BM = 128, BN = 128, BK = 8;  // 线程块分块，以及沿 k 方向的步长
constexpr int TM = 8, TN = 8;              // 线程分块
constexpr int THREADS = BM * BN / (TM * TN);

// 把相邻的四个 float 作为一次 128 位访问；地址必须是 16 字节的倍数。
__device__ const float4& vec4(const float& first) { return reinterpret_cast<const float4&>(first); }
__device__ float4& vec4(float& first) { return reinterpret_cast<float4&>(first); }

__global__ void __launch_bounds__(THREADS)
    gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  __shared__ alignas(16) float As[BK][BM];  // 转置存放：第 k 行是分块的第 k 列
  __shared__ alignas(16) float Bs[BK][BN];

  const int block_row = blockIdx.y * BM, block_col = blockIdx.x * BN;
  const int thread_row = threadIdx.x / (BN / TN) * TM;
  const int thread_col = threadIdx.x % (BN / TN) * TN;
  // 每个线程从两个分块各拷贝四个 float。
  const int a_row = threadIdx.x / 2, a_k = threadIdx.x % 2 * 4;
  const int b_k = threadIdx.x / 32, b_col = threadIdx.x % 32 * 4;

  float sums[TM][TN] = {};
  for (int k0 = 0; k0 < K; k0 += BK) {
    float4 a4 = {}, b4 = {};
    // TODO 1: 加载 a4 和 b4，矩阵外的不加载。M 可取任意值，N 和 K 是 4 的倍数：
    // 一个向量要么整个在矩阵内，要么整个在矩阵外。

    // TODO 2: 把它们写入 As 和 Bs；a4 的四个元素写到 As 的四行。

    __syncthreads();

    for (int k = 0; k < BK; ++k) {
      alignas(16) float a[TM], b[TN];
      // TODO 3: 从 As 的第 k 行加载 TM 个 float，从 Bs 的第 k 行加载 TN 个，每次四个。
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
      // TODO 4: 一次写回 sums 的四个元素。
    }
  }
}
