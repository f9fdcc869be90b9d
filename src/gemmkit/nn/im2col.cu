// The patches of images as matrices: a row for each channel and tap, a column for each place.
//
// A thread has WIDTH places side by side, whose number is a multiple of that, and stores a row's at
// once. Blocks run over places along x, over rows along y and over images along z, the last two in
// strides of the grid. What neighbors read are neighbors too, `across` apart. Beyond the image's
// edge lies zero. T is any type of an element's size. Rows and places are counted in 32 bits, which
// divide in a fraction of the time of 64.

template <class T, int WIDTH>
struct alignas(WIDTH * sizeof(T) < 16 ? WIDTH * sizeof(T) : 16) Stored {
  T elements[WIDTH];
};

template <class T, int WIDTH>
__global__ void im2col(const T* __restrict__ x, T* __restrict__ patches, long long images,
                       long long image_pitch, long long channel_pitch, int depth, int height,
                       int width, int rows, int columns, int out_height, int out_width, int down,
                       int across, int dy, int dx, int top, int left) {
  const int place = (blockIdx.x * blockDim.x + threadIdx.x) * WIDTH;
  const int places = out_height * out_width;
  if (place >= places) return;
  int first_row[WIDTH], first_column[WIDTH];
  for (int i = 0; i < WIDTH; ++i) {
    const int out_row = (place + i) / out_width;
    first_row[i] = out_row * down - top;
    first_column[i] = (place + i - out_row * out_width) * across - left;
  }
  const long long matrix = static_cast<long long>(depth) * places;
  for (int line = blockIdx.y; line < depth; line += gridDim.y) {
    const int channel = line / (rows * columns), tap = line - channel * (rows * columns);
    const int tap_row = tap / columns;
    const int row_shift = tap_row * dy, column_shift = (tap - tap_row * columns) * dx;
    bool inside[WIDTH];
    int source[WIDTH];
    for (int i = 0; i < WIDTH; ++i) {
      const int row = first_row[i] + row_shift, column = first_column[i] + column_shift;
      inside[i] = row >= 0 && row < height && column >= 0 && column < width;
      source[i] = inside[i] ? row * width + column : 0;
    }
    const T* plane = x + channel * channel_pitch;
    T* target = patches + static_cast<long long>(line) * places + place;
#pragma unroll 4
    for (long long image = blockIdx.z; image < images; image += gridDim.z) {
      Stored<T, WIDTH> seen;
      for (int i = 0; i < WIDTH; ++i) {
        seen.elements[i] = inside[i] ? plane[image * image_pitch + source[i]] : T(0);
      }
      *reinterpret_cast<Stored<T, WIDTH>*>(target + image * matrix) = seen;
    }
  }
}
