// C = A·B as kernels for Hopper are written: TMA, mbarriers, wgmma, warp specialization.
//
// The blocks are persistent. One thread of the producer warpgroup loads tiles of A and B by TMA into
// a circular buffer of stages; two consumer warpgroups multiply them by wgmma, 64 rows each, and
// store their tile of C by TMA. A is M×K, B is N×K, both bf16, and C is M×N in fp32.
//
//   gemmkit check examples/hopper.cu --gpu h100 --dtype bf16 --out-dtype fp32 --layout NT \
//     --tensor-map 'map_a=A,box=64x128,swizzle=128B' --tensor-map 'map_b=B,box=64x128,swizzle=128B' \
//     --tensor-map 'map_c=C,box=128x128' --grid 'min((M+127)/128*((N+127)/128),132)' --block 384 \
//     --shared 163840
#include <cuda.h>
#include <cuda_bf16.h>

constexpr int BM = 128, BN = 128, BK = 64, STAGES = 3;
constexpr int CONSUMERS = 256, SUMS = BN / 2;
constexpr int STAGE_BYTES = (BM + BN) * BK * sizeof(__nv_bfloat16);

#define DEVICE __device__ __forceinline__
#define TEN(n) "%" #n "0, %" #n "1, %" #n "2, %" #n "3, %" #n "4, %" #n "5, %" #n "6, %" #n "7, " \
               "%" #n "8, %" #n "9, "
#define D8(n) "+f"(d[n]), "+f"(d[n + 1]), "+f"(d[n + 2]), "+f"(d[n + 3]), \
              "+f"(d[n + 4]), "+f"(d[n + 5]), "+f"(d[n + 6]), "+f"(d[n + 7])
#define ALL_SUMS D8(0), D8(8), D8(16), D8(24), D8(32), D8(40), D8(48), D8(56)

DEVICE unsigned shared(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

// mbarriers

DEVICE void init(void *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 ::"r"(shared(barrier)), "r"(arrivals) : "memory");
}
DEVICE void init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void arrive(void *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared(barrier)) : "memory");
}
DEVICE void arrive_expecting(void *barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(shared(barrier)), "r"(bytes) : "memory");
}
DEVICE void wait(void *barrier, int parity) {
    asm volatile("{ .reg .pred p; WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;"
                 " @!p bra WAIT; }" ::"r"(shared(barrier)), "r"(parity) : "memory");
}

// TMA

DEVICE void load(void *tile, const CUtensorMap *map, int k, int row, void *barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(shared(tile)), "l"(map), "r"(k), "r"(row), "r"(shared(barrier)) : "memory");
}
DEVICE void store(const CUtensorMap *map, int col, int row, const void *tile) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
                 " [%0, {%1, %2}], [%3];"
                 ::"l"(map), "r"(col), "r"(row), "r"(shared(tile)) : "memory");
}
DEVICE void commit_store() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
DEVICE void wait_source_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
DEVICE void wait_stored() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
DEVICE void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// wgmma

// A tile of 128-byte rows with 128-byte swizzle; groups of eight rows are 1024 bytes apart.
DEVICE unsigned long long descriptor(const void *tile) {
    return shared(tile) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
DEVICE void multiply(float (&d)[SUMS], unsigned long long a, unsigned long long b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
                 TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60, %61, %62, %63},"
                 " %64, %65, 1, 1, 1, 0, 0;" : ALL_SUMS : "l"(a), "l"(b));
}
// Orders what has written `d` before the products. The compiler must not move such writes down.
DEVICE void multiply_fence(float (&d)[SUMS]) {
    asm volatile("wgmma.fence.sync.aligned;" : ALL_SUMS :: "memory");
}
DEVICE void commit_multiply() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most so many groups are in flight. The compiler must not move uses of `d` up.
template <int GROUPS> DEVICE void wait_multiply(float (&d)[SUMS]) {
    asm volatile("wgmma.wait_group.sync.aligned %64;" : ALL_SUMS : "n"(GROUPS) : "memory");
}

DEVICE void consumers_meet() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }

extern "C" __global__ void __launch_bounds__(CONSUMERS + 128, 1)
gemm(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
     const __grid_constant__ CUtensorMap map_c, int M, int N, int K) {
    extern __shared__ __align__(1024) unsigned char tiles[];
    __shared__ unsigned long long full[STAGES], empty[STAGES];
    auto As = (__nv_bfloat16(*)[BM * BK])tiles;
    auto Bs = (__nv_bfloat16(*)[BN * BK])(As + STAGES);
    auto Cs = (float(*)[BN])(Bs + STAGES);
    const int tile_cols = (N + BN - 1) / BN, tile_count = (M + BM - 1) / BM * tile_cols;
    const int steps = (K + BK - 1) / BK;

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            init(&full[stage], 1);
            init(&empty[stage], CONSUMERS);
        }
        init_fence();
    }
    __syncthreads();

    // Steps are counted over all tiles of the block: stage and parity follow from the count.
    int step = 0;
    if (threadIdx.x >= CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x > CONSUMERS) return;
        for (int tile = blockIdx.x; tile < tile_count; tile += gridDim.x) {
            const int row = tile / tile_cols * BM, col = tile % tile_cols * BN;
            for (int i = 0; i < steps; ++i, ++step) {
                const int stage = step % STAGES;
                wait(&empty[stage], step / STAGES % 2 ^ 1);
                arrive_expecting(&full[stage], STAGE_BYTES);
                load(As[stage], &map_a, i * BK, row, &full[stage]);
                load(Bs[stage], &map_b, i * BK, col, &full[stage]);
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int group_row = threadIdx.x / 128 * 64;
        const int thread_row = group_row + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
        for (int tile = blockIdx.x; tile < tile_count; tile += gridDim.x) {
            float d[SUMS] = {};
            for (int i = 0; i < steps; ++i, ++step) {
                const int stage = step % STAGES;
                wait(&full[stage], step / STAGES % 2);
                const auto a = descriptor(As[stage] + group_row * BK), b = descriptor(Bs[stage]);
                multiply_fence(d);
                for (int k = 0; k < BK / 16; ++k) multiply(d, a + 2 * k, b + 2 * k);
                commit_multiply();
                // One group stays in flight; the stage of the one before is free.
                wait_multiply<1>(d);
                if (i > 0) arrive(&empty[(step - 1) % STAGES]);
            }
            wait_multiply<0>(d);
            if (steps > 0) arrive(&empty[(step - 1) % STAGES]);

            // The store of the last tile must have read Cs before it is written again.
            if (threadIdx.x == 0) wait_source_read();
            consumers_meet();
            for (int j = 0; j < SUMS; ++j)
                Cs[thread_row + j / 2 % 2 * 8][j / 4 * 8 + threadIdx.x % 4 * 2 + j % 2] = d[j];
            proxy_fence();
            consumers_meet();
            if (threadIdx.x == 0) {
                store(&map_c, tile % tile_cols * BN, tile / tile_cols * BM, Cs);
                commit_store();
            }
        }
        if (threadIdx.x == 0) wait_stored();
    }
}
