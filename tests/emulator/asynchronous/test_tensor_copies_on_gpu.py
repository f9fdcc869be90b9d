"""Tensor copies on a GPU: the same bytes as by the plain model, with maps that the driver encodes.

The emulator's device runs the same test, so that its own part holds where there is no GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from tensor_runs import (
    TILE_BYTES,
    Bytes,
    Case,
    at_address,
    loaded,
    program,
    random_case,
    stored,
)

from gemmkit.devices.choose import open_device
from gemmkit.devices.cuda import CudaDevice
from gemmkit.devices.device import Device
from gemmkit.devices.tensor_maps import driver_encoded
from gemmkit.emulator.isa.tensor_maps import encoded
from gemmkit.jit.binary import Binary
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.plan import LaunchPlan, SourceFile
from gemmkit.tensor_maps import TensorMap


@cache
def compiled(rank: int, arch: str, *, stores: bool) -> tuple[LaunchPlan, Binary]:
    # ptxas has a register of that name.
    text = re.sub(r"%tid\b(?!\.)", "%thread", program(rank, None, stores=stores))
    source = SourceFile(text, "copy.ptx", "ptx")
    plan = LaunchPlan("copy", source, "k", (1, 1, 1), (64, 1, 1), ("A", "B", "C"))
    return plan, compile_plan(plan, arch)


def run_on(
    device: Device, encode: Callable[[TensorMap], bytes], case: Case, *, stores: bool
) -> tuple[Bytes, Bytes]:
    """The tile and the tensor's storage after a copy on a device."""
    plan, binary = compiled(case.map.rank, device.spec.arch, stores=stores)
    tile, tensor = device.upload(case.tile), device.upload(case.storage)
    map_bytes = encode(at_address(case.map, tensor.address))
    given = device.upload(np.frombuffer(map_bytes, np.uint8)), device.upload(case.packed)
    addresses = {"A": tile.address, "B": given[0].address, "C": given[1].address}
    device.launch(binary, plan, addresses)
    after, storage = np.empty(TILE_BYTES, np.uint8), np.empty_like(case.storage)
    device.download(tile, after)
    device.download(tensor, storage)
    return after, storage


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
