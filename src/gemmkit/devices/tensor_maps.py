"""Tensor maps in the driver's encoding, for a GPU."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from gemmkit.devices.cuda_errors import cuda_errors, result
from gemmkit.errors import DeviceError
from gemmkit.tensor_maps import MAP_ALIGNMENT, MAP_BYTES, Element, TensorMap

# The places of both in the driver's enumerations.
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_L2_PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}
_NO_INTERLEAVE = 0
# The first version of CUDA with tensor maps.
_SINCE = 12000
_WORD = 8

# Room for a map at an address that it may have.
_MEMORY = ctypes.c_char * (MAP_BYTES + MAP_ALIGNMENT)
_Enum, _Word, _Pointer = ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p
# (map, element type, rank, address, sizes, strides, box, element strides, interleave, swizzle, L2
# promotion, fill) -> CUresult
ENCODE = ctypes.CFUNCTYPE(
    _Enum, _Pointer, _Enum, _Word, *(_Pointer,) * 5, _Enum, _Enum, _Enum, _Enum
)


def driver_encoded(tensor_map: TensorMap) -> bytes:
    """The 128 bytes that a kernel on a GPU takes for a map, by `cuTensorMapEncodeTiled`.

    Raises:
        DeviceError: there is no driver, or it refuses the map.
    """
    with cuda_errors("encoding a tensor map"):
        return MapsOfSizes(tensor_map).encoded(tensor_map.sizes)


class MapsOfSizes:
    """The maps of tensors that differ from one in nothing but their sizes.

    All else that the driver is told lies ready, and the rules of `TensorMap` were looked at once:
    the only one of sizes is that they are from 1 to 2^32.

    Raises:
        DeviceError: there is no driver.
    """

    def __init__(self, like: TensorMap) -> None:
        strides = _array(ctypes.c_uint64, like.strides)
        boxes = [_array(_Word, each) for each in (like.box, like.element_strides)]
        # They hold what the driver is given the addresses of.
        self._kept = strides, boxes
        self._before = get_args(Element).index(like.element), like.rank, like.address
        self._after = (
            *(ctypes.addressof(each) for each in (strides, *boxes)),
            _NO_INTERLEAVE,
            _SWIZZLES[like.swizzle],
            _L2_PROMOTIONS[like.l2],
            int(like.fill_nan),
        )
        self._sizes = ctypes.c_uint64 * max(like.rank, 1)
        self._encode = _encode()

    def encoded(self, sizes: tuple[int, ...]) -> bytes:
        """The map of a tensor of these sizes, innermost dimension first.

        Raises:
            DeviceError: the driver refuses it.
        """
        # cuda.bindings gives the driver an object that need not be aligned as it requires.
        memory = _MEMORY()
        address = -(-ctypes.addressof(memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT
        held = self._sizes(*sizes)
        code = self._encode(address, *self._before, ctypes.addressof(held), *self._after)
        if code:
            with cuda_errors("encoding a tensor map"):
                from cuda.bindings import driver

                result((driver.CUresult(code),))
        return ctypes.string_at(address, MAP_BYTES)


def check_address(encoded: bytes, address: int) -> None:
    """Check that the driver's encoding of a map begins with its matrix's address.

    The driver has cuTensorMapReplaceAddress for moving a map, which would take as long as a launch.

    Raises:
        DeviceError: it does not.
    """
    if int.from_bytes(encoded[:_WORD], "little") != address:
        raise DeviceError("this driver's tensor maps do not begin with an address")


class DriverMaps:
    """The format of tensor maps on a GPU; see `MapFormat`."""

    def encoded(self, tensor_map: TensorMap) -> bytes:
        """As `driver_encoded`, a map that can be moved.

        Raises:
            DeviceError: there is no driver, or it refuses the map, or encodes maps otherwise.
        """
        found = driver_encoded(tensor_map)
        check_address(found, tensor_map.address)
        return found

    def move(self, maps: NDArray[np.uint64], addresses: NDArray[np.uint64]) -> None:
        """As `MapFormat.move`; an address in what is no map does no harm."""
        maps[:, 0] = addresses


# That of all GPUs.
DRIVER_MAPS = DriverMaps()


@cache
def _encode() -> Any:
    """The driver's function."""
    from cuda.bindings import driver

    return ENCODE(int(result(driver.cuGetProcAddress(b"cuTensorMapEncodeTiled", _SINCE, 0))))


def _array(of: Any, values: tuple[int, ...]) -> Any:
    """A C array, which has an element although a map of rank 1 has no strides."""
    return (of * max(len(values), 1))(*values)
