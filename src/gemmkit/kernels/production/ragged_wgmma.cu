// Ragged products of 16 bits on Hopper's tensor cores: the rows of one A are divided among groups, each of
// which has a B of its own, as the tokens of a mixture of experts are.
//
//   ends   | 3 | 3 |      11      |  13  |      group g: rows from ends[g - 1] up to ends[g]
//   A, C   |0 1 2|3 4 5 6 7 8 9 10|11 12|       times  B[0]  B[1]  B[2]  B[3]
//
// Loads and products are those of `gemm_wgmma`, to the same bits.
#include "ragged_product.cuh"

template <class In, WgmmaTile TILE, Layout LAYOUT, WriteBack WAY, Schedule SCHEDULE, class Offset,
          class Epilogue>
__global__ void __launch_bounds__(TILE.threads, 1)
    ragged_wgmma(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                 const __grid_constant__ TensorMap map_c, RAGGED_PARAMETERS(Offset, Epilogue)) {
  multiply_ragged<InPlace<In>, TILE, LAYOUT, WAY, SCHEDULE>(
      map_a, map_b, map_c, RaggedArguments<Offset, Epilogue>{RAGGED_ARGUMENTS});
}
