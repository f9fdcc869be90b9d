// What `grouped_typed` and `grouped_mma` are but for their mainloops, of which none has copies in flight
// from one tile to the next.
#pragma once

#include "epilogue.cuh"
#include "scheduler/grouped.cuh"

// A kernel's parameters, as TABLE_ARGUMENTS in plan.py and the epilogue have them. `Its` describes a
// product of operands In.
#define GROUPED_PARAMETERS(Its, In, Epilogue)                                  \
  const Its<In, typename Epilogue::Out>*list, int group_count, int tile_count, \
      typename Epilogue::Sum alpha, typename Epilogue::Sum beta,               \
      typename Epilogue::Sum scale CUSTOM_PARAMETERS

// What is the same for all products.
template <class Epilogue>
struct SharedArguments {
  typename Epilogue::Sum alpha, beta, scale;
  typename Epilogue::Activation activation = {};
};

// Block b has the tiles b, b + gridDim.x, b + 2 gridDim.x ... of all products, BM x BN each. `scales_of`
// gives the `OperandScales` of a product, where operands have any.
template <class Sums, int BM, int BN, class Mainloop, class Groups, class Epilogue,
          class... ScalesOf>
__device__ __forceinline__ void multiply_groups(const Mainloop& mainloop, const Groups& groups,
                                                const SharedArguments<Epilogue>& shared,
                                                const ScalesOf&... scales_of) {
  using Sum = typename Epilogue::Sum;
  for (int tile = blockIdx.x; tile < groups.tiles;) {
    const GroupTile place = groups.place(tile);
    const auto& group = groups.list[place.group];
    const int row = place.row * BM, col = place.col * BN;
    const int K = shared.alpha == Sum(0) ? 0 : group.K;  // BLAS: alpha = 0 never reads A or B
    Sums sums = {};
    const auto multiply = [&](const auto&... scales) {
      mainloop.multiply(sums, element_of<Mainloop::A_T>(group.A, group.lda, row, 0), group.lda,
                        group.M - row, element_of<Mainloop::B_T>(group.B, group.ldb, 0, col),
                        group.ldb, group.N - col, K, scales...);
    };
    if constexpr (sizeof...(ScalesOf) > 0) {
      multiply(scales_of(group)..., 0, row, col);
    } else {
      multiply();
    }
    const Epilogue epilogue{shared.alpha,
                            shared.beta,
                            group.bias,
                            {group.residual, group.ldr, group.auxiliary, group.ldx, shared.scale},
                            shared.activation};
    mainloop.store(sums, epilogue, group.C, group.ldc, group.M, group.N, row, col);
    if (groups.tiles - tile <= static_cast<int>(gridDim.x)) return;
    tile += gridDim.x;
    __syncthreads();  // nobody reads the stages any more
  }
}
