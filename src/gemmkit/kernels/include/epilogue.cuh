// The write-back that every rung shares: what happens to a sum before it is stored.
//
//   D = scale * activation(alpha * sum + beta * C + bias) + residual
#pragma once

#include "layout.cuh"

struct Identity {
  template <class T>
  static __device__ T apply(T x) {
    return x;
  }
};

struct Relu {
  // Written so that NaN stays NaN; fmaxf would turn it into 0 and hide it.
  template <class T>
  static __device__ T apply(T x) {
    return x < T(0) ? T(0) : x;
  }
};

// x Phi(x), Phi being the standard normal distribution.
struct Gelu {
  template <class T>
  static __device__ T apply(T x) {
    return T(0.5) * x * (T(1) + erf(x * T(0.7071067811865476)));
  }
};

// The same by Hendrycks and Gimpel's approximation of Phi.
struct GeluTanh {
  template <class T>
  static __device__ T apply(T x) {
    const T y = T(0.7978845608028654) * (x + T(0.044715) * x * x * x);
    return T(0.5) * x * (T(1) + tanh(y));
  }
};

struct Silu {
  template <class T>
  static __device__ T apply(T x) {
    return x / (T(1) + exp(-x));
  }
};

// The parameters of an activation of the user's own, `struct Custom`, are the kernel's last ones, so
// that a new value needs no new kernel. Where there are any, both macros come with the compilation.
#ifndef CUSTOM_PARAMETERS
#define CUSTOM_PARAMETERS
#define CUSTOM
#endif

enum Bias { NO_BIAS, COLUMN_BIAS, ROW_BIAS };

// What an epilogue may do besides, and what it needs for that; matrices lie like C.
enum Extra { RESIDUAL = 1, AUXILIARY = 2, SCALE = 4 };

template <class T>
struct Extras {
  const T* residual;
  int ldr;
  T* auxiliary;
  int ldx;
  float scale;
};

template <Bias BIAS, class Activation, int EXTRA = 0>
struct Epilogue {
  static constexpr bool BY_COLUMN = BIAS == COLUMN_BIAS;
  float alpha, beta;
  const float* bias;
  Extras<float> extras = {};
  Activation activation = {};

  // Finishes one result and stores it at `c`. By the BLAS rules, beta = 0 never reads C.
  __device__ __forceinline__ void store(float* c, float sum, int row, int col) const {
    *c = finish(sum, beta == 0.0f ? 0.0f : *c, row, col);
  }

  // The same for VEC (1 or 4) neighbours of a row; 4 as one 128-bit access.
  template <int VEC>
  __device__ __forceinline__ void store_vector(float* c, const float* sums, int row,
                                               int col) const {
    if (VEC == 4) {
      float4* c4 = reinterpret_cast<float4*>(c);
      const float4 old = beta == 0.0f ? float4{} : *c4;
      *c4 = {finish(sums[0], old.x, row, col), finish(sums[1], old.y, row, col + 1),
             finish(sums[2], old.z, row, col + 2), finish(sums[3], old.w, row, col + 3)};
    } else {
      store(c, *sums, row, col);
    }
  }

 private:
  __device__ __forceinline__ float finish(float sum, float old, int row, int col) const {
    float x = alpha * sum;
    if (beta != 0.0f) x += beta * old;
    if (BIAS) x += bias[BIAS == ROW_BIAS ? row : col];
    if (EXTRA & AUXILIARY) *element(extras.auxiliary, extras.ldx, row, col) = x;
    x = activation.apply(x);
    if (EXTRA & SCALE) x *= extras.scale;
    if (EXTRA & RESIDUAL) x += *element(extras.residual, extras.ldr, row, col);
    return x;
  }
};
