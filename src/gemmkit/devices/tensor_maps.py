"""Tensor maps in the driver's encoding, for a GPU."""

from __future__ import annotations

from typing import get_args

from gemmkit.devices.cuda_errors import cuda_errors, result
from gemmkit.tensor_maps import Element, TensorMap

# The places of both in the driver's enumerations.
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_L2_PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}


def driver_encoded(tensor_map: TensorMap) -> bytes:
    """The 128 bytes that a kernel on a GPU takes for a map, by `cuTensorMapEncodeTiled`.

    Raises:
        DeviceError: there is no driver, or it refuses the map.
    """
    with cuda_errors("encoding a tensor map"):
        from cuda.bindings import driver

        wide, narrow = driver.cuuint64_t, driver.cuuint32_t
        encoded = result(
            driver.cuTensorMapEncodeTiled(
                driver.CUtensorMapDataType(get_args(Element).index(tensor_map.element)),
                narrow(tensor_map.rank),
                tensor_map.address,
                [wide(each) for each in tensor_map.sizes],
                [wide(each) for each in tensor_map.strides],
                [narrow(each) for each in tensor_map.box],
                [narrow(each) for each in tensor_map.element_strides],
                driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
                driver.CUtensorMapSwizzle(_SWIZZLES[tensor_map.swizzle]),
                driver.CUtensorMapL2promotion(_L2_PROMOTIONS[tensor_map.l2]),
                driver.CUtensorMapFloatOOBfill(int(tensor_map.fill_nan)),
            )
        )
        return b"".join(int(word).to_bytes(8, "little") for word in encoded.opaque)
