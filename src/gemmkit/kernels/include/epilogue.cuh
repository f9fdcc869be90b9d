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

// Of the special-function unit, within 2^-22: with exp(), erf() and a division an activation takes
// two to three times as many instructions, which matters where results leave while others are
// multiplied.
struct Approximate {
  static __device__ float power_of_two(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
  }

  static __device__ float reciprocal(float x) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
  }
};

// x Phi(x), Phi being the standard normal distribution.
struct Gelu {
  static __device__ double apply(double x) { return 0.5 * x * (1.0 + erf(x * 0.7071067811865476)); }

  // Phi(-|x|) = exp(-x^2 / 2) P(t) with t = 1 / (1 + 0.3 |x|), as Abramowitz and Stegun have it in
  // 7.1.26; P is of degree 8 and was fitted to within 1.2e-7 of it, relatively. 1 + erf() would lose
  // the small values of the left tail.
  static __device__ float apply(float x) {
    const float t = Approximate::reciprocal(1.0f + 0.3f * fabsf(x));
    float sum = 0.036088843f;
    sum = sum * t - 0.15893374f;
    sum = sum * t + 0.20934641f;
    sum = sum * t - 0.056450125f;
    sum = sum * t + 0.13003263f;
    sum = sum * t + 0.09946506f;
    sum = sum * t + 0.12082632f;
    sum = sum * t + 0.11962454f;
    const float scaled = 0.84932180f * x;  // The square is that of x times log2(e) / 2.
    const float tail = sum * t * Approximate::power_of_two(-scaled * scaled);
    return x * (x < 0.0f ? tail : 1.0f - tail);
  }
};

// x / (1 + exp(-t)).
struct Logistic {
  static __device__ double times(double x, double t) { return x / (1.0 + exp(-t)); }
  // Within what a change of t in its last place makes; 0 where exp(-t) is 2^126 or more.
  static __device__ float times(float x, float t) {
    const float power = Approximate::power_of_two(-1.44269504f * t);
    return x * Approximate::reciprocal(1.0f + power);
  }
};

// The same as Gelu by Hendrycks and Gimpel's approximation, Phi(x) = (1 + tanh y) / 2 =
// 1 / (1 + exp(-2 y)), with 2 y = 2 sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluTanh {
  template <class T>
  static __device__ T apply(T x) {
    return Logistic::times(x, x * (T(1.5957691216057308) + T(0.07135481627260025) * (x * x)));
  }
};

struct Silu {
  template <class T>
  static __device__ T apply(T x) {
    return Logistic::times(x, x);
  }
};

// The parameters of an activation of the user's own, `struct Custom`, are the kernel's last ones, so
// that a new value needs no new kernel. Where there are any, both macros come with the compilation.
#ifndef CUSTOM_PARAMETERS
#define CUSTOM_PARAMETERS
#define CUSTOM
#endif

enum Bias { NO_BIAS, COLUMN_BIAS, ROW_BIAS };

// The address of a scale of the results is a parameter as well, the one before them.
#ifndef SCALE_RESULT_PARAMETER
#define SCALE_RESULT_PARAMETER
#define SCALE_RESULT , nullptr
#endif

// What an epilogue may do besides, and what it needs for that; matrices lie like C. With SCALE_IN_MEMORY,
// the scale has a second factor, which is read when the launch runs.
enum Extra { RESIDUAL = 1, AUXILIARY = 2, SCALE = 4, SCALE_IN_MEMORY = 8 };

template <class Out, class Sum>
struct Extras {
  const Out* residual;
  int ldr;
  Out* auxiliary;
  int ldx;
  Sum scale;
};

// The type of a bias: that of the results, for those of 8 bits float.
template <class Out, bool NARROW = sizeof(Out) == 1>
struct BiasOf {
  using Type = Out;
};
template <class Out>
struct BiasOf<Out, true> {
  using Type = float;
};

// Results of type Out, accumulated and finished as Sum: float or double. Of 8 bits, they are written only:
// beta is 0, and no other matrix of their type is read or kept.
template <Bias BIAS, class Activation_, int EXTRA = 0, class Out_ = float, class Sum_ = float>
struct Epilogue {
  using Activation = Activation_;
  using Out = Out_;
  using Sum = Sum_;
  using BiasElement = typename BiasOf<Out>::Type;
  static constexpr bool READS_BIAS = BIAS != NO_BIAS, BY_COLUMN = BIAS == COLUMN_BIAS;
  static constexpr bool READS_RESIDUAL = EXTRA & RESIDUAL, WRITES_AUXILIARY = EXTRA & AUXILIARY;
  Sum alpha, beta;
  const BiasElement* bias;
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
    struct InMemory {
      const Epilogue& epilogue;
      int row, col;
      __device__ __forceinline__ BiasElement bias() const {
        return epilogue.bias[BIAS == ROW_BIAS ? row : col];
      }
      __device__ __forceinline__ Out residual() const {
        return *element(epilogue.extras.residual, epilogue.extras.ldr, row, col);
      }
      __device__ __forceinline__ void keep(Out value) const {
        *element(epilogue.extras.auxiliary, epilogue.extras.ldx, row, col) = value;
      }
    };
    return finish(sum, old, InMemory{*this, row, col});
  }

  // The same with `operands`, which have the bias and the residual, and keep the auxiliary result.
  template <class Operands>
  __device__ __forceinline__ Sum finish(Sum sum, Sum old, const Operands& operands) const {
    Sum x = alpha * sum;
    if (beta != Sum(0)) x += beta * old;
    if (READS_BIAS) x += widened<Sum>(operands.bias());
    if (WRITES_AUXILIARY) operands.keep(Narrowed<Out>::of(x));
    x = activation.apply(x);
    if (EXTRA & SCALE) x *= extras.scale;
    if (READS_RESIDUAL) x += widened<Sum>(operands.residual());
    return x;
  }
};

// Whether results are multiplied by a scale in memory as well.
template <class Epilogue>
constexpr bool READS_SCALE = false;
template <Bias BIAS, class Activation, int EXTRA, class Out, class Sum>
constexpr bool READS_SCALE<Epilogue<BIAS, Activation, EXTRA, Out, Sum>> =
    (EXTRA & SCALE_IN_MEMORY) != 0;
