"""Which elements the matrices of a user's kernel have, where its parameters hide that.

A type may be another one's name by a typedef, an alias or a macro, in the file itself or in one
that it includes. What text alone does not say (conditions of the preprocessor, traits) the compiler
does: `element_assertions` makes code that it refuses unless the elements are fp32.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gemmkit.cxx.declarations import (
    KernelDeclaration,
    Parameter,
    aliases_in,
    without_comments,
    without_directives,
)
from gemmkit.dtypes import Dtype

# What C++ calls the types of elements, and vectors of them.
ELEMENT_TYPES: Mapping[str, Dtype] = {
    **dict.fromkeys(("float", "float1", "float2", "float3", "float4"), "float32"),
    **dict.fromkeys(("double", "double1", "double2", "double3", "double4"), "float64"),
    **dict.fromkeys(("half", "__half", "half2", "__half2"), "float16"),
    **dict.fromkeys(("nv_bfloat16", "__nv_bfloat16", "nv_bfloat162", "__nv_bfloat162"), "bfloat16"),
}
# What a pointer to fp32 elements may be declared to point to.
FP32_TYPES = frozenset(
    ["void", "char", *(name for name, each in ELEMENT_TYPES.items() if each == "float32")]
)

_MACRO = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+((?:const[ \t]+)?[A-Za-z_][\w:]*(?:[ \t]+[A-Za-z_]\w*)*"
    r"[ \t]*\**)[ \t]*$",
    re.MULTILINE,
)
_DEFINITION = re.compile(r"-D(\w+)=(.+)")
# Marks the assertions in a compiler's messages.
MARK = "gemmkit_element_types"
_ASSERTED = re.compile(rf"{MARK}: parameter (\d+)")

_TRAITS = f"""
namespace {MARK} {{
template <class T> struct bare {{ using type = T; }};
template <class T> struct bare<const T> : bare<T> {{}};
template <class T> struct bare<volatile T> : bare<T> {{}};
template <class T> struct bare<const volatile T> : bare<T> {{}};
template <class T> struct bare<T *> : bare<T> {{}};
template <class T> struct is_fp32 {{ static constexpr bool value = false; }};
"""
_SIGNATURE = """template <unsigned N, class P, class... Rest> struct at : at<N - 1, Rest...> {};
template <class P, class... Rest> struct at<0, P, Rest...> : bare<P> {};
template <class F> struct parameters;
template <class R, class... P> struct parameters<R(P...)> {
  template <unsigned N> static constexpr bool fp32 = is_fp32<typename at<N, P...>::type>::value;
};
template <class R, class... P> struct parameters<R (*)(P...)> : parameters<R(P...)> {};
}
"""


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
    for option in map(_DEFINITION.fullmatch, options):
        if option is not None:
            # It comes first: where a text defines the name only if it is not defined yet, it holds.
            meanings[option[1]] = {option[2].strip()}
    return {name: each.pop() for name, each in meanings.items() if len(each) == 1}


def resolved(kernel: KernelDeclaration, names: Mapping[str, str]) -> KernelDeclaration:
    """The kernel with the types of its parameters replaced by what they stand for."""
    parameters = tuple(each.resolved(names) for each in kernel.parameters)
    return replace(kernel, parameters=parameters)


def element_assertions(entry: str, numbers: Sequence[int]) -> str:
    """CUDA C++ that compiles where the parameters of these numbers point to fp32 elements.

    `entry` is the kernel's whole name expression. It stands after the source, whose lines stay.
    """
    if not numbers:
        return ""
    traits = "".join(
        f"template <> struct is_fp32<{each}> {{ static constexpr bool value = true; }};\n"
        for each in sorted(FP32_TYPES)
    )
    asserted = "".join(
        f"static_assert({MARK}::parameters<decltype({entry})>::fp32<{number}>, "
        f'"{MARK}: parameter {number}");\n'
        for number in numbers
    )
    return f"\n{_TRAITS}{traits}{_SIGNATURE}{asserted}"


def unclear(parameters: Sequence[Parameter], known: Iterable[str]) -> list[int]:
    """The numbers of pointers whose elements are of a type that is not among the `known` ones."""
    listed = {*FP32_TYPES, *ELEMENT_TYPES, *known}
    return [
        number
        for number, each in enumerate(parameters)
        if each.pointer and each.type.removeprefix("::") not in listed
    ]


def refused_parameter(message: str) -> int | None:
    """The number of the parameter that a compiler's message refuses; -1 where it cannot say.

    None where the message is about something else.
    """
    if MARK not in message:
        return None
    found = _ASSERTED.search(message)
    return int(found[1]) if found is not None else -1
