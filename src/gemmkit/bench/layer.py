"""`Layer`: what a layer to be measured is given, who computes it, and what its result must be.

gemmkit's own functions lie above this folder and are passed in, as dispatch is; PyTorch's too, for
it need not be installed. Layers are fp32.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.problem import GemmProblem
from gemmkit.verify import Verdict

Array = NDArray[np.float32]
Shape = tuple[int, ...]
# Says whether a result is right.
Judge = Callable[[Array], Verdict]


@dataclass(frozen=True)
class Layer(ABC):
    """A layer with its sizes. `name` is that of its function among `gemmkit.nn`'s."""

    name = ""
    # Whether torch.compile makes anything of it.
    compiles = True

    @property
    @abstractmethod
    def sizes(self) -> str:
        """Shapes and options in words."""

    @property
    @abstractmethod
    def product(self) -> GemmProblem:
        """Its largest product, or batch of products."""

    @property
    @abstractmethod
    def shapes(self) -> list[tuple[Shape, float]]:
        """The shape of each array that it is given, and the standard deviation of its elements:
        1 of activations, and of weights as small as layers have them."""

    @property
    @abstractmethod
    def result(self) -> Shape:
        """The shape of what it returns."""

    @property
    def flops(self) -> float:
        """Floating-point operations of all its products."""
        return float(self.product.flops)

    @property
    def minimal_bytes(self) -> int:
        """Bytes of its arrays and its result, once each."""
        return 4 * sum(math.prod(shape) for shape in (self.result, *(s for s, _ in self.shapes)))

    def arrays(self, seed: int) -> list[Array]:
        """Random normal arrays."""
        rng = np.random.default_rng(seed)
        return [
            rng.standard_normal(shape, np.float32) * np.float32(scale)
            for shape, scale in self.shapes
        ]

    @abstractmethod
    def ours(self, functions: Any, arrays: Sequence[Any], **options: Any) -> Any:
        """The result by gemmkit's functions, which have `options` too."""

    @abstractmethod
    def theirs(self, torch: Any, arrays: Sequence[Any]) -> tuple[Callable[..., Any], list[Any]]:
        """PyTorch's function, and its arguments made of these tensors."""

    @abstractmethod
    def judge(self, arrays: Sequence[Array]) -> Judge:
        """What judges results for these arrays by bounds from rounding theory."""
