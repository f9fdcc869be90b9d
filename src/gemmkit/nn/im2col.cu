// The patches of images as matrices: a row for each channel and tap, a column for each place.
//
// Blocks run over places along x, over rows along y and over images along z, the last two in strides
// of the grid. Neighbouring threads write neighbouring elements; what they read are neighbours too,
// `across` apart. Beyond the image's edge lies zero. T is any type of an element's size.

template <class T>
__global__ void im2col(const T* __restrict__ x, T* __restrict__ patches, long long images,
                       long long image_pitch, long long channel_pitch, long long depth,
                       long long height, long long width, long long rows, long long columns,
                       long long out_height, long long out_width, long long down, long long across,
                       long long dy, long long dx, long long top, long long left) {
  const long long place = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const long long places = out_height * out_width;
  if (place >= places) return;
  const long long first_row = place / out_width * down - top;
  const long long first_column = place % out_width * across - left;
  for (long long line = blockIdx.y; line < depth; line += gridDim.y) {
    const long long channel = line / (rows * columns), tap = line % (rows * columns);
    const long long row = first_row + tap / columns * dy;
    const long long column = first_column + tap % columns * dx;
    const bool inside = row >= 0 && row < height && column >= 0 && column < width;
    const T* source = x + channel * channel_pitch + row * width + column;
    T* target = patches + line * places + place;
    for (long long image = blockIdx.z; image < images; image += gridDim.z) {
      target[image * depth * places] = inside ? source[image * image_pitch] : T(0);
    }
  }
}
