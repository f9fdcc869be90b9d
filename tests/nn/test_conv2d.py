"""`nn.conv2d` against the sum over taps, written out."""

from __future__ import annotations

import numpy as np
import pytest
from bounded import check, normal

from gemmkit.errors import UsageError
from gemmkit.nn import conv2d
from gemmkit.verify.running import Bounded

METHODS = ["im2col", "implicit"]


def reference(x, weight, bias, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    """Every result as the product of a patch, cut out by its indices, and a filter."""
    x = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    images, _, *room = x.shape
    filters, depth, *taps = weight.shape
    places = [
        np.arange(0, room[i] - dilation[i] * (taps[i] - 1), stride[i])[:, None]
        + dilation[i] * np.arange(taps[i])
        for i in (0, 1)
    ]
    down, across = places[0][:, None, :, None], places[1][None, :, None, :]
    patches = x[:, :, down, across]  # images, channels, height, width, rows, columns
    height, width = patches.shape[2:4]
    sizes = images, groups, depth, height * width, taps[0] * taps[1]
    rows = patches.reshape(sizes).transpose(0, 1, 3, 2, 4).reshape(*sizes[:2], sizes[3], -1)
    kernels = weight.reshape(groups, filters // groups, -1)
    result = (Bounded.of(rows) @ Bounded.of(kernels).mT).mT
    shape = images, filters, height, width
    # Sums by taps round no more often: channels + taps times at most, which k + 1 covers.
    result = Bounded(result.value.reshape(shape), result.error.reshape(shape))
    return result + Bounded.of(bias[:, None, None])


CASES = {
    "plain": ((2, 3, 9, 11), (4, 3, 3, 3), {}),
    "padded": ((2, 3, 9, 11), (4, 3, 3, 3), {"padding": (1, 1)}),
    "strided": ((1, 3, 10, 13), (4, 3, 3, 2), {"stride": (2, 3), "padding": (1, 0)}),
    "dilated": ((1, 3, 9, 12), (4, 3, 2, 3), {"dilation": (3, 2), "stride": (2, 1)}),
    "grouped": ((2, 4, 6, 7), (6, 2, 3, 3), {"groups": 2, "padding": (1, 1)}),
    "pointwise": ((2, 5, 4, 6), (3, 5, 1, 1), {}),
    "pointwise, strided": ((2, 5, 5, 6), (3, 5, 1, 1), {"stride": (2, 2)}),
    "whole image": ((2, 3, 4, 5), (6, 3, 4, 5), {}),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.sample(3)
def test_every_geometry(case, method):
    shape, weights, options = CASES[case]
    x, weight, bias = normal(*shape), normal(*weights), normal(weights[0])
    result = conv2d(x, weight, bias, **options, method=method, device="emulator")
    check(reference(x, weight, bias, **options), result)


@pytest.mark.parametrize("method", METHODS)
def test_the_activation_comes_after_the_bias_and_a_number_means_both_directions(method):
    x, weight, bias = normal(1, 3, 9, 9), normal(4, 3, 3, 3), normal(4)
    options = {"activation": "relu", "method": method, "device": "emulator"}
    result = conv2d(x, weight, bias, stride=2, padding=1, dilation=2, **options)
    check(reference(x, weight, bias, (2, 2), (1, 1), (2, 2)).relu(), result)


@pytest.mark.parametrize("method", METHODS)
def test_inputs_stay_as_they_are(method):
    x, weight = normal(1, 3, 4, 5), normal(2, 3, 2, 2)
    x.flags.writeable = weight.flags.writeable = False
    result = conv2d(x, weight, method=method, device="emulator")
    check(reference(x, weight, np.zeros(2)), result)
    assert result.flags.writeable


@pytest.mark.parametrize("method", METHODS)
def test_no_images(method):
    empty = np.zeros((0, 3, 5, 5), np.float32)
    assert conv2d(empty, normal(4, 3, 3, 3), method=method).shape == (0, 4, 3, 3)


@pytest.mark.parametrize(
    ("x", "weight", "rest", "message"),
    [
        (normal(3, 5, 5), normal(4, 3, 3, 3), {}, "x must have 4 dimensions"),
        (normal(1, 3, 5, 5), normal(4, 3, 3), {}, "weight must have 4 dimensions"),
        (normal(1, 3, 5, 5), normal(4, 2, 3, 3), {}, r"weight .* must have \(4, 3, 3, 3\)"),
        (normal(1, 3, 5, 5), normal(4, 3, 3, 3), {"bias": normal(3)}, r"bias .* \(4,\)"),
        (normal(1, 3, 5, 5), normal(4, 3, 3, 3), {"groups": 2}, "groups = 2 must divide the 3"),
        (normal(1, 3, 5, 5), normal(4, 3, 3, 3), {"dilation": 3}, "reaches over 7x7 .* 5x5"),
        (normal(1, 3, 5, 5), normal(4, 3, 3, 3), {"stride": 0}, "stride = 0 must be a number"),
        (normal(1, 3, 5, 5), normal(4, 3, 3, 3), {"stride": 1.5}, "stride = 1.5 must be a number"),
        (normal(1, 3, 5, 5), normal(4, 3, 3, 3), {"groups": 1.0}, "groups = 1.0 must divide"),
        (normal(1, 3, 5, 5), normal(4, 3, 0, 3), {}, "a filter of 0x3 elements has no taps"),
        (normal(1, 3, 5, 5), normal(4, 3, 3, 3), {"padding": (1, 1, 1)}, "padding = .* pair"),
        (normal(1, 3, 5, 5), normal(4, 3, 3, 3), {"padding": "same"}, "padding = same"),
        (normal(1, 3, 5, 5), normal(4, 3, 3, 3), {"method": "fft"}, "unknown method 'fft'"),
    ],
)
def test_what_does_not_fit_is_refused(x, weight, rest, message):
    with pytest.raises(UsageError, match=message):
        conv2d(x, weight, **rest)
