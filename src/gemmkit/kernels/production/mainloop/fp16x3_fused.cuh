// The mainloop of fp32 products on tensor cores that splits its operands itself: TMA brings tiles as
// they are, and consumers turn each into two parts of fp16, x 2^s = high + low, in its own place, while
// tensor cores multiply the tile before it.
//
// As each chunk of k is promoted to fp32 registers, a line has a scale for every chunk, which is undone
// there: no launch before this one looks for the largest element of a whole line.
#pragma once

#include "epilogue/box_store.cuh"
#include "mainloop/wgmma.cuh"
#include "split_lines.cuh"

// The tile whose operands are in parts: TILE.BK counts elements of fp32.
__host__ __device__ constexpr WgmmaTile in_parts(WgmmaTile tile) {
  tile.BK *= 2;
  return tile;
}

// What undoes the scale of a line's chunk, as one word: the bits of 2^-s where products of two such
// factors are normal numbers; else FAR and -s.
struct Undoing {
  static constexpr unsigned FAR = 0x7F800000;
  static constexpr int NEAR = 62, OFFSET = 512;

  static __device__ __forceinline__ unsigned of(const LineScale& scale) {
    // A line with an infinity has no finite sums, whatever its scale is.
    const int exponent = scale.exponent == SPECIAL ? 0 : -scale.exponent;
    return abs(exponent) <= NEAR ? __float_as_uint(power_of_two(exponent))
                                 : FAR + OFFSET + exponent;
  }
  static __device__ __forceinline__ int exponent_of(unsigned word) {
    return word < FAR ? static_cast<int>(word >> 23) - 127 : static_cast<int>(word - FAR) - OFFSET;
  }
};

// sum + x 2^exponent, rounded once: x is 0 or, between 2^-48 and 2^48, a sum of products of fp16.
__device__ __forceinline__ float plus_scaled(float sum, float x, int exponent) {
  // The first product is exact, or what it loses is less than half of the least number.
  const int second = max(-126, min(exponent, 127)), first = max(-74, exponent - second);
  return fmaf(x * power_of_two(first), power_of_two(second), sum);
}

// Both numbers of a pair of fp16.
__device__ __forceinline__ void unpack(unsigned word, float& first, float& second) {
  asm("{\n"
      ".reg .b16 low, high;\n"
      "mov.b32 {low, high}, %2;\n"
      "cvt.f32.f16 %0, low;\n"
      "cvt.f32.f16 %1, high;\n"
      "}"
      : "=f"(first), "=f"(second)
      : "r"(word));
}

template <WgmmaTile TILE, Layout LAYOUT, bool BATCHED>
struct FusedFp16x3Mainloop : WgmmaMainloop<Half, in_parts(TILE), A_BT, BATCHED> {
  using Base = WgmmaMainloop<Half, in_parts(TILE), A_BT, BATCHED>;
  using typename Base::A;
  using typename Base::B;
  using typename Base::Counter;
  using typename Base::Product;
  using typename Base::Sums;
  static constexpr int BM = TILE.BM, BN = TILE.BN, DEPTH_OF_STEP = TILE.BK;
  static constexpr bool A_K_MAJOR = !TRANSPOSED_A<LAYOUT>, B_K_MAJOR = TRANSPOSED_B<LAYOUT>;
  static constexpr int ROW_TILES = Base::ROW_TILES, COUNT = BN / 2, WARPS = Base::WARPS;
  // A line of 128 bytes has 32 elements along k: of fp32, then their `high` and their `low` parts. A
  // warp splits 32 lines at a time. Stages have boxes of as much of k, one after the other.
  static constexpr int SPAN = 32, LINE_BYTES = 128, BOXES = DEPTH_OF_STEP / SPAN;
  static constexpr int CHUNKS = 8, CHUNK_BYTES = 16;
  static_assert(BM % SPAN == 0 && BN % SPAN == 0, "a warp splits 32 lines");
  static_assert(TILE.pingpong == 1, "all consumers split the operands of the same tile");

  // What undoes the scales of a stage's lines, of A and then of B, is read until the next stage has been
  // split: two of an even number of stages take turns.
  static constexpr int SLOTS = Base::STAGES % 2 == 0 ? 2 : Base::STAGES;
  struct Barriers : Base::Barriers {
    unsigned undoing[SLOTS][BM + BN];
  };

