"""The `GpuSpec` of the GPU at hand: a known board's, or one made of the driver's figures."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from gemmkit.devices.cuda_errors import result
from gemmkit.errors import DeviceError
from gemmkit.gpu import BOARDS, CAPABILITIES, ComputeCapability, GpuSpec, fp32_accumulation

_LONGEST_NAME = 256


def read_board(device: Any) -> tuple[str, GpuSpec]:
    """What the driver calls one of its devices, such as `NVIDIA H100 80GB HBM3`, and its board.

    Raises:
        DeviceError: as `spec_of`.
        RuntimeError: the driver does not answer.
    """
    from cuda.bindings import driver

    told: bytes = result(driver.cuDeviceGetName(_LONGEST_NAME, device))
    name, figures = told.partition(b"\0")[0].decode(), _Figures(device)
    capability = figures.compute_capability_major, figures.compute_capability_minor
    return name, spec_of(name, capability, figures)


class _Figures:
    """What a driver tells of a device, by its own names in small letters."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def __getattr__(self, name: str) -> int:
        from cuda.bindings import driver

        wanted = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name.upper()}")
        return int(result(driver.cuDeviceGetAttribute(wanted, self._device)))


def spec_of(name: str, capability: tuple[int, int], properties: Any) -> GpuSpec:
    """The board that a driver describes.

    Args:
        name: as the driver reports it, such as `NVIDIA H100 80GB HBM3`.
        capability: compute capability, (major, minor).
        properties: the driver's `CU_DEVICE_ATTRIBUTE_…`, by these names in small letters.

    Raises:
        DeviceError: the GPU is older than gemmkit supports.
    """
    limits = _limits(name, capability, properties)
    known = _known_board(name, limits, properties.multiprocessor_count)
    if known is not None:
        return known
    # Double data rate: two transfers a clock over the whole bus.
    bytes_per_s = 2 * properties.memory_clock_rate * 1e3 * properties.global_memory_bus_width / 8
    return GpuSpec(
        name=re.sub(r"^NVIDIA\s+(GeForce\s+)?", "", name),
        capability=limits,
        sm_count=properties.multiprocessor_count,
        clock_mhz=properties.clock_rate / 1e3,
        dram_gb_per_s=bytes_per_s / 1e9,
        l2_bytes=properties.l2_cache_size,
        fp32_accumulation=fp32_accumulation(name),
    )


def _limits(name: str, capability: tuple[int, int], properties: Any) -> ComputeCapability:
    if capability in CAPABILITIES:
        return CAPABILITIES[capability]
    major, minor = capability
    relatives = [each for each in CAPABILITIES.values() if each.major == major]
    if not relatives:
        least = ".".join(map(str, min(CAPABILITIES)))
        raise DeviceError(
            f"{name} has compute capability {major}.{minor}, which gemmkit does not know; "
            f"it needs {least} or later, or take the emulator"
        )
    # The driver reports all limits but lanes and allocation units, which a family shares.
    return replace(
        relatives[-1],
        major=major,
        minor=minor,
        max_threads_per_sm=properties.max_threads_per_multiprocessor,
        max_blocks_per_sm=properties.max_blocks_per_multiprocessor,
        shared_per_sm=properties.max_shared_memory_per_multiprocessor,
        max_shared_per_block=properties.max_shared_memory_per_block_optin,
        shared_reserved_per_block=properties.reserved_shared_memory_per_block,
        registers_per_sm=properties.max_registers_per_multiprocessor,
        registers_per_block=properties.max_registers_per_block,
        max_threads_per_block=properties.max_threads_per_block,
    )


def _known_board(name: str, limits: ComputeCapability, sm_count: int) -> GpuSpec | None:
    """The known board all of whose words are in the name, the one with most words if several."""
    words = _words(name)
    matches = [
        board
        for board in BOARDS.values()
        if board.capability == limits and board.sm_count == sm_count and _words(board.name) <= words
    ]
    return max(matches, key=lambda board: len(_words(board.name)), default=None)


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))
