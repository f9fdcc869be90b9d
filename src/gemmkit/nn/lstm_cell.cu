// What follows the product of a step of an LSTM: a thread for each element of the state.
//
// A row of gates holds the arguments of i, f, g and o, `hidden` of each, and begins `pitch` elements
// after the one before it. c, and the new h and c, are batch x hidden without gaps. Blocks run over
// columns along x and over rows along y, in strides of the grid.

__device__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

extern "C" __global__ void lstm_cell(const float* __restrict__ gates, const float* __restrict__ c,
                                     float* __restrict__ new_h, float* __restrict__ new_c,
                                     long long batch, long long hidden, long long pitch) {
  const long long column = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= hidden) return;
  for (long long row = blockIdx.y; row < batch; row += gridDim.y) {
    const float* own = gates + row * pitch + column;
    const long long element = row * hidden + column;
    const float i = sigmoid(own[0]);
    const float f = sigmoid(own[hidden]);
    const float g = tanhf(own[2 * hidden]);
    const float o = sigmoid(own[3 * hidden]);
    const float next = f * c[element] + i * g;
    new_c[element] = next;
    new_h[element] = o * tanhf(next);
  }
}
