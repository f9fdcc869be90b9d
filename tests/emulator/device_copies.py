"""The tensor copies of `tensor_runs` on a device: a GPU, or the emulator's."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import numpy as np
from tensor_runs import TILE_BYTES, Bytes, Case, at_address, program

from gemmkit.devices.device import Device
from gemmkit.jit.binary import Binary
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.plan import LaunchPlan, SourceFile
from gemmkit.tensor_maps import TensorMap


@cache
def compiled(
    rank: int, arch: str, *, stores: bool, reduction: str | None
) -> tuple[LaunchPlan, Binary]:
    # ptxas has a register of that name.
    text = re.sub(r"%tid\b(?!\.)", "%thread", program(rank, reduction, stores=stores))
    source = SourceFile(text, "copy.ptx", "ptx")
    plan = LaunchPlan("copy", source, "k", (1, 1, 1), (64, 1, 1), ("A", "B", "C"))
    return plan, compile_plan(plan, arch)


def run_on(
    device: Device,
    encode: Callable[[TensorMap], bytes],
    case: Case,
    *,
    stores: bool,
    reduction: str | None = None,
) -> tuple[Bytes, Bytes]:
    """The tile and the tensor's storage after a copy on a device."""
    plan, binary = compiled(case.map.rank, device.spec.arch, stores=stores, reduction=reduction)
    tile, tensor = device.upload(case.tile), device.upload(case.storage)
    map_bytes = encode(at_address(case.map, tensor.address))
    given = device.upload(np.frombuffer(map_bytes, np.uint8)), device.upload(case.packed)
    addresses = {"A": tile.address, "B": given[0].address, "C": given[1].address}
    device.launch(binary, plan, addresses)
    after, storage = np.empty(TILE_BYTES, np.uint8), np.empty_like(case.storage)
    device.download(tile, after)
    device.download(tensor, storage)
    return after, storage
