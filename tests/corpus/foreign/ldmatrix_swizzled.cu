// Four warps share a 64 x 32 tile of C = A * B in bf16: ldmatrix from shared memory whose rows of 64
// bytes are swizzled by their number, then mma.sync, and stmatrix for the write-back.
#include <cuda_bf16.h>

constexpr int BM = 64, BN = 32, BK = 32;

// Where the eight numbers from (row, column) on are, in bytes; `width` numbers to a row.
__device__ unsigned place(int row, int column, int width) {
  const int chunk = column / 8, chunks = width / 8;
  return row * width * 2 + ((chunk ^ (row / 2 % chunks)) * 16);
}

__device__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

__global__ void __launch_bounds__(128) matmul(const __nv_bfloat16* A, const __nv_bfloat16* B,
                                              __nv_bfloat16* C, int M, int N, int K) {
  __shared__ __align__(128) unsigned char As[BM * BK * 2], Bs[BK * BN * 2], Cs[BM * BN * 2];
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int block_row = blockIdx.y * BM, block_column = blockIdx.x * BN;
  float sums[4][4] = {};
  for (int k = 0; k < K; k += BK) {
    for (int i = thread; i < BM * BK / 8; i += 128) {
      const int row = i / (BK / 8), column = i % (BK / 8) * 8;
      *reinterpret_cast<uint4*>(As + place(row, column, BK)) =
          *reinterpret_cast<const uint4*>(A + (block_row + row) * K + k + column);
    }
    for (int i = thread; i < BK * BN / 8; i += 128) {
      const int row = i / (BN / 8), column = i % (BN / 8) * 8;
      *reinterpret_cast<uint4*>(Bs + place(row, column, BN)) =
          *reinterpret_cast<const uint4*>(B + (k + row) * N + block_column + column);
    }
    __syncthreads();
    for (int step = 0; step < BK; step += 16) {
      unsigned a[4], b[4];
      const unsigned from =
          shared_address(As) + place(warp * 16 + lane % 16, step + lane / 16 * 8, BK);
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(from) : "memory");
      for (int half = 0; half < 2; ++half) {
        const unsigned at =
            shared_address(Bs) + place(step + lane % 16, half * 16 + lane / 16 * 8, BN);
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(at) : "memory");
        for (int n = 0; n < 2; ++n) {
          float* c = sums[half * 2 + n];
          asm volatile(
              "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
              "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
              : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
              : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[2 * n]), "r"(b[2 * n + 1]));
        }
      }
    }
    __syncthreads();
  }
  for (int half = 0; half < 2; ++half) {
    unsigned words[4];
    for (int i = 0; i < 4; ++i) {
      const float* c = sums[half * 2 + i / 2] + i % 2 * 2;
      const __nv_bfloat162 pair = __floats2bfloat162_rn(c[0], c[1]);
      words[i] = *reinterpret_cast<const unsigned*>(&pair);
    }
    const unsigned to =
        shared_address(Cs) + place(warp * 16 + lane % 16, half * 16 + lane / 16 * 8, BN);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  }
  __syncthreads();
  for (int i = thread; i < BM * BN / 8; i += 128) {
    const int row = i / (BN / 8), column = i % (BN / 8) * 8;
    *reinterpret_cast<uint4*>(C + (block_row + row) * N + block_column + column) =
        *reinterpret_cast<const uint4*>(Cs + place(row, column, BN));
  }
}
