"""How an epilogue is passed to a kernel: a type for its last template parameter, and custom
code."""

from __future__ import annotations

from gemmkit.dtypes import Dtype
from gemmkit.epilogue import Custom
from gemmkit.kernels.plan import EXPRESSION_FILE, SourceFile
from gemmkit.problem import GemmProblem

_BIASES = {"": "NO_BIAS", "column": "COLUMN_BIAS", "row": "ROW_BIAS"}
_ACTIVATIONS = {
    "none": "Identity",
    "relu": "Relu",
    "gelu": "Gelu",
    "gelu_tanh": "GeluTanh",
    "silu": "Silu",
}

# The C++ of gemmkit's own kernels: template arguments are given by name.
STANDARD = "--std=c++20"

# Types of elements as typed.cuh and wgmma.cuh call them.
CUDA_TYPES: dict[Dtype, str] = {
    "float32": "float",
    "float64": "double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "float8_e4m3": "Float8E4M3",
    "float8_e5m2": "Float8E5M2",
}


# NVRTC has no <cmath>, where these come from. A parameter of such a name hides them.
_NUMBERS = """
#ifndef NAN
    [[maybe_unused]] const float NAN = __int_as_float(0x7fffffff);
#endif
#ifndef INFINITY
    [[maybe_unused]] const float INFINITY = __int_as_float(0x7f800000);
#endif
"""


def policy(problem: GemmProblem) -> str:
    """The `Epilogue<…>` of epilogue.cuh that finishes the problem's results.

    Types are named where they are not all float32.
    """
    epilogue, out = problem.epilogue, problem.out_dtype or problem.dtype
    own = epilogue.activation
    activation = "Custom" if isinstance(own, Custom) else _ACTIVATIONS[own]
    arguments = [_BIASES[str(epilogue.bias)], activation]
    extra = [
        name
        for name, wanted in (
            ("RESIDUAL", epilogue.residual),
            ("AUXILIARY", epilogue.auxiliary),
            ("SCALE", epilogue.scale != 1 or epilogue.scale_result),
            ("SCALE_IN_MEMORY", epilogue.scale_result),
        )
        if wanted
    ]
    typed = {problem.dtype, out} != {"float32"}
    if extra or typed:
        arguments.append(" | ".join(extra) or "0")
    if typed:
        arguments += [CUDA_TYPES[out], CUDA_TYPES[problem.sum_dtype]]
    return f"Epilogue<{', '.join(arguments)}>"


def source_file(name: str, text: str, problem: GemmProblem) -> SourceFile:
    """A kernel's own text with the user's activation, if the problem's epilogue has one."""
    own = problem.epilogue.activation
    return SourceFile(
        text + _custom_code(problem),
        f"{name}.cu",
        options=(STANDARD, *_custom_options(problem)),
        expression=own.expression if isinstance(own, Custom) else "",
    )


def _custom_code(problem: GemmProblem) -> str:
    own = problem.epilogue.activation
    if not isinstance(own, Custom):
        return ""
    number = CUDA_TYPES[problem.sum_dtype]
    # The user's names are those of local variables, which may be called as members, types and
    # functions are.
    members = "".join(f"  {number} {name};\n" for name in problem.epilogue.arguments)
    locals_ = "".join(
        f"    [[maybe_unused]] const {number} {name} = this->{member};\n"
        for (name, _), member in zip(own.parameters, problem.epilogue.arguments, strict=True)
    )
    return (
        f"\nstruct Custom {{\n{members}  __device__ {number} apply({number} x) const {{"
        f"{_NUMBERS}    {{\n"
        f'{locals_}    return\n#include "{EXPRESSION_FILE}"\n    ;\n    }}\n  }}\n}};\n'
    )


def _custom_options(problem: GemmProblem) -> tuple[str, ...]:
    """The compiler's options for it: the macros of epilogue.cuh that make its parameters, and the
    address of a scale, the kernel's.
    """
    options: tuple[str, ...] = ()
    if problem.epilogue.scale_result:
        options += (
            "-DSCALE_RESULT_PARAMETER=, const float* scale_result",
            "-DSCALE_RESULT=, scale_result",
        )
    if names := list(problem.epilogue.arguments):
        number = CUDA_TYPES[problem.sum_dtype]
        declared = "".join(f", {number} {name}" for name in names)
        options += (f"-DCUSTOM_PARAMETERS={declared}", f"-DCUSTOM=, {{{', '.join(names)}}}")
    return options
