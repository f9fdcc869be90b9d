"""The vocabulary of fused write-backs, named as cuBLASLt names them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from gemmkit.errors import UsageError

Activation = Literal["none", "relu"]


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What happens to αAB + βC before it is stored: D = activation(αAB + βC + bias).

    `bias` adds a vector of n elements, one per column of the row-major result; `activation` is
    applied element by element, last.
    """

    bias: bool = False
    activation: Activation = "none"

    @classmethod
    def parse(cls, text: str) -> Epilogue:
        """Read `none`, `bias`, `relu` or `bias+relu`.

        Raises:
            UsageError: a word is unknown or repeated.
        """
        words = [word.strip().lower() for word in text.split("+")]
        if words == ["none"]:
            return cls()
        activation: Activation = "none"
        bias = False
        for word in words:
            if word == "bias" and not bias:
                bias = True
            elif word == "relu" and activation == "none":
                activation = "relu"
            else:
                known = ", ".join(["bias", *get_args(Activation), "bias+relu"])
                raise UsageError(f"unknown epilogue '{text}': use one of {known}")
        return cls(bias, activation)

    def __str__(self) -> str:
        words = ["bias"] * self.bias + ([self.activation] if self.activation != "none" else [])
        return "+".join(words) or "none"

    @property
    def cublaslt_name(self) -> str:
        """The `CUBLASLT_EPILOGUE_…` value that computes the same."""
        return {
            "none": "CUBLASLT_EPILOGUE_DEFAULT",
            "bias": "CUBLASLT_EPILOGUE_BIAS",
            "relu": "CUBLASLT_EPILOGUE_RELU",
            "bias+relu": "CUBLASLT_EPILOGUE_RELU_BIAS",
        }[str(self)]
