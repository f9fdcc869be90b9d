"""Headers in the place of those that NVRTC lacks: the host's, and the CUDA runtime's.

Host code is left out before a file is compiled, so most of them are empty. What device code may
expect of the standard library is there in any case.
"""

from __future__ import annotations

from gemmkit.jit.standard_library import (
    ALGORITHM,
    ARRAY,
    FLOAT_LIMITS,
    INTEGER_LIMITS,
    INTEGERS,
    LIMITS,
    MATHS,
    TYPE_TRAITS,
    UTILITY,
)

# What nvcc gives every file; included before anything else.
PRELUDE = "gemmkit_prelude.h"

_EMPTY = """
algorithm type_traits limits cmath math.h utility limits.h climits
stdint.h cstdint inttypes.h cinttypes
cuda_runtime.h cuda_runtime_api.h device_launch_parameters.h device_functions.h
driver_types.h host_defines.h builtin_types.h cuda_device_runtime_api.h sm_20_intrinsics.h
device_types.h math_functions.h vector_functions.h surface_types.h texture_types.h
surface_functions.h texture_fetch_functions.h device_atomic_functions.h channel_descriptor.h
driver_functions.h library_types.h cuda_gl_interop.h cuda_surface_types.h cuda_texture_types.h
cuda_profiler_api.h cudaProfiler.h nvToolsExt.h nvtx3/nvToolsExt.h nvtx3/nvtx3.hpp
cublas.h cublas_v2.h cublas_api.h cublasLt.h cublasXt.h cudnn.h curand.h nccl.h nvml.h cupti.h
nvrtc.h cufft.h cusparse.h cusparse_v2.h cusolverDn.h mkl.h cblas.h lapacke.h omp.h mpi.h
assert.h complex.h ctype.h errno.h fcntl.h getopt.h locale.h memory.h setjmp.h signal.h stdalign.h
stdarg.h stdbool.h stddef.h stdio.h stdlib.h string.h strings.h time.h wchar.h unistd.h malloc.h
sys/time.h sys/types.h sys/stat.h sys/mman.h sys/resource.h sys/wait.h dlfcn.h pthread.h sched.h
windows.h immintrin.h xmmintrin.h emmintrin.h x86intrin.h
any atomic barrier bit bitset cassert cctype cerrno cfenv charconv chrono clocale codecvt compare
complex concepts condition_variable coroutine csetjmp csignal cstdarg cstddef cstdio cstdlib
cstring ctime cwchar cwctype deque exception execution expected filesystem format forward_list
fstream functional future initializer_list iomanip ios iosfwd iostream istream iterator latch list
locale map memory memory_resource mutex new numbers numeric optional ostream print queue random
ranges ratio regex semaphore set shared_mutex source_location span sstream stack stacktrace
stdexcept stop_token streambuf string string_view syncstream system_error thread tuple typeindex
typeinfo unordered_map unordered_set valarray variant vector version
filesystem/path filesystem.h cub/cub.cuh
helper_cuda.h helper_functions.h helper_string.h helper_timer.h helper_image.h
"""
# Of whole libraries of the host: thrust, extensions of PyTorch, bindings to Python, unit tests.
_LIBRARIES = (
    *("thrust/", "torch/", "ATen/", "c10/", "pybind11/", "gtest/", "gmock/", "benchmark/"),
    *("boost/", "Eigen/", "fmt/", "spdlog/", "nlohmann/", "opencv2/", "cuda/api_wrappers/"),
)
_NOTHING = "#pragma once\n"
_FLOATS = f"#pragma once\n{FLOAT_LIMITS}"

# A tensor map is no more to the compiler than bytes; what the driver makes of them is unknown here.
_DRIVER = """#ifndef GEMMKIT_CUDA_H
#define GEMMKIT_CUDA_H
struct alignas(64) CUtensorMap_st { unsigned long long opaque[16]; };
typedef struct CUtensorMap_st CUtensorMap;
#endif
"""

# CUDA's device runtime has the same; NVRTC comes without it. Findings name the line of the call, as
# they do for code of CUDA's own headers, by whose name in nvcc's line tables this goes.
_DEPENDENT_LAUNCHES = """
#if __CUDA_ARCH__ >= 900
#line 1 "/usr/local/cuda/include/cuda_device_runtime_api.h"
static __device__ inline void cudaGridDependencySynchronize() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
static __device__ inline void cudaTriggerProgrammaticLaunchCompletion() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
#endif
"""

STAND_INS = {
    **dict.fromkeys(_EMPTY.split(), _NOTHING),
    **dict.fromkeys(("float.h", "cfloat"), _FLOATS),
    **dict.fromkeys(("cuda.h", "cudaTypedefs.h"), _DRIVER),
    "array": ARRAY,
    PRELUDE: INTEGERS
    + INTEGER_LIMITS
    + MATHS
    + ALGORITHM
    + LIMITS
    + TYPE_TRAITS
    + UTILITY
    + _DEPENDENT_LAUNCHES,
}


def stand_in(name: str) -> str | None:
    """The text in the place of a header, or None where there is none."""
    return STAND_INS.get(name) or (_NOTHING if name.startswith(_LIBRARIES) else None)
