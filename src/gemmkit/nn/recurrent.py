"""Recurrent layers: one product projects the inputs of all steps, one a step the state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gemmkit.errors import UsageError
from gemmkit.nn import fused
from gemmkit.nn.linear import linear
from gemmkit.nn.namespace import (
    Array,
    Namespace,
    expect_one_type,
    expect_shape,
    namespace,
    shape_of,
)
from gemmkit.nn.products import project, recorded
from gemmkit.ops.tracing import recordable

# Of one layer: input and state weights, and their biases, which may be missing.
LayerWeights = Sequence[Array]


@recordable()
def lstm(
    x: Array,
    state: tuple[Array, Array] | None,
    weights: Sequence[LayerWeights],
    *,
    batch_first: bool = False,
    precision: str | None = None,
    device: Any = None,
) -> tuple[Array, tuple[Array, Array]]:
    """Long short-term memory, as PyTorch's `LSTM` computes it.

    With the gates i, f, g, o of x · w_ihᵀ + b_ih + h · w_hhᵀ + b_hh, in this order:
    c ← σ(f)·c + σ(i)·tanh(g) and h ← σ(o)·tanh(c) (Hochreiter and Schmidhuber 1997; Gers et al.
    2000). The product with the state is added to the gates in place, with β = 1. Work is
    launched on the caller's current stream.

    Args:
        x: (steps, batch, inputs), or (batch, steps, inputs) with `batch_first`.
        state: h and c before the first step, each (layers, batch, hidden); None for zeros.
        weights: for each layer w_ih (4·hidden, inputs), w_hh (4·hidden, hidden) and, or none of
            them, b_ih and b_hh (4·hidden): what `all_weights` of PyTorch's module holds,
            if it runs in one direction.
        batch_first: whether the batch comes before the steps in x and in the output.
        precision: as for `gemmkit.matmul`.
        device: as for `gemmkit.matmul`.

    Returns:
        The last layer's h after each step, (steps, batch, hidden) or with `batch_first` as x is,
        and (h, c) of all layers after the last step, each (layers, batch, hidden).

    Raises:
        UsageError: shapes or types do not fit, or there is no step.
    """
    xp, how = namespace(x), {"precision": precision, "device": device}
    hidden, before = _hidden(weights), state if state is not None else (None, None)
    if len(before) != 2:
        raise UsageError("the state of an LSTM is a pair, h and c")
    h0, c0 = (_initial(xp, x, each, len(weights), hidden, batch_first) for each in before)

    def layer(number: int, inputs: Array) -> tuple[list[Array], list[Array]]:
        w_ih, w_hh, b_ih, b_hh = _checked(weights[number], number, 4, inputs, hidden)
        gates = linear(inputs, w_ih, b_ih if b_ih is None else b_ih + b_hh, **how)
        h, c, seen = h0[number], c0[number], []
        for step in range(inputs.shape[batch_first]):
            own = gates[:, step] if batch_first else gates[step]
            own = project(h, w_hh, total=own, **how)
            h, c = fused.lstm_cell(own, c) or _lstm_cell(xp, own, c)
            seen.append(h)
        return seen, [h, c]

    output, (h, c) = _stacked(xp, x, len(weights), layer, batch_first)
    return output, (h, c)


@recordable()
def gru(
    x: Array,
    state: Array | None,
    weights: Sequence[LayerWeights],
    *,
    batch_first: bool = False,
    precision: str | None = None,
    device: Any = None,
) -> tuple[Array, Array]:
    """Gated recurrent units, as PyTorch's `GRU` computes them.

    With the parts r, z, n of p = x · w_ihᵀ + b_ih and s = h · w_hhᵀ + b_hh, in this order:
    r = σ(p_r + s_r), z = σ(p_z + s_z), n = tanh(p_n + r·s_n) and h ← n + z·(h - n) (Cho et al.
    2014, with the reset gate after the product). Work is launched on the caller's current stream.

    Args:
        x: (steps, batch, inputs), or (batch, steps, inputs) with `batch_first`.
        state: h before the first step, (layers, batch, hidden); None for zeros.
        weights: for each layer w_ih (3·hidden, inputs), w_hh (3·hidden, hidden) and, or none of
            them, b_ih and b_hh (3·hidden): what `all_weights` of PyTorch's module holds,
            if it runs in one direction.
        batch_first: whether the batch comes before the steps in x and in the output.
        precision: as for `gemmkit.matmul`.
        device: as for `gemmkit.matmul`.

    Returns:
        The last layer's h after each step, (steps, batch, hidden) or with `batch_first` as x is,
        and h of all layers after the last step, (layers, batch, hidden).

    Raises:
        UsageError: shapes or types do not fit, or there is no step.
    """
    xp, how = namespace(x), {"precision": precision, "device": device}
    hidden = _hidden(weights)
    h0 = _initial(xp, x, state, len(weights), hidden, batch_first)

    def layer(number: int, inputs: Array) -> tuple[list[Array], list[Array]]:
        w_ih, w_hh, b_ih, b_hh = _checked(weights[number], number, 3, inputs, hidden)
        projected = linear(inputs, w_ih, b_ih, **how)
        h, seen = h0[number], []
        for step in range(inputs.shape[batch_first]):
            p = projected[:, step] if batch_first else projected[step]
            s = linear(h, w_hh, b_hh, **how)
            (h,) = fused.gru_cell(p, s, h) or _gru_cell(xp, p, s, h)
            seen.append(h)
        return seen, [h]

    output, (h,) = _stacked(xp, x, len(weights), layer, batch_first)
    return output, h


def _lstm_cell(xp: Namespace, gates: Array, c: Array) -> list[Array]:
    """h and c after a step, by the arrays' own library."""
    hidden = c.shape[1]
    i, f = _split(xp.sigmoid(gates[:, : 2 * hidden]), 2)
    g, o = _split(gates[:, 2 * hidden :], 2)
    c = f * c + i * xp.tanh(g)
    return [xp.sigmoid(o) * xp.tanh(c), c]


