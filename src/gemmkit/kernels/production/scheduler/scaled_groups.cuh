// Groups whose operands have scales, each product its own.
#pragma once

#include "mainloop/operand_scales.cuh"
#include "scheduler/mapped_groups.cuh"

// A product and its scales, laid out as SCALED_GROUP in group_table.py has it: see `ScaleArray`.
template <class In, class Out>
struct alignas(16) ScaledGroup : Group<In, Out> {
  const float *scale_a, *scale_b;
  int scale_a_ld, scale_a_step, scale_b_ld, scale_b_step;
};
static_assert(sizeof(ScaledGroup<float, float>) == 128);

// The same with its maps, which lie where those of a `MappedGroup` do.
template <class In, class Out>
struct alignas(64) ScaledMappedGroup : ScaledGroup<In, Out> {
  TensorMap map_a, map_b, map_c;
};
static_assert(sizeof(ScaledMappedGroup<float, float>) == 512);

// The scales of a product.
template <Scales SCALES>
struct ScalesOfGroup {
  template <class Its>
  __device__ __forceinline__ OperandScales<SCALES> operator()(const Its& its) const {
    return {{its.scale_a, its.scale_a_ld, its.scale_a_step, 0},
            {its.scale_b, its.scale_b_ld, its.scale_b_step, 0}};
  }
};
