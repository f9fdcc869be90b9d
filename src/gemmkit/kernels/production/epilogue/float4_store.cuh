// The write-back of aligned fp32 results.
#pragma once

#include "epilogue.cuh"

// An epilogue that stores four results of a row as a float4: the same numbers as `Epilogue` stores,
// but ptxas then assigns the mainloop's registers with fewer bank conflicts.
template <class Epilogue>
struct Float4Store : Epilogue {
  template <int VEC>
  __device__ __forceinline__ void store_vector(float* c, const float* sums, int row,
                                               int col) const {
    if constexpr (VEC == 4) {
      float4* const c4 = reinterpret_cast<float4*>(c);
      const float4 old = this->beta == 0.0f ? float4{} : *c4;
      *c4 = {this->finish(sums[0], old.x, row, col), this->finish(sums[1], old.y, row, col + 1),
             this->finish(sums[2], old.z, row, col + 2),
             this->finish(sums[3], old.w, row, col + 3)};
    } else {
      Epilogue::template store_vector<VEC>(c, sums, row, col);
    }
  }
};
