// Two buffers in dynamic shared memory, one barrier a step.
#define BS 16

extern __shared__ float smem[];

__global__ void gemm(const float* A, const float* B, float* C, int M, int N, int K) {
  float* As = smem;
  float* Bs = smem + 2 * BS * BS;
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int row = blockIdx.y * BS + ty, col = blockIdx.x * BS + tx;
  const int steps = (K + BS - 1) / BS;
  auto load = [&](int step, int buffer) {
    const int ka = step * BS + tx, kb = step * BS + ty;
    As[buffer * BS * BS + ty * BS + tx] = (row < M && ka < K) ? A[row * K + ka] : 0.f;
    Bs[buffer * BS * BS + ty * BS + tx] = (kb < K && col < N) ? B[kb * N + col] : 0.f;
  };
  float sum = 0.f;
  load(0, 0);
  __syncthreads();
  for (int step = 0; step < steps; ++step) {
    const int now = step & 1;
    if (step + 1 < steps) load(step + 1, now ^ 1);
    for (int k = 0; k < BS; ++k)
      sum += As[now * BS * BS + ty * BS + k] * Bs[now * BS * BS + k * BS + tx];
    __syncthreads();
  }
  if (row < M && col < N) C[row * N + col] = sum;
}
