// A dependent launch (programmatic dependent launch): a block multiplies one row of A by B. One thread
// waits for the launch before and loads the row; the others learn of both by the mbarrier.
__device__ __forceinline__ unsigned shared(const void *p) {
    return (unsigned)__cvta_generic_to_shared(p);
}
__device__ __forceinline__ void init(unsigned long long *barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared(barrier)) : "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
}
__device__ __forceinline__ void load(float *to, const float *from, int bytes,
                                     unsigned long long *barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared(barrier)),
                 "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];" ::"r"(shared(to)),
                 "l"(from), "r"(bytes), "r"(shared(barrier)) : "memory");
}
__device__ __forceinline__ void wait(unsigned long long *barrier) {
    asm volatile("{.reg .pred done;\n"
                 "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
                 "@!done bra AGAIN;}" ::"r"(shared(barrier)) : "memory");
}

extern "C" __global__ void gemm(const float *A, const float *B, float *C, int M, int N, int K) {
    extern __shared__ __align__(128) float row[];
    __shared__ unsigned long long full;
    if (threadIdx.x == 0) init(&full);
    __syncthreads();
    if (threadIdx.x == 0) {
        cudaGridDependencySynchronize();
        load(row, A + blockIdx.x * K, K * sizeof(float), &full);
    }
    wait(&full);
    for (int col = threadIdx.x; col < N; col += blockDim.x) {
        float sum = 0;
        for (int k = 0; k < K; ++k) sum += row[k] * B[k * N + col];
        C[blockIdx.x * N + col] = sum;
    }
    cudaTriggerProgrammaticLaunchCompletion();
}
