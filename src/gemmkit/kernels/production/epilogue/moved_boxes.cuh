// Boxes of results that a warp of the producer's moves for a consumer, by TMA: it brings what the
// epilogue reads, the residual or the old C, and stores what the consumer has written in its place, and
// the auxiliary output. The first boxes of a tile are on their way while it is multiplied, and no
// consumer waits for a store.
#pragma once

#include "epilogue/write_back.cuh"

// Matrices that a buffer has boxes of: C and, behind all of those, the auxiliary output.
template <bool FUSED, class Epilogue>
constexpr int MATRICES_OF_BOX = FUSED && Epilogue::WRITES_AUXILIARY ? 2 : 1;

// Tensor maps of an epilogue's further matrices; one that it has no use for is not read.
struct FurtherMaps {
  const TensorMap &residual, &auxiliary;
};
#define FURTHER_MAPS_PARAMETERS \
  const __grid_constant__ TensorMap map_residual, const __grid_constant__ TensorMap map_auxiliary
#define FURTHER_MAPS \
  FurtherMaps { map_residual, map_auxiliary }

struct NoMaps {};

// The buffers of a consumer pass from one side to the other and back: `ready` to be filled, with what
// has been read in them, and `filled`, to be stored.
template <int BUFFERS>
struct BoxBarriers {
  Barrier ready[BUFFERS], filled[BUFFERS];

  // By one thread, before `make_barriers_visible`.
  __device__ __forceinline__ void init() {
    for (int i = 0; i < BUFFERS; ++i) {
      ready[i].init(1);
      filled[i].init(4);
    }
  }
};

// The consumer's side, of which each thread has one.
template <int BUFFERS>
struct BoxesToFill {
  BoxBarriers<BUFFERS>& barriers;
  StageCounter<BUFFERS> next = {};

  // Waits for the next buffer, of this number.
  __device__ __forceinline__ int take() const {
    barriers.ready[next.stage].wait(next.parity);
    return next.stage;
  }
  // A warp has filled its part of it. It keeps none while it waits for the next, for which a buffer may have
  // to be stored first.
  __device__ __forceinline__ void pass_on() {
    fence_for_tma();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barriers.filled[next.stage].arrive();
    next.advance();
  }
};

// Goes through a consumer's boxes in the order in which it fills them: those of its tiles, which are
// TURNS apart, of which `corner` says where one begins, for each 64 rows in turn.
template <class Store, int ROW_TILES, int TURNS, class Schedule, class Corner>
class BoxWalk {
 public:
  static constexpr int BOXES = ROW_TILES * Store::BOXES;

  __device__ __forceinline__ BoxWalk(const Schedule& schedule_, const Corner& corner_)
      : schedule(schedule_), corner(corner_) {
    find();
  }

  __device__ __forceinline__ bool left() const { return schedule.left(); }
  __device__ __forceinline__ bool ends_tile() const { return box == BOXES - 1; }
  __device__ __forceinline__ void advance() {
    if (++box < BOXES) return;
    box = 0;
    schedule.advance(TURNS);
    find();
  }
  __device__ __forceinline__ BoxPlace place() const {
    const int row = first.row + box / Store::BOXES * 64;
    BoxPlace found = Store::place_of(box % Store::BOXES, row, first.col);
    found.product = product;
    return found;
  }

 private:
  Schedule schedule;
  const Corner& corner;
  int box = 0, product = 0;
  Place first = {};

  __device__ __forceinline__ void find() {
    const auto tile = schedule.tile();
    product = tile.product;
    first = corner(tile);
  }
};

// The other side: one thread, which moves the boxes of one consumer. `map_read` is that of C or of a
// `residual`, which all products may share, and not read from unless `reads`.
template <class Store, int BUFFERS, bool BATCHED, bool KEEPS>
struct BoxMover {
  static constexpr int MATRIX_BYTES = Store::BESIDE * Store::BOX_BYTES;
  // Stores that may be reading their buffers while boxes come to the others. One of these, at least, the
  // consumer has or will be given.
  static constexpr int PENDING = (BUFFERS - 1) / 2;
  static_assert(PENDING < BUFFERS, "or each side would wait for the other");

  typename Store::Buffers& buffers;
  BoxBarriers<BUFFERS>& barriers;
  const TensorMap &map_c, &map_read, &map_kept;
  bool reads, shared;
  int M, N;

  template <class Walk>
  __device__ __forceinline__ void move(const Walk& start) const {
    Walk own = start, ahead = start;
    StageCounter<BUFFERS> next;
    int free = 0, pending = 0;
    const auto bring = [&](int count) {
      for (; count > 0 && ahead.left(); --count, ahead.advance()) {
        bring_box(ahead.place(), free);
        free = free + 1 == BUFFERS ? 0 : free + 1;
      }
    };
    bring(BUFFERS);
    for (; own.left(); own.advance(), next.advance()) {
      barriers.filled[next.stage].wait(next.parity);
      store_boxes(own.place(), next.stage);
      if (own.ends_tile()) {
        // The next tile's boxes have time.
        tma_wait_read<0>();
        bring(pending + 1);
        pending = 0;
      } else if (pending == PENDING) {
        tma_wait_read<PENDING>();
        bring(1);
      } else {
        ++pending;
      }
    }
  }

 private:
  __device__ __forceinline__ void bring_box(BoxPlace from, int buffer) const {
    Barrier& ready = barriers.ready[buffer];
    if (!reads) return ready.arrive();
    ready.arrive_expecting(MATRIX_BYTES);
    if (shared) from.product = 0;
    const unsigned to = shared_address(buffers.bytes[buffer]);
#pragma unroll
    for (int i = 0; i < Store::BESIDE; ++i) {
      const BoxPlace beside = {from.inner + i * Store::SPAN, from.outer, from.product};
      tma_load<BATCHED, false>(to + i * Store::BOX_BYTES, map_read, beside, ready, 0);
    }
  }

  // Those of which the first element is not outside of C.
  __device__ __forceinline__ void store_boxes(const BoxPlace& to, int buffer) const {
    const unsigned from = shared_address(buffers.bytes[buffer]);
#pragma unroll
    for (int i = 0; i < Store::BESIDE; ++i) {
      const BoxPlace beside = {to.inner + i * Store::SPAN, to.outer, to.product};
      if (beside.inner >= N || beside.outer >= M) continue;
      tma_store<BATCHED>(map_c, beside, from + i * Store::BOX_BYTES);
      if constexpr (KEEPS) {
        const unsigned kept = from + BUFFERS * MATRIX_BYTES + i * Store::BOX_BYTES;
        tma_store<BATCHED>(map_kept, beside, kept);
      }
    }
    tma_commit();
  }
};
