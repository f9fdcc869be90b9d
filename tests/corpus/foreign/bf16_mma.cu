// fp32 outside, bf16 tensor cores inside: one warp computes 16x8 results by mma.m16n8k16.
#include <cuda_bf16.h>

__device__ unsigned pack(float low, float high) {
  __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<unsigned*>(&both);
}

__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  const int lane = threadIdx.x, group = lane / 4, pair = lane % 4 * 2;
  const int m0 = blockIdx.y * 16, n0 = blockIdx.x * 8;
  auto a = [&](int m, int k) { return m0 + m < M && k < K ? A[(m0 + m) * K + k] : 0.0f; };
  auto b = [&](int k, int n) { return k < K && n0 + n < N ? B[k * N + n0 + n] : 0.0f; };
  float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int k0 = 0; k0 < K; k0 += 16) {
    unsigned x[4], y[2];
    for (int i = 0; i < 4; ++i) {
      const int m = group + i % 2 * 8, k = k0 + pair + i / 2 * 8;
      x[i] = pack(a(m, k), a(m, k + 1));
    }
    for (int i = 0; i < 2; ++i) {
      const int k = k0 + pair + i * 8;
      y[i] = pack(b(k, group), b(k + 1, group));
    }
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
  }
  for (int i = 0; i < 4; ++i) {
    const int m = m0 + group + i / 2 * 8, n = n0 + pair + i % 2;
    if (m < M && n < N) C[m * N + n] = d[i];
  }
}
