// What a production kernel is passed: one struct, by value. `production/arguments.py` reads the order
// and the types of its fields here, each on a line of its own, so that they are written once.
#pragma once

#include "epilogue.cuh"

struct Group;

// In: the type of A and B. Out, that of C, the accumulator's type and the activation are the
// epilogue's. Matrices of a batch are `stride` elements apart. A kernel that has no use for a field
// is passed zero.
template <class In, class Epilogue>
struct Arguments {
  using Out = typename Epilogue::Out;
  using Sum = typename Epilogue::Sum;

  const In* A;
  const In* B;
  Out* C;
  const Out* bias;
  const Out* residual;
  Out* auxiliary;
  float* workspace;     // partial sums of tiles whose k is split
  int* semaphores;      // a counter per such tile, zero before and after the launch
  const Group* groups;  // of a grouped product
  long long stride_a;
  long long stride_b;
  long long stride_c;
  long long stride_r;
  long long stride_x;
  Sum alpha;
  Sum beta;
  Sum scale;
  int M;
  int N;
  int K;
  int batch;
  int lda;
  int ldb;
  int ldc;
  int ldr;
  int ldx;
  int group_count;
  int tile_count;
  [[no_unique_address]] typename Epilogue::Activation activation;  // a user's own has parameters

  // BLAS: alpha = 0 never reads A or B.
  __device__ __forceinline__ int depth() const { return alpha == Sum(0) ? 0 : K; }

  // What belongs to one product of a batch.
  __device__ __forceinline__ const In* a(int product) const { return A + product * stride_a; }
  __device__ __forceinline__ const In* b(int product) const { return B + product * stride_b; }
  __device__ __forceinline__ Out* c(int product) const { return C + product * stride_c; }
  __device__ __forceinline__ Epilogue epilogue(int product) const {
    return {alpha,
            beta,
            bias,
            {residual + product * stride_r, ldr, auxiliary + product * stride_x, ldx, scale},
            activation};
  }
};
