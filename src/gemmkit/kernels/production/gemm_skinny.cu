// skinny products, reduced by warp shuffles.
//
// With 16 rows or fewer (or columns: TALL) the other matrix is read once, and its bytes set the
// time. It streams in 4 x 4 pieces, STAGES steps ahead of a thread's arithmetic. Lanes, warps and
// blocks share k, so that all have work, and in the end add up their sums in a fixed order.
//
//   a warp's piece of B:  lanes 0-7 read 128 bytes of 4 rows, lanes 8-15 of the next 4 ...
//   the sums of lanes meet by shuffles, of warps in shared memory, of blocks in global memory
//
// Either matrix may be K-major (contiguous along k): A where it is not transposed, B where it is.
//
// Loads per result, M = 8: K/8 of B and K/32 of A from global memory, by way of shared memory.
#include "arguments.cuh"
#include "cp_async.cuh"
#include "epilogue/fix_up.cuh"
#include "mainloop/skinny.cuh"
#include "scheduler/batch.cuh"
#include "tile.cuh"

// `ACCESS.a` is that of the streamed matrix, `ACCESS.b` that of the small one.
template <SkinnyTile TILE, Access ACCESS, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(TILE.threads) gemm_skinny(GEMM_PARAMETERS(float, Epilogue)) {
  const Arguments<float, Epilogue> args{GEMM_ARGUMENTS};
  constexpr int SMALL = TILE.side, BN = TILE.BN, BK = TILE.BK, WN = TILE.WN, STAGES = TILE.stages;
  constexpr int VEC = ACCESS.a, SMALL_VEC = ACCESS.b, THREADS = TILE.threads;
  constexpr bool TALL = TILE.tall, STAGED = TILE.staged, BATCHED = SCHEDULE.batched;
  constexpr bool K_MAJOR = TILE.k_major, SMALL_K_MAJOR = TILE.small_k_major;
  // The block takes BN results along the long side and BK steps of k at a time. Of the streamed
  // matrix each thread has a 4 x 4 piece, or two; x runs along its rows in memory, y across them.
  // Pieces on their way are in registers, or in a ring in shared memory. Lines of the small matrix
  // are STAGED in shared memory too, or come through L1.
  constexpr bool RING = TILE.ring, WAITS = RING || STAGED;
  constexpr bool PER_WARP =
      SMALL_K_MAJOR && !K_MAJOR;  // each warp has its own lines, for its own k
  constexpr int PIECES = RING && !K_MAJOR ? 2 : 1;
  constexpr int LANES_X = WN / 4, LANES_Y = 32 / LANES_X, WARPS_X = (K_MAJOR ? BK : BN) / WN;
  constexpr int WARPS_K = K_MAJOR ? WARPS_X : THREADS / 32 / WARPS_X, RESULTS = SMALL * BN;
  constexpr int WARP_Y = 4 * PIECES * LANES_Y, LINES = RING ? BN * BK : 0;
  using Lines = StagedLines<PER_WARP, SMALL_K_MAJOR, THREADS, SMALL, PER_WARP ? WARP_Y : BK,
                            SMALL_VEC, TILE.pad>;
  constexpr int STAGE = LINES + (STAGED ? Lines::SIZE : 0);
  // Were it not aligned, a warp's copies would be taken apart, and L2 asked twice for the same.
  extern __shared__ __align__(128) float ring[];

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_y = warp / WARPS_X * WARP_Y, y = warp_y + lane / LANES_X * 4;
  const int x = warp % WARPS_X * WN + lane % LANES_X * VEC;
  // From a thread's first place to the others: whole warps read neighbors, single floats too.
  const auto right = [](int j) { return j / VEC * LANES_X * VEC + j % VEC; };
  const auto below = [](int i) { return i / 4 * LANES_Y * 4 + i % 4; };
  K = args.depth();
  const int ld_large = TALL ? args.lda : args.ldb, ld_small = TALL ? args.ldb : args.lda;
  const int long_side = TALL ? M : N, lines_there = TALL ? N : M;
  const int tiles = (long_side + BN - 1) / BN;
  const BatchPlace<BATCHED> at(gridDim.y, tiles, args.batch);
  if (BATCHED && at.product >= args.batch) return;  // surplus in the grid
  const float* const large = TALL ? args.a(at.product) : args.b(at.product);
  const float* const small = TALL ? args.b(at.product) : args.a(at.product);
  const int block_result = at.tile_col * BN, parts = gridDim.y, part = blockIdx.y;
  const int all_steps = (K + BK - 1) / BK, share = all_steps / parts, more = all_steps % parts;
  const int steps = share + (part < more), k_begin = (part * share + min(part, more)) * BK;

  // What is copied next, and how much of k is left then.
  int uncopied = min(K - k_begin, steps * BK);
  const float* next = K_MAJOR ? element(large, ld_large, block_result + y, k_begin + x)
                              : element(large, ld_large, k_begin + y, block_result + x);
  const float* next_lines = Lines::first(small, ld_small, k_begin + (PER_WARP ? warp_y : 0));
  const auto start = [&](int stage, float (&piece)[4][4]) {
    const int x_left = (K_MAJOR ? uncopied : long_side - block_result) - x;
    const int y_left = (K_MAJOR ? long_side - block_result : uncopied) - y;
#pragma unroll
    for (int i = 0; i < 4 * PIECES; ++i) {
#pragma unroll
      for (int j = 0; j < 4; j += VEC) {
        const float* const source = element(next, ld_large, below(i), right(j));
        const bool inside = right(j) < x_left && below(i) < y_left;
        if (RING) {
          const int slot = ((4 * i + j) / VEC * THREADS + threadIdx.x) * VEC;
          cp_async<VEC>(ring + stage * STAGE + slot, source, inside);
        } else {
          read_once<VEC>(&piece[i][j], source, inside);
        }
      }
    }
    if (STAGED) {
      Lines::copy(ring + stage * STAGE + LINES, next_lines, ld_small, lines_there,
                  uncopied - (PER_WARP ? warp_y : 0));
    }
    if (WAITS) cp_async_commit();
    next = element(next, K_MAJOR ? 1 : ld_large, BK, 0);
    next_lines = element(next_lines, SMALL_K_MAJOR ? 1 : ld_small, BK, 0);
    uncopied -= BK;
  };

  // One piece at work, STAGES on their way; TURNS steps go by before a register is used again.
  constexpr int TURNS = RING ? 1 : STAGES + 1;
  alignas(16) float pieces[TURNS][4][4];
#pragma unroll
  for (int step = 0; step < STAGES; ++step) start(step, pieces[step % TURNS]);

  const int lane_k = K_MAJOR ? x : y;
  const float* lines = small + k_begin + lane_k;  // of a small matrix that is K-major
  alignas(16) float sums[SMALL * 4] = {};
  for (int step = 0, stage = 0; step < steps;) {
#pragma unroll
    for (int turn = 0; turn < TURNS && step < steps; ++turn, ++step, lines += BK) {
      if (WAITS) {
        cp_async_wait<STAGES - 1>();
        // This stage is there, and the last one has been read: by all warps where they share lines.
        STAGED && !PER_WARP ? __syncthreads() : __syncwarp();
      }
      start(stage == 0 ? STAGES : stage - 1, pieces[(turn + STAGES) % TURNS]);

      const float* const slots = ring + stage * STAGE;
      const int k_left = K - k_begin - step * BK - lane_k;
#pragma unroll
      for (int number = 0; number < PIECES; ++number) {
        constexpr int WIDTH = !STAGED ? SMALL_VEC : K_MAJOR ? VEC : 4;
        alignas(16) float line[SMALL][4] = {};
#pragma unroll
        for (int s = 0; s < SMALL; ++s) {
#pragma unroll
          for (int i = 0; i < 4; i += WIDTH) {
            const int k = K_MAJOR ? right(i) : below(4 * number) + i;
            if (STAGED) {
              const int place = Lines::place(s, k, PER_WARP ? y - warp_y : lane_k);
              read_shared<WIDTH>(&line[s][i], slots + LINES + place);
            } else if (k < k_left) {  // the last line stands for those that do not exist
              const int row = SMALL == 1 ? 0 : min(s, lines_there - 1);
              read_cached<WIDTH>(&line[s][i], element(lines, ld_small, row, k));
            }
          }
        }
#pragma unroll
        for (int i = 0; RING && i < 16; i += VEC) {
          const int slot = (16 * number + i) * THREADS + threadIdx.x * VEC;
          read_shared<VEC>(&pieces[turn][i / 4][i % 4], slots + slot);
        }
        multiply_piece<K_MAJOR>(sums, line, pieces[turn]);
      }
      stage = stage == STAGES ? 0 : stage + 1;
    }
  }
  if (WAITS) cp_async_wait<0>();
  __syncthreads();  // the ring is free: it takes the sums of the warps now

  constexpr int LANES_K = K_MAJOR ? LANES_X : LANES_Y, STRIDE = K_MAJOR ? 1 : LANES_X;
  constexpr int LEFT = 4 * SMALL > LANES_K ? 4 * SMALL / LANES_K : 1;
  float* const own_sums = ring + (K_MAJOR ? warp % WARPS_X : warp / WARPS_X) * RESULTS;
  const int first = reduce_lanes<LANES_K, STRIDE, 4 * SMALL>(sums);
  constexpr int WIDTH = !TALL && !K_MAJOR && LEFT % VEC == 0 ? VEC : 1;
#pragma unroll
  for (int i = 0; i < LEFT; i += WIDTH) {
    const int s = (first + i) / 4, j = (first + i) % 4;
    const int along = K_MAJOR ? y + j : x + right(j);
    const int place = TALL ? along * SMALL + s : s * BN + along;
    copy_vector<WIDTH>(own_sums + place, sums + i);
  }
  __syncthreads();

  const Epilogue epilogue = args.epilogue(at.product);
  C = args.c(at.product);
  const auto finish = [&](int place, float sum) {
    const int row = TALL ? block_result + place / SMALL : place / BN;
    const int col = TALL ? place % SMALL : block_result + place % BN;
    if (row < M && col < N) epilogue.store(element(C, args.ldc, row, col), sum, row, col);
  };
  if (parts == 1) return add_up<THREADS, RESULTS>(ring, WARPS_K, finish);
  const unsigned slot = at.product * tiles + at.tile_col;
  float* const left = args.workspace + static_cast<long long>(slot) * parts * RESULTS;
  add_up<THREADS, RESULTS>(ring, WARPS_K,
                           [&](int place, float sum) { left[part * RESULTS + place] = sum; });
  if (is_last_part(&args.semaphores[slot], parts)) add_up<THREADS, RESULTS>(left, parts, finish);
}