  // As that of `WgmmaMainloop`.
  __device__ __forceinline__ void produce(const TensorMap& map_a, const TensorMap& map_b,
                                          int product_a, int product_b, int row, int col,
                                          Steps steps, Counter& counter) const {
    for (int step = 0; step < steps.count; ++step, counter.advance()) {
      const int stage = counter.stage, k = (steps.first + step) * DEPTH_OF_STEP;
      this->barriers.empty[stage].wait(counter.parity ^ 1);
      Barrier& full = this->barriers.full[stage];
      full.arrive_expecting(A::BYTES + B::BYTES);
#pragma unroll
      for (int box = 0; box < BOXES; ++box) {
        Base::template load<SwizzledTile<float, BM, SPAN, A_K_MAJOR>, BM, A_K_MAJOR, Base::ALONG_N>(
            this->memory.a[stage] + box * A::BOX_BYTES, map_a, product_a, row, k + box * SPAN, full,
            this->along_n, this->row_mask());
        Base::template load<SwizzledTile<float, BN, SPAN, B_K_MAJOR>, BN, B_K_MAJOR, Base::ALONG_M>(
            this->memory.b[stage] + box * B::BOX_BYTES, map_b, product_b, col, k + box * SPAN, full,
            this->along_m, this->column_mask());
      }
    }
  }

  // As that of `WgmmaMainloop`.
  template <class Call>
  __device__ __forceinline__ void consume(Sums& sums, int first, int steps, Counter& counter,
                                          const Call& loaded) const {
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
      for (int j = 0; j < COUNT; ++j) sums[i][j] = 0.0f;
    }
    Sums chunk;
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) leave_undefined(chunk[i]);
    if (steps > 0) {
      split_stage(counter);
      all_have_split();
    }
#pragma unroll 1
    for (int step = 1; step <= steps; ++step) {
      const int stage = counter.stage;
      const unsigned a = shared_address(this->memory.a[stage]);
      const unsigned b = shared_address(this->memory.b[stage]);
      wgmma_fence();
      // The small products first: after large ones they would lose as many bits as these.
      multiply<true>(chunk, a, b, first);
      multiply<false>(chunk, a, b, first);
      wgmma_commit();
      counter.advance();
      if (step < steps) {
        split_stage(counter);
      } else {
        loaded();
      }
#pragma unroll
      for (int i = 0; i < ROW_TILES; ++i) wgmma_wait<0>(chunk[i]);
      promote(sums, chunk, first, undoing(stage));
      this->release(stage);
      if (step < steps) all_have_split();
    }
    if (steps == 0) loaded();
  }

 private:
  __device__ __forceinline__ unsigned* undoing(int stage) const {
    return static_cast<Barriers&>(this->barriers).undoing[stage % SLOTS];
  }

  // What the threads of all consumers have written is there for the tensor cores of each.
  static __device__ __forceinline__ void all_have_split() {
    named_barrier_sync<WARPS * 32>(1 + TILE.consumers);
  }

  // By all consumers: splits the tiles of a stage when they have come.
  __device__ __forceinline__ void split_stage(const Counter& counter) const {
    constexpr int OF_A = BM / SPAN, ALL = OF_A + BN / SPAN;
    const int stage = counter.stage;
    unsigned char* const a = this->memory.a[stage];
    unsigned char* const b = this->memory.b[stage];
    unsigned* const words = undoing(stage);
    this->barriers.full[stage].wait(counter.parity);
#pragma unroll 1
    for (int group = threadIdx.x / 32; group < ALL; group += WARPS) {
      const bool of_a = group < OF_A;
      unsigned char* const lines =
          of_a ? a + group * SPAN * LINE_BYTES : b + (group - OF_A) * SPAN * LINE_BYTES;
      const int box_bytes = of_a ? A::BOX_BYTES : B::BOX_BYTES;
      if constexpr (A_K_MAJOR == B_K_MAJOR) {
        split_lines<A_K_MAJOR>(lines, box_bytes, words + group * SPAN);
      } else if (of_a) {
        split_lines<A_K_MAJOR>(lines, box_bytes, words + group * SPAN);
      } else {
        split_lines<B_K_MAJOR>(lines, box_bytes, words + group * SPAN);
      }
    }
    fence_for_tma();
  }

  // By a warp: 32 lines, of each of which a lane has the whole chunk. Those that lie across k, as lines
  // of 32 neighbors for each k, change places with their parts: these lie along k.
  template <bool K_MAJOR>
  static __device__ __forceinline__ void split_lines(unsigned char* lines, int box_bytes,
                                                     unsigned* undoing) {
    const int lane = threadIdx.x % 32;
    unsigned char* const line = lines + lane * LINE_BYTES;
    float x[BOXES][SPAN];
#pragma unroll
    for (int box = 0; box < BOXES; ++box) {
      if constexpr (K_MAJOR) {
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
          const float4 found = *reinterpret_cast<const float4*>(line + box * box_bytes +
                                                                (chunk ^ lane % 8) * CHUNK_BYTES);
          x[box][4 * chunk] = found.x, x[box][4 * chunk + 1] = found.y;
          x[box][4 * chunk + 2] = found.z, x[box][4 * chunk + 3] = found.w;
        }
      } else {
#pragma unroll
        for (int k = 0; k < SPAN; ++k) {
          x[box][k] = *reinterpret_cast<const float*>(lines + box * box_bytes + k * LINE_BYTES +
                                                      (lane / 4 ^ k % 8) * CHUNK_BYTES +
                                                      lane % 4 * sizeof(float));
        }
      }
    }
    float largest[4] = {};
