"""Grouped and ragged products of arrays on a GPU that the emulator plays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from emulated_gpu import GpuArray, install
from gemmkit.ops import grouped_gpu, ragged_gpu, ragged_launches


class Tables(grouped_gpu.Tables):
    """Tables that need no copies through pinned memory, with maps as the emulator has them."""

    def _copy(self, table, nbytes, stream, pool):
        address = pool.of(stream, False, nbytes, 0).workspace
        there = self._context.device.memory.view(address, table.nbytes).view(table.dtype)
        there[:] = table
        for name in {"map_a", "map_b", "map_c"}.intersection(table.dtype.names or ()):
            for number, words in enumerate(table[name]):
                there[name][number] = np.frombuffer(self._context._map(words.tobytes()), np.uint64)
        return address


class Offsets(GpuArray):
    """Whole numbers on the emulated GPU."""

    @property
    def __cuda_array_interface__(self):
        values = self.values
        return {
            "data": (values.ctypes.data, False),
            "typestr": values.dtype.str,
            "shape": values.shape,
            "strides": None if values.flags.c_contiguous else values.strides,
        }


class Maps:
    """What `MapsOfSizes` does, by the emulated GPU."""

    gpu = None

    def __init__(self, like):
        self.like = like

    def encoded(self, sizes):
        return self.gpu.encode(replace(self.like, sizes=sizes))


def install_groups(patch, choose_ragged):
    """As `install`, with `choose_ragged` in place of what dispatch has under this name."""
    gpu, library = install(patch)
    tables = Tables(gpu)
    patch.setattr(Maps, "gpu", gpu)
    patch.setattr(ragged_launches, "MapsOfSizes", Maps)
    for module in (grouped_gpu, ragged_gpu):
        patch.setattr(module, "context_of", lambda ordinal: gpu)
    for module in (grouped_gpu, ragged_launches):
        patch.setattr(module, "tables_of", lambda context: tables)
    patch.setattr("gemmkit.devices.tensor_maps.driver_encoded", gpu.encode)
    patch.setattr(ragged_gpu, "choose_ragged", choose_ragged)
    patch.setattr(grouped_gpu, "choose_alike", gpu.choose)
    return gpu, library