def _gru_cell(xp: Namespace, p: Array, s: Array, h: Array) -> list[Array]:
    """h after a step, by the arrays' own library."""
    hidden = h.shape[1]
    r, z = _split(xp.sigmoid(p[:, : 2 * hidden] + s[:, : 2 * hidden]), 2)
    n = xp.tanh(p[:, 2 * hidden :] + r * s[:, 2 * hidden :])
    return [n + z * (h - n)]


def _stacked(
    xp: Namespace,
    x: Array,
    layers: int,
    layer: Callable[[int, Array], tuple[list[Array], list[Array]]],
    batch_first: bool,
) -> tuple[Array, list[Array]]:
    """Layers on top of each other: the last one's output, and each part of the state of all."""
    ends = []
    for number in range(layers):
        seen, end = layer(number, x)
        x = xp.stack(seen, 1 if batch_first else 0)
        ends.append(end)
    return x, [xp.stack(list(part), 0) for part in zip(*ends, strict=True)]


def _split(gates: Array, count: int) -> list[Array]:
    """Views of the gates' equal parts along the last axis."""
    size = gates.shape[-1] // count
    return [gates[..., number * size : (number + 1) * size] for number in range(count)]


def _hidden(weights: Sequence[LayerWeights]) -> int:
    """The size of the state.

    Raises:
        UsageError: there are no weights, or those of the state are no matrix.
    """
    if not weights or any(len(layer) not in (2, 4) for layer in weights):
        raise UsageError("weights are, for each layer, w_ih and w_hh, or these and b_ih and b_hh")
    return shape_of(weights[0][1], "w_hh of layer 0", rank=2)[1]


def _checked(
    layer: LayerWeights, number: int, gates: int, x: Array, hidden: int
) -> tuple[Array, Array, Array | None, Array | None]:
    """A layer's weights and biases.

    Raises:
        UsageError: one has another shape than it must have, or another type than the inputs.
    """
    rows, inputs = gates * hidden, x.shape[-1]
    wanted = {"w_ih": (rows, inputs), "w_hh": (rows, hidden), "b_ih": (rows,), "b_hh": (rows,)}
    for (name, shape), array in zip(wanted.items(), layer, strict=False):
        expect_shape(array, f"{name} of layer {number}", shape)
        if not recorded(x, array):
            expect_one_type(**{"x": x, f"{name} of layer {number}": array})
    w_ih, w_hh, *biases = layer
    return (w_ih, w_hh, *biases) if biases else (w_ih, w_hh, None, None)


def _initial(
    xp: Namespace, x: Array, given: Array | None, layers: int, hidden: int, batch_first: bool
) -> Array:
    """One part of the state before the first step, (layers, batch, hidden).

    Raises:
        UsageError: it has another shape, or x has no steps.
    """
    first, second, _ = shape_of(x, "x", rank=3)
    steps, batch = (second, first) if batch_first else (first, second)
    if steps == 0:
        raise UsageError(f"x has the shape {tuple(x.shape)}, with no step")
    wanted = (layers, batch, hidden)
    if given is None:
        return xp.zeros(wanted, x)
    expect_shape(given, "state", wanted)
    if not recorded(x, given):
        expect_one_type(x=x, state=given)
    return given
