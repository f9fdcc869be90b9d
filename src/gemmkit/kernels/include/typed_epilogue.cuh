// The write-back of epilogue.cuh for results of type Out that are summed up as Sum: float or double.
// Everything in between is computed as Sum.
#pragma once

#include "epilogue.cuh"
#include "typed.cuh"

template <class Out, class Sum>
struct TypedExtras {
  const Out* residual;
  int ldr;
  Out* auxiliary;
  int ldx;
  Sum scale;
};

template <Bias BIAS, class Activation, int EXTRA, class Out, class Sum>
struct TypedEpilogue {
  Sum alpha, beta;
  const Out* bias;
  TypedExtras<Out, Sum> extras = {};
  Activation activation = {};

  // Finishes VEC neighbours of a row and stores them at `c`, whose address is a multiple of their
  // bytes or of 16. By the BLAS rules, beta = 0 never reads C.
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

 private:
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
