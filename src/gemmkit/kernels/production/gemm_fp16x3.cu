// fp32 on Hopper's tensor cores, as exact as by FFMA: each operand is the sum of two parts of fp16, and
// three of the four products of these count.
//
// `split_operands` has scaled the lines of both operands before, and left their parts in the
// workspace. A tile with lines that are not finite is multiplied without tensor cores.
#include "epilogue/line_scales.cuh"
#include "mainloop/fp16x3.cuh"
#include "wgmma_product.cuh"

struct InParts {
  template <WgmmaTile TILE, Layout, bool BATCHED>
  using Mainloop = Fp16x3Mainloop<TILE, BATCHED>;
};

template <WgmmaTile TILE, Layout LAYOUT, WriteBack WAY, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, 1)
    gemm_fp16x3(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                const __grid_constant__ TensorMap map_c, GEMM_PARAMETERS(float, Epilogue)) {
  const Arguments<float, Epilogue> args{GEMM_ARGUMENTS};
  // The workspace begins with the exponents of all lines of A, then of B.
  const int* exponents = reinterpret_cast<const int*>(workspace);
  const long long products_a = SCHEDULE.batched && stride_a != 0 ? batch : 1;
  multiply_tiles<InParts, TILE, LAYOUT, WAY, SCHEDULE>(
      map_a, map_b, map_c, args, LineScales{exponents, exponents + products_a * M});
}
