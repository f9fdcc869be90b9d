"""`nn.lstm` and `nn.gru` against their formulas, step by step."""

from __future__ import annotations

import numpy as np
import pytest
from bounded import check, normal

from gemmkit.errors import UsageError
from gemmkit.nn import gru, lstm
from gemmkit.verify.running import Bounded, stack

STEPS, BATCH, INPUTS, HIDDEN = 4, 5, 12, 8


def weights_of(gates: int, layers: int = 1, *, biases: bool = True) -> list[list[np.ndarray]]:
    """Of PyTorch's shapes and about its sizes."""
    rows, found = gates * HIDDEN, []
    for layer in range(layers):
        shapes = [(rows, HIDDEN if layer else INPUTS), (rows, HIDDEN), (rows,), (rows,)]
        chosen = shapes if biases else shapes[:2]
        found.append([0.3 * normal(*each, seed=9 * layer + i) for i, each in enumerate(chosen)])
    return found


def bounded(layer):
    parts = [Bounded.of(each) for each in layer]
    return parts if len(parts) == 4 else [*parts, Bounded.of(0.0), Bounded.of(0.0)]


def lstm_reference(x, h0, c0, weights):
    sequence, ends = [Bounded.of(each) for each in x], []
    for layer, h, c in zip(weights, h0, c0, strict=True):
        w_ih, w_hh, b_ih, b_hh = bounded(layer)
        h, c, outputs = Bounded.of(h), Bounded.of(c), []
        for step in sequence:
            gates = (step @ w_ih.mT + (b_ih + b_hh)) + h @ w_hh.mT
            i, f, g, o = gates.parts(4)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        sequence = outputs
        ends.append((h, c))
    return stack(sequence, 0), *(stack(list(part), 0) for part in zip(*ends, strict=True))


def gru_reference(x, h0, weights):
    sequence, ends = [Bounded.of(each) for each in x], []
    for layer, h in zip(weights, h0, strict=True):
        w_ih, w_hh, b_ih, b_hh = bounded(layer)
        h, outputs = Bounded.of(h), []
        for step in sequence:
            p = (step @ w_ih.mT + b_ih).parts(3)
            s = (h @ w_hh.mT + b_hh).parts(3)
            r, z = (p[0] + s[0]).sigmoid(), (p[1] + s[1]).sigmoid()
            n = (p[2] + r * s[2]).tanh()
            h = n + z * (h - n)
            outputs.append(h)
        sequence = outputs
        ends.append(h)
    return stack(sequence, 0), stack(ends, 0)


@pytest.mark.parametrize("batch_first", [False, True])
def test_lstm_of_two_layers(batch_first):
    x, h, c = (
        normal(STEPS, BATCH, INPUTS),
        normal(2, BATCH, HIDDEN),
        normal(2, BATCH, HIDDEN, seed=1),
    )
    weights = weights_of(4, 2)
    given = x.swapaxes(0, 1) if batch_first else x
    output, (last_h, last_c) = lstm(
        given, (h, c), weights, batch_first=batch_first, device="emulator"
    )
    expected, expected_h, expected_c = lstm_reference(x, h, c, weights)
    check(expected, output.swapaxes(0, 1) if batch_first else output)
    check(expected_h, last_h)
    check(expected_c, last_c)


@pytest.mark.parametrize("batch_first", [False, True])
def test_gru_of_two_layers(batch_first):
    x, h = normal(STEPS, BATCH, INPUTS), normal(2, BATCH, HIDDEN)
    weights = weights_of(3, 2)
    given = x.swapaxes(0, 1) if batch_first else x
    output, last = gru(given, h, weights, batch_first=batch_first, device="emulator")
    expected, expected_last = gru_reference(x, h, weights)
    check(expected, output.swapaxes(0, 1) if batch_first else output)
    check(expected_last, last)


def test_no_biases_and_a_state_of_zeros():
    x, zeros = normal(STEPS, BATCH, INPUTS), np.zeros((1, BATCH, HIDDEN), np.float32)
    weights = weights_of(4, biases=False)
    output, _ = lstm(x, None, weights, device="emulator")
    check(lstm_reference(x, zeros, zeros, weights)[0], output)
    weights = weights_of(3, biases=False)
    output, _ = gru(x, None, weights, device="emulator")
    check(gru_reference(x, zeros, weights)[0], output)


def test_inputs_stay_as_they_are():
    x, h, c = normal(2, BATCH, INPUTS), normal(1, BATCH, HIDDEN), normal(1, BATCH, HIDDEN, seed=1)
    weights = weights_of(4)
    for each in (x, h, c, *weights[0]):
        each.flags.writeable = False
    check(lstm_reference(x, h, c, weights)[0], lstm(x, (h, c), weights, device="emulator")[0])


@pytest.mark.parametrize(
    ("layer", "x", "state", "weights", "message"),
    [
        (lstm, normal(4, 12), None, weights_of(4), "x must have 3 dimensions"),
        (lstm, normal(0, 5, 12), None, weights_of(4), "no step"),
        (lstm, normal(4, 5, 12), None, [], "weights are, for each layer"),
        (lstm, normal(4, 5, 12), None, [weights_of(4)[0][:3]], "weights are, for each layer"),
        (lstm, normal(4, 5, 11), None, weights_of(4), r"w_ih of layer 0 .* \(32, 11\)"),
        (lstm, normal(4, 5, 12), None, weights_of(3), r"w_ih of layer 0 .* \(32, 12\)"),
        (lstm, normal(4, 5, 12), (normal(1, 5, 8),), weights_of(4), "a pair, h and c"),
        (lstm, normal(4, 5, 12), (normal(5, 8),) * 2, weights_of(4), r"state .* \(1, 5, 8\)"),
        (gru, normal(4, 5, 12), normal(2, 5, 8), weights_of(3), r"state .* \(1, 5, 8\)"),
        (gru, normal(4, 5, 12), None, weights_of(4), r"w_ih of layer 0 .* \(24, 12\)"),
    ],
)
def test_what_does_not_fit_is_refused(layer, x, state, weights, message):
    with pytest.raises(UsageError, match=message):
        layer(x, state, weights, device="emulator")
