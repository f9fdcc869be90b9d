// The patches of images as matrices: a row for each channel and tap, a column for each place.
//
// Blocks run over places along x, over rows along y and over images along z, the last two in strides
// of the grid. Neighbouring threads write neighbouring elements; what they read are neighbours too,
// `across` apart. Beyond the image's edge lies zero. T is any type of an element's size. Rows and
// places are counted in 32 bits, which divide in a fraction of the time of 64.

template <class T>
__global__ void im2col(const T* __restrict__ x, T* __restrict__ patches, long long images,
                       long long image_pitch, long long channel_pitch, int depth, int height,
                       int width, int rows, int columns, int out_height, int out_width, int down,
                       int across, int dy, int dx, int top, int left) {
  const int place = blockIdx.x * blockDim.x + threadIdx.x;
  const int places = out_height * out_width;
  if (place >= places) return;
  const int out_row = place / out_width;
  const int first_row = out_row * down - top;
  const int first_column = (place - out_row * out_width) * across - left;
  const long long matrix = static_cast<long long>(depth) * places;
  for (int line = blockIdx.y; line < depth; line += gridDim.y) {
    const int channel = line / (rows * columns), tap = line - channel * (rows * columns);
    const int tap_row = tap / columns;
    const int row = first_row + tap_row * dy;
    const int column = first_column + (tap - tap_row * columns) * dx;
    const bool inside = row >= 0 && row < height && column >= 0 && column < width;
    const T* source = x + channel * channel_pitch + static_cast<long long>(row) * width + column;
    T* target = patches + static_cast<long long>(line) * places + place;
    for (long long image = blockIdx.z; image < images; image += gridDim.z) {
      target[image * matrix] = inside ? source[image * image_pitch] : T(0);
    }
  }
}
