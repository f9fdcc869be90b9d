// What a production kernel is passed; `production/arguments.py` names the parameters in this order.
#pragma once

#include "epilogue/float4_store.cuh"

// The parameters of a kernel, in the order of BLAS, from which it makes a struct for the functions that
// it calls. They are not one struct by value: NVVM treats what it loads from such a struct as
// divergent, different from thread to thread, and leaves branches on it, such as that on beta, inside
// of loops. Together with ptxas that makes other machine code of the mainloop, with more bank
// conflicts of registers.
#define GEMM_PARAMETERS(In, Epilogue)                                                            \
  int M, int N, int K, typename Epilogue::Sum alpha, const In *A, int lda, const In *B, int ldb, \
      typename Epilogue::Sum beta, typename Epilogue::Out *C, int ldc,                           \
      const typename Epilogue::BiasElement *bias, float *workspace, int *semaphores, int batch,  \
      long long stride_a, long long stride_b, long long stride_c,                                \
      const typename Epilogue::Out *residual, int ldr, long long stride_r,                       \
      typename Epilogue::Out *auxiliary, int ldx, long long stride_x,                            \
      typename Epilogue::Sum scale SCALE_RESULT_PARAMETER CUSTOM_PARAMETERS
#define GEMM_ARGUMENTS                                                                        \
  M, N, K, alpha, A, lda, B, ldb, beta, C, ldc, bias, workspace, semaphores, batch, stride_a, \
      stride_b, stride_c, residual, ldr, stride_r, auxiliary, ldx, stride_x,                  \
      scale SCALE_RESULT CUSTOM

// In: the type of A and B. Out, that of C, the accumulator's type and the activation are the
// epilogue's. Matrices of a batch are `stride` elements apart. A kernel that has no use for a field
// is passed zero.
template <class In, class Epilogue>
struct Arguments {
  using Out = typename Epilogue::Out;
  using Sum = typename Epilogue::Sum;

  int M, N, K;
  Sum alpha;
  const In* A;
  int lda;
  const In* B;
  int ldb;
  Sum beta;
  Out* C;
  int ldc;
  const typename Epilogue::BiasElement* bias;
  float* workspace;  // partial sums of tiles whose k is split
  int* semaphores;   // a counter per such tile, zero before and after the launch
  int batch;
  long long stride_a, stride_b, stride_c;
  const Out* residual;
  int ldr;
  long long stride_r;
  Out* auxiliary;
  int ldx;
  long long stride_x;
  Sum scale;
  const float* scale_result;  // what results are multiplied by besides, if the epilogue reads that
  typename Epilogue::Activation activation = {};  // a user's own has parameters

  // BLAS: alpha = 0 never reads A or B.
  __device__ __forceinline__ int depth() const { return alpha == Sum(0) ? 0 : K; }

  // What belongs to one product of a batch.
  __device__ __forceinline__ const In* a(int product) const { return A + product * stride_a; }
  __device__ __forceinline__ const In* b(int product) const { return B + product * stride_b; }
  __device__ __forceinline__ Out* c(int product) const { return C + product * stride_c; }
  // The kernel before has to be waited for: it may have written the scale.
  __device__ __forceinline__ Epilogue epilogue(int product) const {
    Sum factor = scale;
    if constexpr (READS_SCALE<Epilogue>) factor *= *scale_result;
    return {alpha,
            sizeof(Out) > 1 ? beta : Sum(0),
            bias,
            {residual + product * stride_r, ldr, auxiliary + product * stride_x, ldx, factor},
            activation};
  }
  __device__ __forceinline__ Float4Store<Epilogue> float4_epilogue(int product) const {
    return {epilogue(product)};
  }
};
