"""The part of C++'s standard library that nvcc accepts in device code, as text for NVRTC.

nvcc reads the host's headers, many of which include each other, and finds all of these names in
most programs; NVRTC has none of them.
"""

from __future__ import annotations

from gemmkit.cxx.reserved_names import reserved

_MATHS = """
abs acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs
fdim floor fma fmax fmin fmod frexp hypot ilogb isfinite isinf isnan ldexp lgamma llrint llround log
log10 log1p log2 logb lrint lround modf nearbyint nextafter pow remainder rint round scalbn signbit
sin sinh sqrt tan tanh tgamma trunc
"""

INTEGERS = """#pragma once
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
using ::intptr_t; using ::uintptr_t;
using ::size_t;
using ptrdiff_t = decltype(static_cast<char*>(nullptr) - static_cast<char*>(nullptr));
using nullptr_t = decltype(nullptr);
}
"""

# Word for word as in CUDA's own headers, which may be included too.
INTEGER_LIMITS = """
#define INT_MIN   (-INT_MAX - 1)
#define INT_MAX   0x7fffffff
#define UINT_MAX  0xffffffff
"""

FLOAT_LIMITS = """
#define FLT_MIN         1.17549435082228750796873653722224568e-38f
#define FLT_MAX         3.40282346638528859811704183484516925e+38f
#define FLT_EPSILON     1.19209289550781250000000000000000000e-7f
#define DBL_MAX         1.79769313486231570814527423731704357e+308
"""

MATHS = (
    """
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define M_PI 3.14159265358979323846
namespace std {
"""
    + "\n".join(f"using ::{name};" for name in _MATHS.split())
    + "\n}\n"
)

ALGORITHM = reserved("T a b x least most kept", """
namespace std {
template <typename T> __device__ constexpr const T& min(const T& a, const T& b) {
  return b < a ? b : a;
}
template <typename T> __device__ constexpr const T& max(const T& a, const T& b) {
  return a < b ? b : a;
}
template <typename T>
__device__ constexpr const T& clamp(const T& x, const T& least, const T& most) {
  return x < least ? least : most < x ? most : x;
}
template <typename T> __device__ constexpr void swap(T& a, T& b) {
  T kept = a;
  a = b;
  b = kept;
}
}
""")  # fmt: skip

_LIMITED_INTEGERS = (
    ("bool", "false", "true", "false", 1),
    ("char", "-128", "127", "true", 7),
    ("signed char", "-128", "127", "true", 7),
    ("unsigned char", "0", "255", "false", 8),
    ("short", "-32768", "32767", "true", 15),
    ("unsigned short", "0", "65535", "false", 16),
    ("int", "-2147483647 - 1", "2147483647", "true", 31),
    ("unsigned int", "0", "4294967295u", "false", 32),
    ("long", "-9223372036854775807l - 1", "9223372036854775807l", "true", 63),
    ("unsigned long", "0", "18446744073709551615ul", "false", 64),
    ("long long", "-9223372036854775807ll - 1", "9223372036854775807ll", "true", 63),
    ("unsigned long long", "0", "18446744073709551615ull", "false", 64),
)
_INTEGER_TRAITS = """
template <> struct numeric_limits<{type}> {{
  static constexpr bool is_specialized = true, is_integer = true, is_exact = true;
  static constexpr bool is_signed = {signed}, has_infinity = false;
  static constexpr int digits = {digits}, digits10 = digits * 3 / 10;
  static constexpr {type} min() {{ return {least}; }}
  static constexpr {type} lowest() {{ return {least}; }}
  static constexpr {type} max() {{ return {most}; }}
}};
"""
_FLOAT_TRAITS = """
template <> struct numeric_limits<{type}> {{
  static constexpr bool is_specialized = true, is_integer = false, is_exact = false;
  static constexpr bool is_signed = true, has_infinity = true;
  static constexpr int digits = {digits}, digits10 = {digits10}, max_digits10 = {digits10} + 3;
  static constexpr {type} min() {{ return {least}; }}
  static constexpr {type} max() {{ return {most}; }}
  static constexpr {type} lowest() {{ return -{most}; }}
  static constexpr {type} epsilon() {{ return {epsilon}; }}
  static constexpr {type} infinity() {{ return {infinity}; }}
  static constexpr {type} quiet_NaN() {{ return {nan}; }}
}};
"""
LIMITS = (
    "namespace std {\n"
    "template <typename __gemmkit_T> struct numeric_limits {\n"
    "  static constexpr bool is_specialized = false;\n};\n"
    + "".join(
        _INTEGER_TRAITS.format(type=name, least=least, most=most, signed=signed, digits=digits)
        for name, least, most, signed, digits in _LIMITED_INTEGERS
    )
    + _FLOAT_TRAITS.format(
        type="float",
        digits=24,
        digits10=6,
        least="1.17549435082228750797e-38f",
        most="3.40282346638528859812e+38f",
        epsilon="1.1920928955078125e-7f",
        infinity="__builtin_bit_cast(float, 0x7f800000)",
        nan="__builtin_bit_cast(float, 0x7fc00000)",
    )
    + _FLOAT_TRAITS.format(
        type="double",
        digits=53,
        digits10=15,
        least="2.22507385850720138309e-308",
        most="1.79769313486231570815e+308",
        epsilon="2.22044604925031308085e-16",
        infinity="__builtin_bit_cast(double, 0x7ff0000000000000ll)",
        nan="__builtin_bit_cast(double, 0x7ff8000000000000ll)",
    )
    + "}\n"
)

