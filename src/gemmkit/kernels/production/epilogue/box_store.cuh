// The write-back through boxes of a tile of C, or of the transpose of one.
#pragma once

#include "epilogue/fragment_store.cuh"
#include "epilogue/swapped_store.cuh"
#include "layout.cuh"

template <bool SWAPPED, int BN, int BUFFERS, WriteBack WAY, int SPARE, class Epilogue,
          int LINE = 128>
using BoxStore = Either<SWAPPED, SwappedStore<BN, BUFFERS, WAY, SPARE, Epilogue, LINE>,
                        FragmentStore<BN, BUFFERS, WAY, SPARE, Epilogue, LINE>>;

// Where results leave from the registers alone.
struct NoStore {
  static constexpr int BOXES = 0;
  struct Buffers {};
};
