"""Headers in the place of those that NVRTC lacks: the host's, and the CUDA runtime's.

Host code is left out before a file is compiled, so most of them are empty. Some give device code
the few names that it may expect of them.
"""

from __future__ import annotations

# What nvcc gives every file; included before anything else.
PRELUDE = "gemmkit_prelude.h"

_INTEGERS = """#pragma once
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef long long intptr_t;
typedef unsigned long long uintptr_t;
typedef unsigned int uint;
namespace std {
using ::int8_t; using ::int16_t; using ::int32_t; using ::int64_t;
using ::uint8_t; using ::uint16_t; using ::uint32_t; using ::uint64_t;
using ::size_t;
}
"""

# Word for word as in CUDA's own headers, which may be included too.
_LIMITS = """#pragma once
#define INT_MIN   (-INT_MAX - 1)
#define INT_MAX   0x7fffffff
#define UINT_MAX  0xffffffff
#define FLT_MIN         1.17549435082228750796873653722224568e-38f
#define FLT_MAX         3.40282346638528859811704183484516925e+38f
#define FLT_EPSILON     1.19209289550781250000000000000000000e-7f
#define DBL_MAX         1.79769313486231570814527423731704357e+308
"""

_MATH = """#pragma once
namespace std {}
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define M_PI 3.14159265358979323846
"""

_ALGORITHM = """#pragma once
namespace std {
template <typename T> __device__ constexpr const T& min(const T& a, const T& b) {
  return b < a ? b : a;
}
template <typename T> __device__ constexpr const T& max(const T& a, const T& b) {
  return a < b ? b : a;
}
template <typename T> __device__ constexpr void swap(T& a, T& b) {
  T kept = a;
  a = b;
  b = kept;
}
}
"""

_TYPE_TRAITS = """#pragma once
namespace std {
template <typename T, T V> struct integral_constant { static constexpr T value = V; };
using true_type = integral_constant<bool, true>;
using false_type = integral_constant<bool, false>;
template <typename T, typename U> struct is_same : false_type {};
template <typename T> struct is_same<T, T> : true_type {};
template <typename T, typename U> inline constexpr bool is_same_v = is_same<T, U>::value;
template <bool B, typename T, typename U> struct conditional { using type = T; };
template <typename T, typename U> struct conditional<false, T, U> { using type = U; };
template <bool B, typename T, typename U>
using conditional_t = typename conditional<B, T, U>::type;
template <bool B, typename T = void> struct enable_if {};
template <typename T> struct enable_if<true, T> { using type = T; };
template <bool B, typename T = void> using enable_if_t = typename enable_if<B, T>::type;
}
"""

_EMPTY = """
cuda.h cuda_runtime.h cuda_runtime_api.h device_launch_parameters.h device_functions.h
driver_types.h host_defines.h builtin_types.h cuda_device_runtime_api.h sm_20_intrinsics.h
cuda_profiler_api.h nvToolsExt.h nvtx3/nvToolsExt.h cublas.h cublas_v2.h cublasLt.h cudnn.h curand.h
cusparse.h cusolverDn.h mkl.h cblas.h omp.h mpi.h
assert.h complex.h ctype.h errno.h signal.h stdarg.h stdbool.h stddef.h stdio.h stdlib.h
string.h time.h sys/time.h sys/types.h sys/stat.h unistd.h malloc.h windows.h
array atomic bitset cassert cctype cerrno chrono complex cstdarg cstddef cstdio cstdlib
cstring ctime deque exception fstream functional future initializer_list iomanip ios iostream
iterator list map memory mutex numeric optional ostream queue random regex set sstream stack
stdexcept string string_view thread tuple unordered_map unordered_set utility variant vector
istream filesystem filesystem/path filesystem.h concepts span numbers format bit new cfenv
thrust/host_vector.h thrust/device_vector.h
helper_cuda.h helper_functions.h helper_string.h helper_timer.h
"""
# Of whole libraries of the host: extensions of PyTorch, bindings to Python, unit tests.
_LIBRARIES = ("torch/", "ATen/", "c10/", "pybind11/", "gtest/", "benchmark/", "boost/", "Eigen/")
_NOTHING = "#pragma once\nnamespace std {}\n"

STAND_INS = {
    **dict.fromkeys(_EMPTY.split(), _NOTHING),
    **dict.fromkeys(("stdint.h", "cstdint", "inttypes.h", "cinttypes"), _INTEGERS),
    **dict.fromkeys(("float.h", "cfloat", "limits.h", "climits"), _LIMITS),
    **dict.fromkeys(("math.h", "cmath"), _MATH),
    "algorithm": _ALGORITHM,
    "type_traits": _TYPE_TRAITS,
    PRELUDE: _INTEGERS,
}


def stand_in(name: str) -> str | None:
    """The text in the place of a header, or None where there is none."""
    return STAND_INS.get(name) or (_NOTHING if name.startswith(_LIBRARIES) else None)
