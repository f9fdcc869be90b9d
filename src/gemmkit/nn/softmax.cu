// Softmax of the rows of scores, a block of THREADS for each: exp(x - largest) over the row's sum.
//
// Rows have `keys` elements and follow one another; with `causal` row i of each `queries` rows looks
// at its first i + 1 elements only, and the others are not read. Rows that are all -inf become zeros.

constexpr int THREADS = 128;

// The largest, or the sum, of what all threads hold; `scratch` has a float for each warp.
template <bool LARGEST>
__device__ float reduced(float x, float* scratch) {
  for (int distance = 16; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, x, distance);
    x = LARGEST ? fmaxf(x, other) : x + other;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  x = scratch[0];
  for (int warp = 1; warp < THREADS / 32; ++warp) {
    x = LARGEST ? fmaxf(x, scratch[warp]) : x + scratch[warp];
  }
  return x;
}

extern "C" __global__ void softmax(const float* __restrict__ scores, float* __restrict__ weights,
                                   long long queries, long long keys, long long causal) {
  __shared__ float scratch[THREADS / 32];
  const long long row = blockIdx.x, own = row % queries + 1;
  const long long seen = causal && own < keys ? own : keys;
  scores += row * keys;
  weights += row * keys;
  const float minus_infinity = __int_as_float(0xff800000);
  float largest = minus_infinity;
  for (long long key = threadIdx.x; key < seen; key += THREADS) {
    largest = fmaxf(largest, scores[key]);
  }
  largest = reduced<true>(largest, scratch);
  if (largest == minus_infinity) largest = 0;
  float sum = 0;
  for (long long key = threadIdx.x; key < seen; key += THREADS) {
    sum += expf(scores[key] - largest);
  }
  sum = reduced<false>(sum, scratch);
  if (sum == 0) sum = 1;
  for (long long key = threadIdx.x; key < keys; key += THREADS) {
    weights[key] = key < seen ? expf(scores[key] - largest) / sum : 0;
  }
}
