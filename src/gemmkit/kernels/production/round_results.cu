// Rounds results that were accumulated in fp32 over several launches to the type that they are stored in.
//
// Rows of both begin at multiples of 16 bytes. A thread rounds four neighbors of a row at a time.
#include "typed.cuh"

constexpr int THREADS = 256, PER_THREAD = 4;

template <class Out>
struct alignas(PER_THREAD * sizeof(Out)) Rounded {
  Out of[PER_THREAD];
};

// C = A, of M rows and N columns.
template <class Out>
__global__ void __launch_bounds__(THREADS)
    round_results(const float* A, long long lda, Out* C, long long ldc, int M, int N) {
  const int column = (blockIdx.x * THREADS + threadIdx.x) * PER_THREAD;
  for (int row = blockIdx.y; row < M; row += gridDim.y) {
    const float* from = A + row * lda + column;
    Out* to = C + row * ldc + column;
    if (column + PER_THREAD <= N) {
      const float4 four = *reinterpret_cast<const float4*>(from);
      Rounded<Out> rounded;
      rounded.of[0] = Narrowed<Out>::of(four.x);
      rounded.of[1] = Narrowed<Out>::of(four.y);
      rounded.of[2] = Narrowed<Out>::of(four.z);
      rounded.of[3] = Narrowed<Out>::of(four.w);
      *reinterpret_cast<Rounded<Out>*>(to) = rounded;
    } else {
      for (int i = 0; column + i < N; ++i) to[i] = Narrowed<Out>::of(from[i]);
    }
  }
}
