"""Which elements the matrices of a user's kernel have, where its parameters hide that.

A type may be another one's name by a typedef, an alias or a macro, in the file itself or in one
that it includes. What text alone does not say (conditions of the preprocessor, traits, kernels that
macros make) the compiler does: `element_assertions` makes code that it refuses unless the elements
are those of a problem, and says which they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, get_args

from gemmkit.cxx.conditionals import defined_by
from gemmkit.cxx.declarations import (
    KernelDeclaration,
    Parameter,
    aliases_in,
    without_comments,
    without_directives,
)
from gemmkit.cxx.reserved_names import reserved
from gemmkit.dtypes import Dtype

# What C++ calls the types of elements, and vectors of them.
ELEMENT_TYPES: Mapping[str, Dtype] = {
    **dict.fromkeys(("float", "float1", "float2", "float3", "float4"), "float32"),
    **dict.fromkeys(("double", "double1", "double2", "double3", "double4"), "float64"),
    **dict.fromkeys(("half", "__half", "half2", "__half2"), "float16"),
    **dict.fromkeys(("nv_bfloat16", "__nv_bfloat16", "nv_bfloat162", "__nv_bfloat162"), "bfloat16"),
    **dict.fromkeys(("__nv_fp8_e4m3", "__nv_fp8x2_e4m3", "__nv_fp8x4_e4m3"), "float8_e4m3"),
    **dict.fromkeys(("__nv_fp8_e5m2", "__nv_fp8x2_e5m2", "__nv_fp8x4_e5m2"), "float8_e5m2"),
}
# What a pointer to elements of any type may be declared to point to.
UNTYPED = frozenset(["void", "char"])

_MACRO = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+((?:const[ \t]+)?[A-Za-z_][\w:]*(?:[ \t]+[A-Za-z_]\w*)*"
    r"[ \t]*\**)[ \t]*$",
    re.MULTILINE,
)
# Marks the assertions in a compiler's messages.
MARK = "__gemmkit_element_types"
_ASSERTED = re.compile(rf"{MARK}: (\w+) is (\w+)")

# Classes of `cuda_fp16.h` and `cuda_bf16.h`, which a source need not include.
_CLASSES = (
    *("__half", "__half2", "__nv_bfloat16", "__nv_bfloat162"),
    *(name for name in ELEMENT_TYPES if name.startswith("__nv_fp8")),
)
# Names in the code below that macros of the source, which it follows, must not change.
_OWN = "T N P Rest F R at bare element kind parameters type"
_TRAITS = f"""
namespace {MARK} {{
template <class T> struct bare {{ using type = T; }};
template <class T> struct bare<const T> : bare<T> {{}};
template <class T> struct bare<volatile T> : bare<T> {{}};
template <class T> struct bare<const volatile T> : bare<T> {{}};
template <class T> struct bare<T *> : bare<T> {{}};
template <class T> struct element {{ static constexpr int kind = -1; }};
"""
_SIGNATURE = """template <unsigned N, class P, class... Rest> struct at : at<N - 1, Rest...> {};
template <class P, class... Rest> struct at<0, P, Rest...> : bare<P> {};
template <class F> struct parameters;
template <class R, class... P> struct parameters<R(P...)> {
  template <unsigned N> static constexpr int kind = element<typename at<N, P...>::type>::kind;
};
template <class R, class... P> struct parameters<R (*)(P...)> : parameters<R(P...)> {};
}
"""


class Asserted(NamedTuple):
    """A kernel parameter by its number, the matrix that it points to, and the type of elements."""

    number: int
    matrix: str
    dtype: Dtype


class Refused(NamedTuple):
    """The matrix whose elements have another type than was asserted, and which, if it is known."""

    matrix: str
    dtype: Dtype | None


def type_names(texts: Iterable[str], options: Sequence[str] = ()) -> dict[str, str]:
    """Types by other names, in all texts: those that have one meaning wherever they are declared.

    Macros and definitions of the compiler's `options` count, too.
    """
    meanings: dict[str, set[str]] = {}
    for text in texts:
        uncommented = without_comments(text)
        named = [*aliases_in(without_directives(uncommented)).items()]
        named += [(name, value.strip()) for name, value in _MACRO.findall(uncommented)]
        for name, meaning in named:
            meanings.setdefault(name, set()).add(meaning)
    for name, value in defined_by(options).items():
        if value:
            # It comes first: where a text defines the name only if it is not defined yet, it holds.
            meanings[name] = {value.strip()}
    return {name: each.pop() for name, each in meanings.items() if len(each) == 1}


def resolved(kernel: KernelDeclaration, names: Mapping[str, str]) -> KernelDeclaration:
    """The kernel with the types of its parameters replaced by what they stand for."""
    parameters = tuple(each.resolved(names) for each in kernel.parameters)
    return replace(kernel, parameters=parameters)


def element_assertions(entry: str, asserted: Sequence[Asserted]) -> str:
    """CUDA C++ that compiles where parameters of a kernel point to elements of these types.

    Of a `void` pointer any may be. `entry` is the kernel's whole name expression. The code stands
    after the source, whose lines stay.
    """
    if not asserted:
        return ""
    known: tuple[Dtype, ...] = get_args(Dtype)
    declared = "".join(f"struct {each};\n" for each in _CLASSES)
    # The others are aliases of these.
    named = {
        name: each
        for name, each in ELEMENT_TYPES.items()
        if name in _CLASSES or each in ("float32", "float64")
    }
    kinds = [(name, known.index(each) + 1) for name, each in named.items()]
    traits = "".join(
        f"template <> struct element<{name}> {{ static constexpr int kind = {kind}; }};\n"
        for name, kind in (*kinds, *((each, 0) for each in sorted(UNTYPED)))
    )
    lines = []
    for number, matrix, dtype in asserted:
        kind = f"{MARK}::__gemmkit_parameters<decltype({entry})>::__gemmkit_kind<{number}>"
        others = [(f"!= {known.index(each) + 1}", each) for each in known if each != dtype]
        lines += [
            f'static_assert({kind} {condition}, "{MARK}: {matrix} is {told}");\n'
            for condition, told in (*others, (">= 0", "other"))
        ]
    own = reserved(_OWN, f"{_TRAITS}{traits}{_SIGNATURE}")
    return f"\n{declared}{own}{''.join(lines)}"


def unclear(parameters: Sequence[Parameter], known: Iterable[str]) -> list[int]:
    """The numbers of pointers whose elements are of a type that is not among the `known` ones."""
    listed = {*UNTYPED, *ELEMENT_TYPES, *known}
    return [
        number
        for number, each in enumerate(parameters)
        if each.pointer and each.type.removeprefix("::") not in listed
    ]


def refused_elements(message: str) -> Refused | None:
    """What a compiler's message says of an assertion; no matrix where it cannot say which.

    None where the message is about something else.
    """
    if MARK not in message:
        return None
    found = _ASSERTED.search(message)
    if found is None:
        return Refused("", None)
    return Refused(found[1], next((each for each in get_args(Dtype) if each == found[2]), None))
