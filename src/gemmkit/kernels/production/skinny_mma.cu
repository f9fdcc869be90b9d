// Skinny products of float16 and bfloat16, whatever their alignment, by mma.sync.
//
// With 16 rows or fewer (or columns: TALL) the other matrix is read once, and its bytes set the time.
// It comes in vectors of 16 bytes though its rows may begin anywhere: rows that are eight apart begin at
// the same place of a vector. Each of a block's eight warps has those of one class, and moves the small
// matrix, not the large one, by as many elements.
//
//   row 0   |0 1 2 3 4 5 6 7|8 9 ...       warp 0: rows 0, 8, 16 ...
//   row 1           |. . . 0 1 2 3 4|5 ... warp 1: rows 1, 9, 17 ...
//
// Where rows lie along k, each is a line of results. Where they lie across k, the warps have steps of
// k, and add up their sums in shared memory. Blocks share k too, by way of the workspace.
#include "arguments.cuh"
#include "cp_async.cuh"
#include "epilogue/fix_up.cuh"
#include "mainloop/skinny.cuh"
#include "mainloop/skinny_mma.cuh"
#include "mma.cuh"
#include "scheduler/batch.cuh"
#include "tile.cuh"

template <class In, SkinnyMmaTile TILE, Schedule SCHEDULE, class Epilogue>
__global__ void __launch_bounds__(32 * CLASSES, TILE.BN > 128 ? 1 : 2)
    skinny_mma(GEMM_PARAMETERS(In, Epilogue)) {
  const Arguments<In, Epilogue> args{GEMM_ARGUMENTS};
  constexpr int SIDE = TILE.side, BN = TILE.BN, BK = TILE.BK, STAGES = TILE.stages;
  constexpr bool TALL = TILE.tall, K_MAJOR = TILE.k_major, BATCHED = SCHEDULE.batched;
  constexpr int THREADS = 32 * CLASSES, RESULTS = SIDE * BN;
  // Fragments of 16 rows along k, or of 64 columns across k; of the small matrix, of eight lines.
  constexpr int FRAGMENTS = BN / (K_MAJOR ? 16 * CLASSES : 8 * VECTOR), EIGHTS = (SIDE + 7) / 8;
  constexpr int VECTORS = (K_MAJOR ? 8 : 4) * FRAGMENTS;   // of a lane and a step
  constexpr int IN_LINE = (K_MAJOR ? STEP : BN) / VECTOR;  // vectors of a row and a step
  // Columns of a class begin up to seven before the block's, and end as much sooner.
  constexpr int INSIDE = K_MAJOR ? BN : BN - VECTOR;
  using Small = SmallLines<In, SIDE, BK>;
  struct alignas(16) Vector {
    unsigned pairs[VECTOR / 2];
  };
  // Vectors on their way, each read by the lane that copies it; behind them the lines.
  extern __shared__ float4 shared[];
  Vector* const ring = reinterpret_cast<Vector*>(shared);
  Small& lines = *reinterpret_cast<Small*>(ring + STAGES * VECTORS * THREADS);

  K = args.depth();
  const int ld_large = TALL ? args.lda : args.ldb, ld_small = TALL ? args.ldb : args.lda;
  const int long_side = TALL ? M : N, lines_there = TALL ? N : M;
  const int tiles = (long_side + INSIDE - 1) / INSIDE;
  const BatchPlace<BATCHED> at(gridDim.y, tiles, args.batch);
  if (BATCHED && at.product >= args.batch) return;  // surplus in the grid
  const In* const large = TALL ? args.a(at.product) : args.b(at.product);
  const In* const small = TALL ? args.b(at.product) : args.a(at.product);
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

  // How many elements past a vector's first the warp's rows begin.
  const unsigned first_element = reinterpret_cast<unsigned long long>(large) / sizeof(In);
  const int shift = (first_element + static_cast<unsigned>(warp) * ld_large) % VECTOR;
  const int parts = gridDim.y, part = blockIdx.y;
  const int reach = K > 0 && K_MAJOR ? K + VECTOR - 1 : K;
  const int all_steps = (reach + STEP - 1) / STEP, share = all_steps / parts,
            more = all_steps % parts;
  const int steps = share + (part < more), k_begin = (part * share + min(part, more)) * STEP;
  const int block_result = at.tile_col * INSIDE;

  // The first vector that the lane copies: it has others in rows below. A warp copies whole lines of
  // the step's part of a row, IN_LINE vectors each, so that few sectors are asked for twice.
  const int lane = threadIdx.x % 32;
  const int lane_row = (K_MAJOR ? block_result : k_begin) + warp + CLASSES * (lane / IN_LINE);
  const int lane_col = (K_MAJOR ? k_begin : block_result) + VECTOR * (lane % IN_LINE) - shift;
  constexpr int BELOW = 32 / IN_LINE * CLASSES;
  const In* const first = element(large, ld_large, lane_row, lane_col);
  // Other lanes read them: swizzled, so that eight of these find the rows that they read in different
  // banks.
  const auto in_line = [&](int step, int line, int vector) -> Vector& {
    const int place = line * IN_LINE + (vector ^ (K_MAJOR ? line % 2 * 4 : line % 4 * 2));
    return ring[(step % STAGES * CLASSES + warp) * 32 * VECTORS + place];
  };
  const auto slot = [&](int step, int v) -> Vector& {
    return in_line(step, v * (32 / IN_LINE) + lane / IN_LINE, lane % IN_LINE);
  };
  const auto start = [&](int step) {
    const int row = lane_row + (K_MAJOR ? 0 : step * STEP);
    const int col = lane_col + (K_MAJOR ? step * STEP : 0);
    const int rows = (K_MAJOR ? long_side : K) - row, cols = (K_MAJOR ? K : long_side) - col;
    const In* const from = element(first, ld_large, row - lane_row, col - lane_col);
    const auto of_row = [&](int v) { return element(from, ld_large, v * BELOW, 0); };
    // What lies past the ends of a row becomes zero; the vector at either end is copied in part.
    const int begin = max(-col, 0), end = min(cols, VECTOR);
    const bool in_part = begin < end && end - begin < VECTOR;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      const bool inside = v * BELOW < rows;
      if (!(in_part && inside)) copy_stream(&slot(step, v), of_row(v), inside && begin < end);
    }
    if (!in_part) return;
    copy_ends<VECTORS, In>(
        of_row, [&](int v) { return slot(step, v).pairs; }, (rows + BELOW - 1) / BELOW, begin, end);
  };

  constexpr int COLUMNS = K_MAJOR ? 1 : VECTOR / 2;
  for (int step = 0; step < STAGES; ++step) {
    if (step < steps) start(step);
    cp_async_commit();
  }
  float sums[FRAGMENTS][COLUMNS][EIGHTS][4] = {};
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const int k = step * STEP % BK;
    if (k == 0) {
      __syncthreads();  // nobody reads the lines any more
      lines.template copy<TILE.small_k_major, THREADS>(small, ld_small, lines_there,
                                                       k_begin + step * STEP, K);
      __syncthreads();
    }
    cp_async_wait<STAGES - 1>();
    __syncwarp();  // the vectors of all lanes are there
    unsigned own[VECTORS][4];
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      const Vector& from = K_MAJOR ? in_line(step, v / 4 * 8 + g, v % 4 * 4 + t)
                                   : in_line(step, v / FRAGMENTS * 4 + t, v % FRAGMENTS * 8 + g);
      const uint4 pairs = *reinterpret_cast<const uint4*>(&from);
      own[v][0] = pairs.x, own[v][1] = pairs.y, own[v][2] = pairs.z, own[v][3] = pairs.w;
    }
    __syncwarp();  // and have been read
