"""Tensor copies on a GPU: the same bytes as by the plain model, with maps that the driver encodes.

The emulator's device runs the same test, so that its own part holds where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from device_copies import run_on
from tensor_runs import loaded, random_case, stored

from gemmkit.devices.choose import open_device
from gemmkit.devices.cuda import CudaDevice
from gemmkit.devices.device import Device
from gemmkit.devices.tensor_maps import driver_encoded
from gemmkit.emulator.isa.tensor_maps import encoded
from gemmkit.tensor_maps import TensorMap


def compare(device: Device, encode: Callable[[TensorMap], bytes], count: int) -> None:
    for rank in range(1, 6):
        rng = np.random.default_rng((7, rank))
        for _ in range(count):
            case = random_case(rng, rank)
            tile, _ = run_on(device, encode, case, stores=False)
            assert np.array_equal(tile, loaded(case)), case.map
            case = random_case(rng, rank, stores=True)
            _, storage = run_on(device, encode, case, stores=True)
            assert np.array_equal(storage, stored(case)), case.map


def test_the_emulated_device() -> None:
    compare(open_device("emulator", "h100"), encoded, 3)


@pytest.mark.gpu
def test_a_gpu() -> None:
    device = CudaDevice()
    if device.spec.capability.major < 9:
        pytest.skip("tensor copies need compute capability 9.0")
    compare(device, driver_encoded, 60)
