// 练习 7b：不用填充，消除 bank 冲突。题目见 07-conflict_free.md。
// 下面的命令不再报告问题，并且满足所有限值，练习就完成了：
//
//   gemmkit check 07b-swizzle.cu --grid '(N+127)/128,(M+127)/128' --block 256 \
//     --multiple-of 1,4,4 \
//     --limit 'bank_conflicts == 0' \
//     --limit 'gemmkit__global_loads_per_result <= K/64' \
//     --limit 'shared_bytes <= 4*8*(128+128)'

constexpr int BM = 128, BN = 128, BK = 8;  // 线程块分块，以及沿 k 方向的步长
constexpr int TM = 8, TN = 8;              // 线程分块
constexpr int THREADS = BM * BN / (TM * TN);

// A 分块第 row 行的元素在 As 第 k 行中的列号。
// TODO: 置换各列，k 为 4 到 7 时的置换与 k 为 0 到 3 时不同。四个一组的向量不能拆散。
__device__ int swizzled(int k, int row) { return 0; }

// 把相邻的四个 float 作为一次 128 位访问；地址必须是 16 字节的倍数。
__device__ const float4& vec4(const float& first) { return reinterpret_cast<const float4&>(first); }
__device__ float4& vec4(float& first) { return reinterpret_cast<float4&>(first); }

__global__ void __launch_bounds__(THREADS)
    gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  __shared__ alignas(16) float As[BK][BM];
  __shared__ alignas(16) float Bs[BK][BN];

  const int block_row = blockIdx.y * BM, block_col = blockIdx.x * BN;
  const int thread_row = threadIdx.x / (BN / TN) * TM;
  const int thread_col = threadIdx.x % (BN / TN) * 4;  // 另一半在右边 BN / 2 处
  // 每个线程从两个分块各拷贝四个 float。
  const int a_row = threadIdx.x / 2, a_k = threadIdx.x % 2 * 4;
  const int b_k = threadIdx.x / 32, b_col = threadIdx.x % 32 * 4;

  float sums[TM][TN] = {};
  for (int k0 = 0; k0 < K; k0 += BK) {
    float4 a4 = {}, b4 = {};
    if (block_row + a_row < M && k0 + a_k < K) a4 = vec4(A[(block_row + a_row) * K + k0 + a_k]);
    if (k0 + b_k < K && block_col + b_col < N) b4 = vec4(B[(k0 + b_k) * N + block_col + b_col]);
    const int a_at = swizzled(a_k, a_row);  // 四个元素的列号相同
    As[a_k + 0][a_at] = a4.x;
    As[a_k + 1][a_at] = a4.y;
    As[a_k + 2][a_at] = a4.z;
    As[a_k + 3][a_at] = a4.w;
    vec4(Bs[b_k][b_col]) = b4;
    __syncthreads();

    for (int k = 0; k < BK; ++k) {
      alignas(16) float a[TM], b[TN];
      for (int i = 0; i < TM; i += 4) vec4(a[i]) = vec4(As[k][swizzled(k, thread_row + i)]);
      for (int j = 0; j < TN; j += 4) vec4(b[j]) = vec4(Bs[k][thread_col + j / 4 * (BN / 2)]);
      for (int i = 0; i < TM; ++i) {
        for (int j = 0; j < TN; ++j) sums[i][j] += a[i] * b[j];
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < TM; ++i) {
    for (int j = 0; j < TN; j += 4) {
      const int row = block_row + thread_row + i;
      const int col = block_col + thread_col + j / 4 * (BN / 2);
      if (row < M && col < N) vec4(C[row * N + col]) = vec4(sums[i][j]);
    }
  }
}
