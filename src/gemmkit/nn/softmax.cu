// Softmax of the rows of scores, a block of THREADS for each: exp(x - largest) over the row's sum.
//
// Rows have `keys` elements and follow one another; with `causal` row i of each `queries` rows looks
// at its first i + 1 elements only, whatever the others are. Rows that are all -inf become zeros.
//
// With QUADS a thread keeps a row's elements, so many times four of them, and each is read once; keys
// are a multiple of four then. With none of them, rows of any length are read three times.

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

template <int QUADS>
__device__ void softmax_kept(const float* scores, float* weights, int seen, int keys,
                             float* scratch) {
  const float minus_infinity = __int_as_float(0xff800000);
  float x[QUADS][4];
  float largest = minus_infinity;
#pragma unroll
  for (int quad = 0; quad < QUADS; ++quad) {
    const int key = 4 * (quad * THREADS + threadIdx.x);
    float4 four = make_float4(minus_infinity, minus_infinity, minus_infinity, minus_infinity);
    if (key < seen) four = *reinterpret_cast<const float4*>(scores + key);
    x[quad][0] = four.x, x[quad][1] = four.y, x[quad][2] = four.z, x[quad][3] = four.w;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (key + i >= seen) x[quad][i] = minus_infinity;
      largest = fmaxf(largest, x[quad][i]);
    }
  }
  largest = reduced<true>(largest, scratch);
  if (largest == minus_infinity) largest = 0;
  float sum = 0;
#pragma unroll
  for (int quad = 0; quad < QUADS; ++quad) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum += x[quad][i] = expf(x[quad][i] - largest);
  }
  sum = reduced<false>(sum, scratch);
  if (sum == 0) sum = 1;
#pragma unroll
  for (int quad = 0; quad < QUADS; ++quad) {
    const int key = 4 * (quad * THREADS + threadIdx.x);
    if (key < keys) {
      *reinterpret_cast<float4*>(weights + key) =
          make_float4(x[quad][0] / sum, x[quad][1] / sum, x[quad][2] / sum, x[quad][3] / sum);
    }
  }
}

__device__ inline void softmax_of_any_length(const float* scores, float* weights, long long seen,
                                             long long keys, float* scratch) {
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

template <int QUADS>
__global__ void softmax(const float* __restrict__ scores, float* __restrict__ weights,
                        long long queries, long long keys, long long causal) {
  __shared__ float scratch[THREADS / 32];
  const long long row = blockIdx.x, own = row % queries + 1;
  const long long seen = causal && own < keys ? own : keys;
  scores += row * keys;
  weights += row * keys;
  if constexpr (QUADS > 0) {
    softmax_kept<QUADS>(scores, weights, seen, keys, scratch);
  } else {
    softmax_of_any_length(scores, weights, seen, keys, scratch);
  }
}
