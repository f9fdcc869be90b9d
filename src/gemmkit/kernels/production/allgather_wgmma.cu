// Products of 16 bits on Hopper's tensor cores whose A is gathered from several GPUs under the product:
// tiles of this GPU's own rows come first, and the others wait for the share that they read.
//
//   rank 1 of 4    | share 0 | own rows | share 2 | share 3 |      rows of A, and of C
//   multiplied as       4th       1st        2nd       3rd         one launch
//
// Copy engines bring the shares, and set a flag for each; the warp that loads asks for it. Loads and
// products are those of `gemm_wgmma`, to the same bits.
#include "wgmma_product.cuh"

#define ARRIVAL_PARAMETERS                                                                      \
  const __grid_constant__ TensorMap map_own, const int *arrived, int first_row, int share_rows, \
      int ranks
#define ARRIVALS \
  ArrivingRows { map_own, arrived, first_row, share_rows, ranks }

// Rows that come in shares are those of the wgmma: no tile is computed as its transpose.
template <class In, WgmmaTile TILE, Layout LAYOUT, WriteBack WAY, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, 1)
    allgather_wgmma(const __grid_constant__ TensorMap map_a,
                    const __grid_constant__ TensorMap map_b,
                    const __grid_constant__ TensorMap map_c, ARRIVAL_PARAMETERS,
                    GEMM_PARAMETERS(In, Epilogue)) {
  multiply_tiles<InPlace<In>, TILE, LAYOUT, WAY, SCHEDULE, false>(
      map_a, map_b, map_c, Arguments<In, Epilogue>{GEMM_ARGUMENTS}, Unscaled{}, NoMaps{}, ARRIVALS);
}

// The same where TMA moves what the epilogue reads and keeps besides, too.
template <class In, WgmmaTile TILE, Layout LAYOUT, WriteBack WAY, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads, 1)
    allgather_wgmma_fused(const __grid_constant__ TensorMap map_a,
                          const __grid_constant__ TensorMap map_b,
                          const __grid_constant__ TensorMap map_c, FURTHER_MAPS_PARAMETERS,
                          ARRIVAL_PARAMETERS, GEMM_PARAMETERS(In, Epilogue)) {
  multiply_tiles<InPlace<In>, TILE, LAYOUT, WAY, SCHEDULE, false>(
      map_a, map_b, map_c, Arguments<In, Epilogue>{GEMM_ARGUMENTS}, Unscaled{}, FURTHER_MAPS,
      ARRIVALS);
}
