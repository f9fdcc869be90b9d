// cp.async by inline PTX into a circular buffer of three stages; sizes are multiples of 16.
#define T 16
#define STAGES 3

__device__ __forceinline__ void copy4(float* to, const float* from) {
  unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from));
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;"); }
template <int N>
__device__ __forceinline__ void wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {
  __shared__ float As[STAGES][T][T];
  __shared__ float Bs[STAGES][T][T];
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int row = blockIdx.y * T + ty, col = blockIdx.x * T + tx;
  const int steps = K / T;
  auto fetch = [&](int step) {
    if (step < steps) {
      copy4(&As[step % STAGES][ty][tx], &A[row * K + step * T + tx]);
      copy4(&Bs[step % STAGES][ty][tx], &B[(step * T + ty) * N + col]);
    }
    commit();
  };
  for (int s = 0; s < STAGES - 1; ++s) fetch(s);
  float sum = 0.0f;
  for (int step = 0; step < steps; ++step) {
    wait<STAGES - 2>();
    __syncthreads();
    fetch(step + STAGES - 1);
    for (int k = 0; k < T; ++k) sum += As[step % STAGES][ty][k] * Bs[step % STAGES][k][tx];
  }
  C[row * N + col] = sum;
}
