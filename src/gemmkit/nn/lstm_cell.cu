// What follows the product of a step of an LSTM: a thread for each element of the state.
//
// A row of gates holds the arguments of i, f, g and o, `hidden` of each, and begins `pitch` elements
// after the one before it. c, and the new h and c, are batch x hidden without gaps.

__device__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

extern "C" __global__ void lstm_cell(const float* __restrict__ gates, const float* __restrict__ c,
                                     float* __restrict__ new_h, float* __restrict__ new_c,
                                     long long batch, long long hidden, long long pitch) {
  const long long element = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (element >= batch * hidden) return;
  const float* row = gates + element / hidden * pitch + element % hidden;
  const float i = sigmoid(row[0]);
  const float f = sigmoid(row[hidden]);
  const float g = tanhf(row[2 * hidden]);
  const float o = sigmoid(row[3 * hidden]);
  const float next = f * c[element] + i * g;
  new_c[element] = next;
  new_h[element] = o * tanhf(next);
}