#pragma unroll
    for (int e = 0; e < EIGHTS; ++e) {
      const int line = 8 * e + g;
      if constexpr (K_MAJOR) {
        // A lane's eight neighbors along k serve as those that two products ask for.
#pragma unroll
        for (int chunk = 0; chunk < 4; ++chunk) {
          unsigned b[4];
          lines.get_vector(b, line, k + (4 * chunk + t) * VECTOR - shift);
#pragma unroll
          for (int f = 0; f < FRAGMENTS; ++f) {
            const auto &upper = own[8 * f + chunk], &lower = own[8 * f + 4 + chunk];
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
              Mma<In>::multiply(sums[f][0][e], {upper[i], lower[i], upper[i + 1], lower[i + 1]},
                                {b[i], b[i + 1]});
            }
          }
        }
      } else {
        // Elements of two rows make a pair along k.
        unsigned of_row[4];
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          of_row[q] = lines.get(line, k + warp + CLASSES * (t + 4 * q));
        }
        const unsigned b[2] = {of_row[0] | of_row[1] << 16, of_row[2] | of_row[3] << 16};
#pragma unroll
        for (int f = 0; f < FRAGMENTS; ++f) {
#pragma unroll
          for (int pair = 0; pair < COLUMNS; ++pair) {
            unsigned a[4];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const unsigned x = own[2 * half * FRAGMENTS + f][pair];
              const unsigned y = own[(2 * half + 1) * FRAGMENTS + f][pair];
              a[2 * half] = __byte_perm(x, y, 0x5410), a[2 * half + 1] = __byte_perm(x, y, 0x7632);
            }
            Mma<In>::multiply(sums[f][pair][e], a, b);
          }
        }
      }
    }
    if (step + STAGES < steps) start(step + STAGES);
    cp_async_commit();
  }

  cp_async_wait<0>();
  __syncthreads();  // lines and vectors have been read: sums take their place
  // With a gap after every eight, most of a warp's are in different banks.
  constexpr int PITCH = BN + BN / 8 + 1, ARRAYS = K_MAJOR ? 1 : CLASSES;
  float* const all_sums = reinterpret_cast<float*>(shared);
  const auto sum_at = [&](int array, int s, int along) -> float& {
    return all_sums[(array * SIDE + s) * PITCH + along + along / 8];
  };
