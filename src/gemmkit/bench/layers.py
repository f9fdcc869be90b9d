"""`LAYERS`: fully connected, convolutional, attention and recurrent layers to measure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gemmkit.bench.layer import Array, Judge, Layer, Shape
from gemmkit.bench.linear_peer import linear_function
from gemmkit.epilogue import Activation, Epilogue
from gemmkit.problem import BROADCAST, GemmProblem
from gemmkit.verify import Inputs, Reference, Verdict
from gemmkit.verify.encoding import canaries
from gemmkit.verify.row_blocks import for_each_row_block
from gemmkit.verify.running import Bounded, concatenated, stack

# Keys that a softmax takes in at once, at least: the smallest tile of any tensor core.
LEAST_KEYS = 16


@dataclass(frozen=True)
class Linear(Layer):
    """activation(x · weightᵀ + bias) + residual."""

    rows: int
    k: int
    n: int
    activation: Activation = "none"
    residual: bool = False

    name = "linear"

    @property
    def sizes(self) -> str:
        """Rows, inputs, outputs, and what is fused."""
        text = f"{self.rows}x{self.k} -> {self.n}, {self.activation}"
        return text + ", residual" * self.residual

    @property
    def product(self) -> GemmProblem:
        """The only one, which has all of the epilogue."""
        epilogue = Epilogue("column", self.activation, self.residual)
        return GemmProblem(self.rows, self.n, self.k, transb=True, epilogue=epilogue)

    @property
    def shapes(self) -> list[tuple[Shape, float]]:
        """x, weight, bias and residual."""
        found = [((self.rows, self.k), 1.0), ((self.n, self.k), self.k**-0.5), ((self.n,), 1.0)]
        return [*found, *([(self.result, 1.0)] if self.residual else [])]

    @property
    def result(self) -> Shape:
        """(rows, n)."""
        return self.rows, self.n

    def ours(self, functions: Any, arrays: Sequence[Any], **options: Any) -> Any:
        """One launch."""
        x, weight, bias, *added = arrays
        residual = added[0] if added else None
        return functions.linear(
            x, weight, bias, activation=self.activation, residual=residual, **options
        )

    def theirs(self, torch: Any, arrays: Sequence[Any]) -> tuple[Callable[..., Any], list[Any]]:
        """`F.linear` and what follows it."""
        function = linear_function(torch, self.product.epilogue)

        def apply(x: Any, weight: Any, bias: Any, residual: Any = None) -> Any:
            return function(x, weight, bias, residual)[0]

        return apply, list(arrays)

    def judge(self, arrays: Sequence[Array]) -> Judge:
        """As of any product."""
        x, weight, bias, *added = arrays
        return _judge_product(self.product, x, weight, bias, *added)


@dataclass(frozen=True)
class Conv2d(Layer):
    """relu(x ∗ weight + bias) of square images and filters, half a filter of padding around."""

    images: int
    channels: int
    size: int
    filters: int
    taps: int
    stride: int
    method: Literal["im2col", "implicit"]

    name = "conv2d"

    @property
    def sizes(self) -> str:
        """Images, filters, stride and method."""
        return (
            f"{self.images}x{self.channels}x{self.size}x{self.size}, {self.filters} of "
            f"{self.taps}x{self.taps}, stride {self.stride}, {self.method}"
        )

    @property
    def product(self) -> GemmProblem:
        """Filters times patches, for each image."""
        places, depth = self.result[2] ** 2, self.channels * self.taps**2
        return GemmProblem(
            self.filters,
            places,
            depth,
            batch=self.images,
            stride_a=BROADCAST,
            epilogue=Epilogue("row", "relu"),
        )

    @property
    def shapes(self) -> list[tuple[Shape, float]]:
        """x, weight and bias."""
        weight = (self.filters, self.channels, self.taps, self.taps)
        x = (self.images, self.channels, self.size, self.size)
        return [(x, 1.0), (weight, math.prod(weight[1:]) ** -0.5), ((self.filters,), 1.0)]

    @property
    def result(self) -> Shape:
        """(images, filters, rows, columns)."""
        across = (self.size + 2 * (self.taps // 2) - self.taps) // self.stride + 1
        return self.images, self.filters, across, across

    def ours(self, functions: Any, arrays: Sequence[Any], **options: Any) -> Any:
        """By the method that the layer names."""
        geometry = {"stride": self.stride, "padding": self.taps // 2}
        return functions.conv2d(
            *arrays, method=self.method, activation="relu", **geometry, **options
        )

    def theirs(self, torch: Any, arrays: Sequence[Any]) -> tuple[Callable[..., Any], list[Any]]:
        """`F.conv2d` and a ReLU; cuDNN tries its algorithms and keeps the fastest."""
        functional, stride, padding = torch.nn.functional, self.stride, self.taps // 2

        def apply(x: Any, weight: Any, bias: Any) -> Any:
            return functional.relu(functional.conv2d(x, weight, bias, stride, padding))

        return apply, list(arrays)

    def judge(self, arrays: Sequence[Array]) -> Judge:
        """As of the product with the patches, whose sums may have any order."""
        x, weight, bias = arrays
        margin = self.taps // 2
        padded = np.pad(x, ((0, 0), (0, 0), (margin, margin), (margin, margin)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (self.taps, self.taps), (2, 3))
        seen = windows[:, :, :: self.stride, :: self.stride]
        patches = np.ascontiguousarray(np.moveaxis(seen, (4, 5), (2, 3)))
        return _judge_product(self.product, weight, patches, bias)


def _judge_product(
    problem: GemmProblem, a: Array, b: Array, bias: Array, residual: Array | None = None
) -> Judge:
    """What judges C of a product whose matrices are gapless, in every element."""
    c = canaries(problem.batch * problem.m * problem.n)
    added = None if residual is None else residual.ravel()
    inputs = Inputs(a.ravel(), b.ravel(), c, bias, "normal", 0, residual=added)
    reference = Reference(problem, inputs, "full")
    return lambda result: reference.check(np.ascontiguousarray(result).ravel())


@dataclass(frozen=True)
class Attention(Layer):
    """softmax(q · kᵀ / √size) · v for each head; with `causal` of the keys up to the query."""

    batch: int
    heads: int
    tokens: int
    size: int
    causal: bool = False

    name = "attention"

    @property
    def sizes(self) -> str:
        """Heads, tokens and their size."""
        text = f"{self.batch}x{self.heads} heads, {self.tokens} tokens of {self.size}"
        return text + ", causal" * self.causal

    @property
    def product(self) -> GemmProblem:
        """The scores of all heads; the product with the values is as large."""
        alpha = self.size**-0.5
        batch = self.batch * self.heads
        return GemmProblem(
            self.tokens, self.tokens, self.size, alpha=alpha, batch=batch, transb=True
        )

    @property
    def flops(self) -> float:
        """Those of both products, of causal attention too."""
        return 2.0 * self.product.flops

    @property
    def shapes(self) -> list[tuple[Shape, float]]:
        """q, k and v."""
        return [(self.result, 1.0)] * 3

    @property
    def result(self) -> Shape:
        """(batch, heads, tokens, size)."""
        return self.batch, self.heads, self.tokens, self.size

    def ours(self, functions: Any, arrays: Sequence[Any], **options: Any) -> Any:
        """Two batches of products with a softmax between them."""
        return functions.attention(*arrays, causal=self.causal, **options)

    def theirs(self, torch: Any, arrays: Sequence[Any]) -> tuple[Callable[..., Any], list[Any]]:
        """`F.scaled_dot_product_attention`, by the kernel that PyTorch picks."""
        attend, causal = torch.nn.functional.scaled_dot_product_attention, self.causal

        def apply(q: Any, k: Any, v: Any) -> Any:
            return attend(q, k, v, is_causal=causal)

        return apply, list(arrays)

    def judge(self, arrays: Sequence[Array]) -> Judge:
        """By running error analysis, of a softmax in as many parts as any kernel has."""
        given = [each.reshape(-1, self.tokens, self.size) for each in arrays]
        value, error = np.empty(given[0].shape), np.empty(given[0].shape)

        def attend(heads: slice) -> None:
            for number in range(heads.start, heads.stop):
                found = self._head(*(Bounded.of(each[number]) for each in given))
                value[number], error[number] = found.value, found.error

        for_each_row_block(len(value), self.tokens**2, attend)
        return Bounded(value.reshape(self.result), error.reshape(self.result)).check

    def _head(self, q: Bounded, k: Bounded, v: Bounded) -> Bounded:
        scores = q @ k.mT * Bounded.of(np.float32(self.size**-0.5))
        if self.causal:
            seen = np.tri(self.tokens, dtype=bool)
            scores = Bounded(np.where(seen, scores.value, -np.inf), scores.error)
        return scores.softmax(-(-self.tokens // LEAST_KEYS)) @ v


@dataclass(frozen=True)
class Recurrent(Layer):
    """One layer of LSTM or GRU from a state of zeros, inputs as long as the state."""

    kind: Literal["lstm", "gru"]
    steps: int
    batch: int
    size: int

    # The compiler leaves cuDNN's recurrent layers as they are.
    compiles = False

    @property
    def name(self) -> str:  # type: ignore[override]
        """The kind."""
        return self.kind

    @property
    def sizes(self) -> str:
        """Steps, batch and size."""
        return f"{self.steps} steps of {self.batch}x{self.size}"

    @property
    def _rows(self) -> int:
        return {"lstm": 4, "gru": 3}[self.kind] * self.size

    @property
    def product(self) -> GemmProblem:
        """That which projects the inputs of all steps."""
        bias = Epilogue("column")
        rows = self.steps * self.batch
        return GemmProblem(rows, self._rows, self.size, transb=True, epilogue=bias)

    @property
    def flops(self) -> float:
        """Those of the projections of inputs and of states."""
        return 2.0 * self.product.flops

    @property
    def shapes(self) -> list[tuple[Shape, float]]:
        """x, w_ih, w_hh, b_ih and b_hh."""
        weights: list[Shape] = [(self._rows, self.size)] * 2 + [(self._rows,)] * 2
        return [(self.result, 1.0), *((each, self.size**-0.5) for each in weights)]

    @property
    def result(self) -> Shape:
        """(steps, batch, size)."""
        return self.steps, self.batch, self.size

    def ours(self, functions: Any, arrays: Sequence[Any], **options: Any) -> Any:
        """The state after each step."""
        x, *weights = arrays
        return getattr(functions, self.kind)(x, None, [weights], **options)[0]

    def theirs(self, torch: Any, arrays: Sequence[Any]) -> tuple[Callable[..., Any], list[Any]]:
        """The module of that kind, whose weights lie one after the other, as cuDNN wants them."""
        x, *weights = arrays
        module = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[self.kind](self.size, self.size)
        module.to(x)
        for parameter, values in zip(module.parameters(), weights, strict=True):
            parameter.data.copy_(values)
        module.flatten_parameters()
        return lambda x: module(x)[0], [x]

    def judge(self, arrays: Sequence[Array]) -> Judge:
        """By running error analysis of each step from the state that the result has before it: over
        all steps a bound for the worst case grows beyond use."""
        steps = _lstm if self.kind == "lstm" else _gru
        x, w_ih, w_hh, b_ih, b_hh = map(Bounded.of, arrays)

        def judge(result: Array) -> Verdict:
            first = np.zeros((1, self.batch, self.size), np.float32)
            before = Bounded.of(np.concatenate((first, result[:-1])))
            return steps(x, before, w_ih, w_hh, b_ih, b_hh).check(result)

        return judge


def _lstm(
    x: Bounded, h: Bounded, w_ih: Bounded, w_hh: Bounded, b_ih: Bounded, b_hh: Bounded
) -> Bounded:
    """h after each step, given h before it; c goes on from step to step."""
    # Inputs and states may be projected by one sum.
    gates = concatenated(x, h) @ concatenated(w_ih, w_hh).mT + (b_ih + b_hh)
    i, f, g, o = gates.parts(4)
    keep, add, out = f.sigmoid(), i.sigmoid() * g.tanh(), o.sigmoid()
    c, found = Bounded.of(np.zeros_like(h.value[0])), []
    for step in range(len(h.value)):
        c = keep[step] * c + add[step]
        found.append(out[step] * c.tanh())
    return stack(found, 0)


def _gru(
    x: Bounded, h: Bounded, w_ih: Bounded, w_hh: Bounded, b_ih: Bounded, b_hh: Bounded
) -> Bounded:
    """h after each step, given h before it."""
    both = concatenated(x, h) @ concatenated(w_ih, w_hh).mT + (b_ih + b_hh)
    p, s = (x @ w_ih.mT + b_ih).parts(3)[2], (h @ w_hh.mT + b_hh).parts(3)[2]
    r, z, _ = both.parts(3)
    n = (p + r.sigmoid() * s).tanh()
    return n + z.sigmoid() * (h - n)


LAYERS: tuple[Layer, ...] = (
    Linear(64, 4096, 4096),
    Linear(4096, 1024, 4096, "gelu"),
    Linear(4096, 4096, 1024, residual=True),
    Linear(8192, 2048, 2048, "relu"),
    *(
        Conv2d(*sizes, method)
        for sizes in (
            (32, 3, 224, 64, 7, 2),
            (32, 64, 56, 64, 3, 1),
            (32, 128, 28, 128, 3, 1),
            (32, 256, 14, 256, 3, 1),
            (32, 256, 56, 64, 1, 1),
        )
        for method in ("im2col", "implicit")
    ),
    Attention(16, 16, 512, 64),
    Attention(8, 16, 1024, 64, causal=True),
    Recurrent("lstm", 64, 64, 512),
    Recurrent("gru", 64, 64, 512),
)
