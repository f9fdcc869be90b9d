// Stages filled by cp.async and multiplied by wgmma: C = A·B for whole tiles, B stored N×K.
#include <cuda_bf16.h>

constexpr int BM = 64, BN = 32, BK = 64, STAGES = 2, SUMS = BN / 2;

__device__ __forceinline__ unsigned shared(const void *p) {
    return (unsigned)__cvta_generic_to_shared(p);
}
__device__ __forceinline__ unsigned long long descriptor(const void *tile) {
    return shared(tile) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
__device__ __forceinline__ void multiply(float (&d)[SUMS], unsigned long long a,
                                         unsigned long long b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16"
                 " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15},"
                 " %16, %17, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                 : "l"(a), "l"(b));
}

// One warpgroup copies rows of 128 bytes, with the 128-byte swizzle that the descriptor names.
__device__ __forceinline__ void copy(__nv_bfloat16 *tile, const __nv_bfloat16 *from, int rows,
                                     int ld) {
    for (int chunk = threadIdx.x; chunk < rows * 8; chunk += 128) {
        const int row = chunk / 8, column = chunk % 8;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                     ::"r"(shared(tile + row * BK + (column ^ row % 8) * 8)),
                     "l"(from + row * ld + column * 8) : "memory");
    }
}

extern "C" __global__ void __launch_bounds__(128)
gemm(const __nv_bfloat16 *A, const __nv_bfloat16 *B, float *C, int M, int N, int K) {
    __shared__ __align__(1024) __nv_bfloat16 As[STAGES][BM * BK], Bs[STAGES][BN * BK];
    const int row = blockIdx.y * BM, col = blockIdx.x * BN, steps = K / BK;
    auto fetch = [&](int step) {
        if (step < steps) {
            copy(As[step % STAGES], A + row * K + step * BK, BM, K);
            copy(Bs[step % STAGES], B + col * K + step * BK, BN, K);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };

    float d[SUMS] = {};
    fetch(0);
    for (int step = 0; step < steps; ++step) {
        fetch(step + 1);
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        const auto a = descriptor(As[step % STAGES]), b = descriptor(Bs[step % STAGES]);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int k = 0; k < BK / 16; ++k) multiply(d, a + 2 * k, b + 2 * k);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        for (int j = 0; j < SUMS; ++j) asm volatile("" : "+f"(d[j])::"memory");
        __syncthreads();
    }

    const int thread_row = row + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    for (int j = 0; j < SUMS; ++j)
        C[(thread_row + j / 2 % 2 * 8) * N + col + j / 4 * 8 + threadIdx.x % 4 * 2 + j % 2] = d[j];
}
