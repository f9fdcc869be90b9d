// C = A·B with tiles that the Tensor Memory Accelerator (TMA) copies, and mbarriers.
//
// One thread asks for whole tiles of A and B, an mbarrier counts their bytes, and the tile of C
// leaves by a tensor copy too. A is M×K, B is N×K, both bf16, and C is M×N in fp32.
//
//   gemmkit check examples/tma.cu --gpu h100 --dtype bf16 --out-dtype fp32 --layout NT \
//     --tensor-map 'map_a=A,box=64x64,swizzle=128B' --tensor-map 'map_b=B,box=64x32,swizzle=128B' \
//     --tensor-map 'map_c=C,box=32x64' --grid '(N+31)/32,(M+63)/64' --block 128
#include <cuda.h>
#include <cuda_bf16.h>

constexpr int BM = 64, BN = 32, BK = 64, STAGES = 2;
constexpr int STAGE_BYTES = (BM + BN) * BK * sizeof(__nv_bfloat16);

__device__ unsigned shared(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ void load(void *tile, const CUtensorMap *map, int k, int row, unsigned full) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(shared(tile)), "l"(map), "r"(k), "r"(row), "r"(full) : "memory");
}

__device__ void wait(unsigned full, int parity) {
    asm volatile("{ .reg .pred p; WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;"
                 " @!p bra WAIT; }" ::"r"(full), "r"(parity) : "memory");
}

// An element of a tile whose rows of 128 bytes are swizzled in chunks of 16.
__device__ float at(const __nv_bfloat16 *tile, int row, int k) {
    const int chunk = (k / 8) ^ (row % 8);
    return __bfloat162float(tile[row * BK + chunk * 8 + k % 8]);
}

extern "C" __global__ void gemm(const __grid_constant__ CUtensorMap map_a,
                                const __grid_constant__ CUtensorMap map_b,
                                const __grid_constant__ CUtensorMap map_c, int K) {
    __shared__ alignas(1024) __nv_bfloat16 As[STAGES][BM * BK], Bs[STAGES][BN * BK];
    __shared__ alignas(128) float Cs[BM][BN];
    __shared__ unsigned long long full[STAGES];
    const int block_row = blockIdx.y * BM, block_col = blockIdx.x * BN;
    const int steps = (K + BK - 1) / BK;

    auto fetch = [&](int step) {
        const int stage = step % STAGES;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                     ::"r"(shared(&full[stage])), "r"(STAGE_BYTES) : "memory");
        load(As[stage], &map_a, step * BK, block_row, shared(&full[stage]));
        load(Bs[stage], &map_b, step * BK, block_col, shared(&full[stage]));
    };

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;"
                         ::"r"(shared(&full[stage])) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (int step = 0; step < min(STAGES, steps); ++step) fetch(step);
    }
    __syncthreads();

    const int thread_row = threadIdx.x / 8 * 4, thread_col = threadIdx.x % 8 * 4;
    float sums[4][4] = {};
    for (int step = 0; step < steps; ++step) {
        const int stage = step % STAGES;
        wait(shared(&full[stage]), step / STAGES % 2);
        for (int k = 0; k < BK; ++k)
            for (int i = 0; i < 4; ++i)
                for (int j = 0; j < 4; ++j)
                    sums[i][j] +=
                        at(As[stage], thread_row + i, k) * at(Bs[stage], thread_col + j, k);
        // All threads have read the stage before it is filled again.
        __syncthreads();
        if (threadIdx.x == 0 && step + STAGES < steps) fetch(step + STAGES);
    }

    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) Cs[thread_row + i][thread_col + j] = sums[i][j];
    // The asynchronous proxy is to see what the threads have written.
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
                     " [%0, {%1, %2}], [%3];"
                     ::"l"(&map_c), "r"(block_col), "r"(block_row), "r"(shared(Cs)) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
