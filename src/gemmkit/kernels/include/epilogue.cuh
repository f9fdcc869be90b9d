// The write-back that all kernels share: what happens to an accumulated sum before it is stored.
//
//   D = scale * activation(alpha * sum + beta * C + bias) + residual
#pragma once

#include "layout.cuh"
#include "typed.cuh"

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

template <class Out, class Sum>
struct Extras {
  const Out* residual;
  int ldr;
  Out* auxiliary;
  int ldx;
  Sum scale;
};

// Results of type Out, accumulated and finished as Sum: float or double.
template <Bias BIAS, class Activation_, int EXTRA = 0, class Out_ = float, class Sum_ = float>
struct Epilogue {
  using Activation = Activation_;
  using Out = Out_;
  using Sum = Sum_;
  static constexpr bool BY_COLUMN = BIAS == COLUMN_BIAS;
  Sum alpha, beta;
  const Out* bias;
  Extras<Out, Sum> extras = {};
  Activation activation = {};

  // Finishes one result and stores it at `c`. By the BLAS rules, beta = 0 never reads C.
  __device__ __forceinline__ void store(Out* c, Sum sum, int row, int col) const {
    store_vector<1>(c, &sum, row, col);
  }

  // The same for VEC neighbors of a row, in accesses of up to 16 bytes; the address is a multiple
  // of their size.
  template <int VEC>
  __device__ __forceinline__ void store_vector(Out* c, const Sum* sums, int row, int col) const {
    Pack<Out, VEC> old, results;
    if (beta != Sum(0)) old.load(c);
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      const Sum x = finish(sums[v], widened<Sum>(old.get(v)), row, col + v);
      results.set(v, Narrowed<Out>::of(x));
    }
    results.store(c);
  }

  // What is stored for a sum, `old` being what C has there.
  __device__ __forceinline__ Sum finish(Sum sum, Sum old, int row, int col) const {
    Sum x = alpha * sum;
    if (beta != Sum(0)) x += beta * old;
    if (BIAS) x += widened<Sum>(bias[BIAS == ROW_BIAS ? row : col]);
    if (EXTRA & AUXILIARY) {
      *element(extras.auxiliary, extras.ldx, row, col) = Narrowed<Out>::of(x);
    }
    x = activation.apply(x);
    if (EXTRA & SCALE) x *= extras.scale;
    if (EXTRA & RESIDUAL) {
      x += widened<Sum>(*element(extras.residual, extras.ldr, row, col));
    }
    return x;
  }
};
