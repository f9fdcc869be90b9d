// A product of groups whose operands come in two parts of fp16, and where these are.
#pragma once

#include "scheduler/grouped.cuh"

// The neighbors along k whose parts lie together: 128 bytes, a line of the parts of all products. Those of
// a matrix are in panels: a line for each row of A (column of B), then the same of the next 32 of k.
constexpr int DEPTH_OF_PANEL = 32, LINE_OF_PARTS = 2 * DEPTH_OF_PANEL;

// Laid out as SPLIT_GROUP in group_splitting.py has it.
template <class Out = float>
struct SplitGroup : Group<float, Out> {
  int parts_a, parts_b;          // the first of its lines of parts
  int exponents_a, exponents_b;  // the first of its exponents
  int items_a, items_b;          // the first of its work items in the launch that splits
  int none[2];
};
static_assert(sizeof(SplitGroup<>) == 128);
