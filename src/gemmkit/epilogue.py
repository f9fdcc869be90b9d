"""`Epilogue`: the fused operations, with cuBLASLt's names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal, get_args

from gemmkit.errors import UnsupportedType, UsageError, unknown_name

LARGEST_FLOAT = (2 - 2**-23) * 2.0**127

Activation = Literal["none", "relu", "gelu", "gelu_tanh", "silu"]
Bias = Literal["", "column", "row"]

# Accepted values for a bias; True is one value per column, as in fully connected layers.
_BIASES: dict[str, Bias] = {"bias": "column", "row_bias": "row"}
_ACTIVATIONS = get_args(Activation)
_FLAGS = {"residual": "residual", "aux": "auxiliary", "scale_result": "scale_result"}
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# Between words, not within a number such as 1e+3.
_PLUS = re.compile(r"(?<![\d.]e)\+")

# Names that C++ reserves.
_RESERVED = re.compile(
    "alignas|alignof|and|and_eq|asm|auto|bitand|bitor|bool|break|case|catch|char|char8_t|char16_t"
    "|char32_t|class|compl|concept|const|consteval|constexpr|constinit|const_cast|continue|co_await"
    "|co_return|co_yield|decltype|default|delete|do|double|dynamic_cast|else|enum|explicit|export"
    "|extern|false|float|for|friend|goto|if|inline|int|long|mutable|namespace|new|noexcept|not"
    "|not_eq|nullptr|operator|or|or_eq|private|protected|public|register|reinterpret_cast|requires"
    "|return|short|signed|sizeof|static|static_assert|static_cast|struct|switch|template|this"
    "|thread_local|throw|true|try|typedef|typeid|typename|union|unsigned|using|virtual|void|volatile"
    "|wchar_t|while|xor|xor_eq|NULL|CUSTOM|CUSTOM_PARAMETERS"
)


def _finite(name: str, value: Any) -> float:
    if not isinstance(value, Real):  # includes NumPy's
        raise UnsupportedType(f"{name} = {value!r} is not a number")
    size: Any = abs(value)
    if not size <= LARGEST_FLOAT:
        raise UsageError(f"{name} = {value!r} is not a finite fp32 number")
    return float(value) + 0.0  # -0.0 becomes 0.0, which equals it


# What an expression of one element may not use: its value, or its end, would depend on others.
_OF_OTHERS = re.compile(
    r"\b(?:__(?:sync|bar|shfl|ballot|any|all|match|reduce|activemask|nanosleep|trap|brkpt)\w*"
    r"|atomic[A-Z]\w*|printf|threadIdx|blockIdx|blockDim|gridDim|clusterIdx|cooperative_groups)\b"
)


def _has_bare_comma(text: str) -> bool:
    """Whether there is a comma outside of brackets, which would make it two expressions."""
    depth = 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and not depth:
            return True
    return False


def _unmatched(text: str) -> str:
    """The first unmatched bracket; "" if there is none."""
    opened: list[str] = []
    for character in text:
        if character in "([":
            opened.append(character)
        elif character in ")]" and (not opened or opened.pop() + character not in ("()", "[]")):
            return character
    return opened[-1] if opened else ""


def _parameter(name: str, value: Any) -> float:
    if not isinstance(value, Real):
        raise UnsupportedType(f"the custom epilogue's parameter {name} = {value!r} is not a number")
    size: Any = abs(value)
    if LARGEST_FLOAT < size < float("inf"):
        raise UsageError(f"the custom epilogue's parameter {name} exceeds fp32's range")
    return float(value)


@dataclass(frozen=True, slots=True)
class Custom:
    """A custom activation: a CUDA expression of the fp32 number `x`.

    `parameters` are the other names in it, with their values. They are kernel arguments: other
    values need no other kernel. Two activations are equal if their parameters have the same
    representation: 0.0 and -0.0 differ, and NaN equals NaN.
    """

    expression: str
    parameters: tuple[tuple[str, float], ...] = field(default=(), compare=False)
    _written: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_written", repr(self.parameters))

    def __fx_create_arg__(self, tracer: Any) -> Any:
        """The constructor expression, which `torch.fx` writes into a graph."""
        given = {"expression": self.expression, "parameters": self.parameters}
        return tracer.create_node("call_function", Custom, (), given)

    def __str__(self) -> str:
        values = "".join(f";{name}={value!r}" for name, value in self.parameters)
        return f"custom({' '.join(self.expression.split())}{values})"


def _read_word(word: str, text: str) -> tuple[str, Any]:
    """The field of an epilogue that a word of its text sets, and to what.

    Raises:
        UsageError: there is no such word.
    """
    if word in _BIASES:
        return "bias", _BIASES[word]
    if word in _ACTIVATIONS and word != "none":
        return "activation", word
    if word in _FLAGS:
        return _FLAGS[word], True
    name, equals, number = word.partition("=")
    if name.strip() == "scale" and equals:
        try:
            return "scale", float(number)
        except ValueError:
            raise UsageError(f"'{word}' is not a scale: write scale=0.5, say") from None
    known = [*_BIASES, *_ACTIVATIONS, *_FLAGS, "scale=0.5"]
    if word in known:
        raise UsageError(f"'{word}' does not fit in the epilogue '{text}': leave it out")
    joined = ", or some joined by '+', such as bias+relu"
    raise UsageError(unknown_name("epilogue", word, known, joined))


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The operations on αAB + βC before it is stored.

    D = scale · activation(αAB + βC + bias) + residual. With `auxiliary`, the input of the
    activation, which its derivative needs, is stored in another matrix. With `scale_result`, D is
    multiplied by a number in memory, of type fp32, before it is rounded to a type of 8 bits (the
    `D_SCALE_POINTER` of cuBLASLt): the kernel multiplies by the product of both scales, rounded to
    fp32.

    `bias` adds a vector: n elements, one per column of the row-major result ("column", or True), or
    m elements, one per row ("row"). `activation` is applied element by element: "relu"; "gelu",
    x·Φ(x) by the error function, and "gelu_tanh", its approximation by tanh (Hendrycks and Gimpel
    2016); "silu", x/(1 + exp(-x)); or one made by `custom`. `residual` adds a matrix of the
    result's shape. Case does not matter, and None means no bias or no activation.

    Raises:
        UsageError: an unknown bias or activation, or a scale that is not a finite number.
        UnsupportedType: one of them has another type.
    """

    bias: Bias | bool = ""
    activation: Activation | Custom = "none"
    residual: bool = False
    scale: float = 1.0
    auxiliary: bool = False
    scale_result: bool = False

    def __post_init__(self) -> None:
        # None is what callers without types write.
        if self.bias is None or isinstance(self.bias, bool):
            object.__setattr__(self, "bias", "column" if self.bias else "")
        object.__setattr__(self, "activation", self.activation or "none")
        for name in ("bias", "activation"):
            given = getattr(self, name)
            if isinstance(given, str) and not given.islower():
                object.__setattr__(self, name, given.strip().lower())
        for name, kinds in (
            ("bias", (str,)),
            ("activation", (str, Custom)),
            ("residual", (bool,)),
            ("auxiliary", (bool,)),
            ("scale_result", (bool,)),
        ):
            given = getattr(self, name)
            if not isinstance(given, kinds):
                what = "a word" if str in kinds else "True or False"
                raise UnsupportedType(
                    f"{name} = {given!r} is of type {type(given).__name__}: use {what}"
                )
        if self.bias not in get_args(Bias):
            raise UsageError(unknown_name("bias", self.bias, filter(None, get_args(Bias))))
        if not isinstance(self.activation, Custom) and self.activation not in _ACTIVATIONS:
            custom = ", or Epilogue.custom"
            raise UsageError(unknown_name("activation", self.activation, _ACTIVATIONS, custom))
        object.__setattr__(self, "scale", _finite("scale", self.scale))

    @classmethod
    def custom(
        cls,
        /,
        expression: str,
        *,
        bias: Bias | bool = "",
        residual: bool = False,
        scale: float = 1.0,
        auxiliary: bool = False,
        **parameters: float,
    ) -> Epilogue:
        """A custom fused activation, as a CUDA expression of `x`.

        `Epilogue.custom("x > 0 ? x : slope * x", slope=0.1)` is a leaky ReLU.

        Args:
            expression: an expression of `x`, the sum with its bias, in CUDA C++.
            bias, residual, scale, auxiliary: as for `Epilogue`.
            parameters: values of the other names in the expression, by keyword; infinities and NaN
                are allowed.

        Raises:
            UnsupportedType: the expression is not a string.
            UsageError: the expression is empty, not a single expression, or has unmatched brackets;
                or a parameter is called `x` or a C++ keyword, is not a number, or exceeds the
                range of fp32. Other errors in it are a `CompileError` of the first product.
        """
        if not isinstance(expression, str):
            raise UnsupportedType(
                f"a custom epilogue must be a string, a CUDA expression of x, not {expression!r}"
            )
        text = expression
        if any(not mark.isprintable() and not mark.isspace() for mark in text):
            raise UsageError(f"{expression!r} contains an unprintable character")
        if not text.strip() or any(mark in text for mark in ";{}#\\\"'"):
            raise UsageError(
                f"{expression!r} is not a single CUDA expression of x, such as "
                "'x > 0 ? x : 0.1f * x'"
            )
        if _unmatched(text):
            raise UsageError(f"{expression!r} has an unmatched '{_unmatched(text)}'")
        if _has_bare_comma(text):
            raise UsageError(
                f"{expression!r} has a comma outside of parentheses: use one expression"
            )
        if used := _OF_OTHERS.search(text):
            raise UsageError(
                f"{expression!r} uses {used[0]}: an epilogue is a function of the one element x"
            )
        for name in parameters:
            if name == "x" or not _NAME.fullmatch(name):
                raise UsageError(f"a custom epilogue's parameter cannot be called '{name}'")
            # C++ keeps names with two underscores, or one before a capital, to the compiler.
            if _RESERVED.fullmatch(name) or "__" in name or re.match("_[A-Z]", name):
                raise UsageError(
                    f"a custom epilogue's parameter cannot be called '{name}', a reserved word in "
                    "C++: rename it"
                )
        numbers = tuple((name, _parameter(name, value)) for name, value in parameters.items())
        own = Custom(expression, numbers)
        return cls(bias, own, residual, scale, auxiliary)

    @classmethod
    def parse(cls, text: str) -> Epilogue:
        """Parse the text of an epilogue, as the command line takes it and `str` writes it.

        Args:
            text: words joined by `+`: `none`, or some of `bias` or `row_bias`, an activation,
                `residual`, `aux` for an auxiliary output, `scale=` with a number, and
                `scale_result` for a scale in memory.

        Raises:
            UsageError: a word is unknown or repeated, or the scale is not a finite number.
        """
        words = [word.strip() for word in _PLUS.split(text.lower())]
        if words == ["none"]:
            return cls()
        found: dict[str, Any] = {}
        for word in words:
            key, value = _read_word(word, text)
            if key in found:
                raise UsageError(
                    f"'{word}' does not fit in the epilogue '{text}': use at most one bias, one "
                    "activation, one residual, one aux, one scale and one scale_result, joined by "
                    "'+'"
                )
            found[key] = value
        return cls(**found)

    def __str__(self) -> str:
        words = [word for word, bias in _BIASES.items() if bias == self.bias]
        words += [str(self.activation)] if self.activation != "none" else []
        words += [word for word, field in _FLAGS.items() if getattr(self, field)]
        words += [f"scale={self.scale!r}"] if self.scale != 1 else []
        return "+".join(words) or "none"

    @property
    def arguments(self) -> dict[str, float]:
        """The parameters of a custom activation, as a kernel's last arguments, in order.

        Their names differ from the user's, which may collide with other arguments.
        """
        own = self.activation
        if not isinstance(own, Custom):
            return {}
        return {f"epilogue_{place}": value for place, (_, value) in enumerate(own.parameters)}

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of a kernel's last arguments: the address of a scale in memory, and the
        parameters of a custom activation."""
        return (*(("scale_result",) if self.scale_result else ()), *self.arguments)

    @property
    def takes_matrices(self) -> bool:
        """Whether it needs more arguments than a bias: a residual, an auxiliary output or a
        scale."""
        return self.residual or self.auxiliary or self.scale != 1 or self.scale_result

    @property
    def cublaslt_name(self) -> str | None:
        """The `CUBLASLT_EPILOGUE_…` value that computes the same; None if there is none."""
        return {
            "none": "CUBLASLT_EPILOGUE_DEFAULT",
            "bias": "CUBLASLT_EPILOGUE_BIAS",
            "relu": "CUBLASLT_EPILOGUE_RELU",
            "bias+relu": "CUBLASLT_EPILOGUE_RELU_BIAS",
            "gelu_tanh": "CUBLASLT_EPILOGUE_GELU",
            "bias+gelu_tanh": "CUBLASLT_EPILOGUE_GELU_BIAS",
        }.get(str(self))