#pragma unroll
    for (int box = 0; box < BOXES; ++box) {
#pragma unroll
      for (int k = 0; k < SPAN; ++k) largest[k % 4] = fmaxf(largest[k % 4], fabsf(x[box][k]));
    }
    const LineScale scale{
        __float_as_uint(fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3])))};
    undoing[lane] = Undoing::of(scale);
    float factor = scale.first;
    if (__any_sync(~0u, scale.second != 1.0f)) {
#pragma unroll
      for (int box = 0; box < BOXES; ++box) {
#pragma unroll
        for (int k = 0; k < SPAN; ++k) x[box][k] *= factor;
      }
      factor = scale.second;
    }
    if constexpr (!K_MAJOR) __syncwarp();  // all lanes have read what others overwrite
#pragma unroll
    for (int box = 0; box < BOXES; ++box) {
#pragma unroll
      for (int part = 0; part < CHUNKS / 2; ++part) {
        unsigned high[4], low[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float first = x[box][part * 8 + 2 * i] * factor;
          const float second = x[box][part * 8 + 2 * i + 1] * factor;
          high[i] = pair<Half>(first, second);
          float first_high, second_high;
          unpack(high[i], first_high, second_high);
          low[i] = pair<Half>(first - first_high, second - second_high);
        }
        unsigned char* const place = line + box * box_bytes;
        *reinterpret_cast<uint4*>(place + (part ^ lane % 8) * CHUNK_BYTES) = {high[0], high[1],
                                                                              high[2], high[3]};
        *reinterpret_cast<uint4*>(place + ((part + CHUNKS / 2) ^ lane % 8) * CHUNK_BYTES) = {
            low[0], low[1], low[2], low[3]};
      }
    }
  }

  // The products of a stage: those with a `low` part, or those without, which are added to these.
  template <bool SMALL>
  static __device__ __forceinline__ void multiply(Sums& sums, unsigned a, unsigned b, int first) {
    constexpr int LINE = 2 * SPAN, LOW = SPAN;
#pragma unroll
    for (int line = 0; line < BOXES * LINE; line += LINE) {
#pragma unroll
      for (int k = line; k < line + LOW; k += Base::DEPTH) {
#pragma unroll
        for (int i = 0; i < ROW_TILES; ++i) {
          const int row = first + i * WGMMA_ROWS;
          const auto product = [&](int of_a, int of_b, bool keep) {
            Product::multiply(sums[i], A::descriptor(a, row, k + of_a),
                              B::descriptor(b, 0, k + of_b), keep);
          };
          if constexpr (SMALL) {
            product(LOW, 0, k > 0);
            product(0, LOW, true);
          } else {
            product(0, 0, true);
          }
        }
      }
    }
  }

  // Adds the sums of a chunk, whose lines had these scales.
  static __device__ __forceinline__ void promote(Sums& sums, const Sums& chunk, int first,
                                                 const unsigned* undoing) {
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    unsigned of_rows[ROW_TILES][2], of_cols[COUNT / 2], most = 0;
#pragma unroll
    for (int i = 0; i < COUNT / 2; i += 2) {
      const uint2 found = *reinterpret_cast<const uint2*>(undoing + BM + i / 2 * 8 + lane % 4 * 2);
      of_cols[i] = found.x, of_cols[i + 1] = found.y;
      most = max(most, max(found.x, found.y));
    }
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        of_rows[i][half] = undoing[first + i * WGMMA_ROWS + warp * 16 + half * 8 + lane / 4];
        most = max(most, of_rows[i][half]);
      }
    }
    const auto add = [&](const auto& promoted) {
#pragma unroll
      for (int i = 0; i < ROW_TILES; ++i) {
#pragma unroll
        for (int j = 0; j < COUNT; ++j) {
          sums[i][j] =
              promoted(sums[i][j], chunk[i][j], of_rows[i][j % 4 / 2], of_cols[j / 4 * 2 + j % 2]);
        }
      }
    };
    if (__all_sync(~0u, most < Undoing::FAR)) {
      add([](float sum, float x, unsigned of_row, unsigned of_col) {
        return fmaf(x, __uint_as_float(of_row) * __uint_as_float(of_col), sum);
      });
    } else {
      add([](float sum, float x, unsigned of_row, unsigned of_col) {
        return plus_scaled(sum, x, Undoing::exponent_of(of_row) + Undoing::exponent_of(of_col));
      });
    }
  }
};
