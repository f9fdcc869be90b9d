// The write-back that every rung shares: C = activation(alpha * sum + beta * C + bias[col]).
#pragma once

struct Identity {
  static __device__ float apply(float x) { return x; }
};

struct Relu {
  // Written so that NaN stays NaN; fmaxf would turn it into 0 and hide it.
  static __device__ float apply(float x) { return x < 0.0f ? 0.0f : x; }
};

template <bool Bias, class Activation>
struct Epilogue {
  float alpha, beta;
  const float* bias;

  // Finishes one result and stores it at `c`. By the BLAS rules, beta = 0 never reads C.
  __device__ __forceinline__ void store(float* c, float sum, int col) const {
    *c = finish(sum, beta == 0.0f ? 0.0f : *c, col);
  }

  // The same for VEC (1 or 4) neighbours of a row; 4 as one 128-bit access.
  template <int VEC>
  __device__ __forceinline__ void store_vector(float* c, const float* sums, int col) const {
    if (VEC == 4) {
      float4* c4 = reinterpret_cast<float4*>(c);
      const float4 old = beta == 0.0f ? float4{} : *c4;
      *c4 = {finish(sums[0], old.x, col), finish(sums[1], old.y, col + 1),
             finish(sums[2], old.z, col + 2), finish(sums[3], old.w, col + 3)};
    } else {
      store(c, *sums, col);
    }
  }

 private:
  __device__ __forceinline__ float finish(float sum, float old, int col) const {
    float x = alpha * sum;
    if (beta != 0.0f) x += beta * old;
    if (Bias) x += bias[col];
    return Activation::apply(x);
  }
};