#pragma unroll
  for (int f = 0; f < FRAGMENTS; ++f) {
#pragma unroll
    for (int column = 0; column < COLUMNS; ++column) {
#pragma unroll
      for (int e = 0; e < EIGHTS; ++e) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int s = 8 * e + 2 * t + i % 2;
          const int along = K_MAJOR ? warp + CLASSES * (16 * f + 8 * (i / 2) + g)
                                    : (8 * f + g) * VECTOR - shift + 2 * column + i / 2;
          // What begins before the block's columns goes to the end, which is not INSIDE.
          if (s < SIDE) sum_at(K_MAJOR ? 0 : warp, s, along & (BN - 1)) = sums[f][column][e][i];
        }
      }
    }
  }
  __syncthreads();

  const Epilogue epilogue = args.epilogue(at.product);
  C = args.c(at.product);
  // Results in the order of C.
  const auto line_of = [](int place) { return TALL ? place % SIDE : place / BN; };
  const auto along_of = [](int place) { return TALL ? place / SIDE : place % BN; };
  const auto finish = [&](int place, float sum) {
    const int along = along_of(place), s = line_of(place);
    const int row = TALL ? block_result + along : s, col = TALL ? s : block_result + along;
    if (along < INSIDE && row < M && col < N) {
      epilogue.store(element(C, args.ldc, row, col), sum, row, col);
    }
  };
  const auto add_warps = [&](const auto& use) {
    for (int place = threadIdx.x; place < RESULTS; place += THREADS) {
      float sum = 0.0f;
#pragma unroll
      for (int array = 0; array < ARRAYS; ++array) {
        sum += sum_at(array, line_of(place), along_of(place));
      }
      use(place, sum);
    }
  };
  if (parts == 1) return add_warps(finish);
  const unsigned tile = at.product * tiles + at.tile_col;
  float* const left = args.workspace + static_cast<long long>(tile) * parts * RESULTS;
  add_warps([&](int place, float sum) { left[part * RESULTS + place] = sum; });
  if (is_last_part(&args.semaphores[tile], parts)) add_up<THREADS, RESULTS>(left, parts, finish);
}
