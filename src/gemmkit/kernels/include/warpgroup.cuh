// What the rungs of wgmma share: tiles in shared memory that both copies and products know, and sums
// as a warpgroup's lanes have them.
#pragma once

#include "mma.cuh"
#include "wgmma.cuh"

// The tile of `SwizzledTile` with its memory. `at` finds an element in it where threads fill it
// themselves, by its line in memory and its place there: the 16-byte chunks of a line of 128 bytes
// change places by an exclusive or with the number of the line.
template <class T, int EXTENT, int DEPTH, bool K_MAJOR>
struct WarpgroupTile : SwizzledTile<T, EXTENT, DEPTH, K_MAJOR> {
  using Tile = SwizzledTile<T, EXTENT, DEPTH, K_MAJOR>;
  static constexpr int SPAN = Tile::SPAN, CHUNK = 16 / sizeof(T);
  alignas(1024) unsigned char memory[Tile::BYTES];

  __device__ __forceinline__ unsigned box(int number) const {
    return shared_address(memory) + number * Tile::BOX_BYTES;
  }
  __device__ __forceinline__ unsigned long long descriptor(int first, int k) const {
    return Tile::descriptor(shared_address(memory), first, k);
  }
  __device__ __forceinline__ T* at(int line, int place) {
    const int chunk = place % SPAN / CHUNK ^ line % 8;
    return reinterpret_cast<T*>(memory + place / SPAN * Tile::BOX_BYTES + line * Tile::LINE_BYTES) +
           chunk * CHUNK + place % CHUNK;
  }
};

// Finishes and stores the 64 rows of a warpgroup. Its warps have 16 rows each, in the layout of
// mma.sync.
template <int VEC, int COUNT, class Epilogue>
__device__ __forceinline__ void store_sums(const float (&sums)[COUNT], const Epilogue& epilogue,
                                           typename Epilogue::Out* C, int ldc, int M, int N,
                                           int first_row, int first_col) {
  const auto& products = reinterpret_cast<const float (&)[1][COUNT / 4][4]>(sums);
  store_products<VEC>(products, epilogue, C, ldc, M, N, first_row + threadIdx.x / 32 % 4 * 16,
                      first_col);
}