TYPE_TRAITS = reserved("T U V B", """
namespace std {
template <typename T, T V> struct integral_constant {
  static constexpr T value = V;
  using value_type = T;
  constexpr operator T() const { return V; }
};
template <bool B> using bool_constant = integral_constant<bool, B>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;
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
template <typename...> using void_t = void;
template <typename T> struct remove_reference { using type = T; };
template <typename T> struct remove_reference<T&> { using type = T; };
template <typename T> struct remove_reference<T&&> { using type = T; };
template <typename T> using remove_reference_t = typename remove_reference<T>::type;
template <typename T> struct remove_cv { using type = T; };
template <typename T> struct remove_cv<const T> { using type = T; };
template <typename T> struct remove_cv<volatile T> { using type = T; };
template <typename T> struct remove_cv<const volatile T> { using type = T; };
template <typename T> using remove_cv_t = typename remove_cv<T>::type;
template <typename T> struct remove_const { using type = T; };
template <typename T> struct remove_const<const T> { using type = T; };
template <typename T> using remove_const_t = typename remove_const<T>::type;
template <typename T> using remove_cvref_t = remove_cv_t<remove_reference_t<T>>;
template <typename T> using decay_t = remove_cvref_t<T>;
template <typename T> struct is_pointer : false_type {};
template <typename T> struct is_pointer<T*> : true_type {};
template <typename T> inline constexpr bool is_pointer_v = is_pointer<remove_cv_t<T>>::value;
template <typename T> struct is_floating_point
    : bool_constant<is_same_v<remove_cv_t<T>, float> || is_same_v<remove_cv_t<T>, double>> {};
template <typename T> inline constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <typename T> struct is_integral
    : bool_constant<numeric_limits<remove_cv_t<T>>::is_specialized && !is_floating_point_v<T>> {};
template <typename T> inline constexpr bool is_integral_v = is_integral<T>::value;
template <typename T> struct is_arithmetic
    : bool_constant<is_integral<T>::value || is_floating_point<T>::value> {};
template <typename T> inline constexpr bool is_arithmetic_v = is_arithmetic<T>::value;
template <typename T> struct is_trivially_copyable
    : bool_constant<__is_trivially_copyable(T)> {};
template <typename T>
inline constexpr bool is_trivially_copyable_v = is_trivially_copyable<T>::value;
}
""")  # fmt: skip

# NVRTC has `move` and `forward` of its own.
UTILITY = reserved("T U N Is counted_sequence", """
namespace std {
template <typename T, T... Is> struct integer_sequence {
  static constexpr size_t size() { return sizeof...(Is); }
};
template <size_t... Is> using index_sequence = integer_sequence<size_t, Is...>;
template <typename T, size_t N, T... Is>
struct counted_sequence : counted_sequence<T, N - 1, T(N - 1), Is...> {};
template <typename T, T... Is> struct counted_sequence<T, 0, Is...> {
  using type = integer_sequence<T, Is...>;
};
template <typename T, T N>
using make_integer_sequence = typename counted_sequence<T, size_t(N)>::type;
template <size_t N> using make_index_sequence = make_integer_sequence<size_t, N>;
template <typename T, typename U> struct pair {
  T first;
  U second;
};
}
""")  # fmt: skip

# Unlike the rest it is rare, and a name that programs give to things of their own.
ARRAY = reserved("T N items i x", """#pragma once
namespace std {
template <typename T, size_t N> struct array {
  T items[N];
  constexpr T& operator[](size_t i) { return items[i]; }
  constexpr const T& operator[](size_t i) const { return items[i]; }
  constexpr T* data() { return items; }
  constexpr const T* data() const { return items; }
  constexpr T* begin() { return items; }
  constexpr const T* begin() const { return items; }
  constexpr T* end() { return items + N; }
  constexpr const T* end() const { return items + N; }
  static constexpr size_t size() { return N; }
  constexpr void fill(const T& x) {
    for (size_t i = 0; i < N; i++) items[i] = x;
  }
};
}
""")  # fmt: skip
