// What follows the product of a step of a GRU: a thread for each element of the state.
//
// Rows of p (from the inputs) and s (from the state) hold the arguments of r, z and n, `hidden` of
// each; those of p begin `pitch` elements after each other. The rest is without gaps. Blocks run
// over columns along x and over rows along y, in strides of the grid.

__device__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

extern "C" __global__ void gru_cell(const float* __restrict__ p, const float* __restrict__ s,
                                    const float* __restrict__ h, float* __restrict__ new_h,
                                    long long batch, long long hidden, long long pitch) {
  const long long column = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= hidden) return;
  for (long long row = blockIdx.y; row < batch; row += gridDim.y) {
    const float* from_input = p + row * pitch + column;
    const float* from_state = s + row * 3 * hidden + column;
    const long long element = row * hidden + column;
    const float r = sigmoid(from_input[0] + from_state[0]);
    const float z = sigmoid(from_input[hidden] + from_state[hidden]);
    const float n = tanhf(from_input[2 * hidden] + r * from_state[2 * hidden]);
    new_h[element] = n + z * (h[element] - n);
  }
}
