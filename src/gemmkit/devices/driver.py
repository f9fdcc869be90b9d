"""The one driver call that every launch makes, with as little on the way as Python allows.

All its arguments lie ready in memory: `cuLaunchKernelEx` takes grid, block, cluster and stream as a
struct, and the parameters of the kernel by their addresses.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

from gemmkit.kernels.plan import Dim3, LaunchPlan

# CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION and …_PROGRAMMATIC_STREAM_SERIALIZATION of cuda.h.
_CLUSTER_DIMENSION, _PROGRAMMATIC_STREAM_SERIALIZATION = 4, 6
# The first driver that records programmatic dependent launches in graphs: CUDA 12.3's.
_RECORDS_DEPENDENT_LAUNCHES = 12030


class LaunchAttribute(ctypes.Structure):
    """`CUlaunchAttribute` of cuda.h, whose value is up to three words: a cluster's size in blocks,
    or a flag."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("value", ctypes.c_uint * 3),
        # The value is a union of 64 bytes.
        ("rest", ctypes.c_char * 52),
    )


class LaunchConfiguration(ctypes.Structure):
    """`CUlaunchConfig` of cuda.h."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    )

    # The attributes but for that of starting early, which is the last one.
    ordinary_count: int

    @classmethod
    def of(cls, plan: LaunchPlan) -> LaunchConfiguration:
        """That of a plan, for the default stream as yet; a dependent launch may start early."""
        made = cls(_extents(plan.grid), _extents(plan.block), plan.requested_bytes)
        attributes = []
        if plan.cluster != (1, 1, 1):
            attributes.append(LaunchAttribute(_CLUSTER_DIMENSION, 0, _extents(plan.cluster)))
        made.ordinary_count = len(attributes)
        if plan.dependent and records_dependent_launches():
            flag = _extents((1, 0, 0))
            attributes.append(LaunchAttribute(_PROGRAMMATIC_STREAM_SERIALIZATION, 0, flag))
        if attributes:
            # The structure keeps alive what its pointer refers to.
            listed = (LaunchAttribute * len(attributes))(*attributes)
            made.attributes = ctypes.cast(listed, ctypes.POINTER(LaunchAttribute))
            made.attribute_count = len(attributes)
        return made

    def set_early(self, early: bool) -> None:
        """Whether a dependent launch may start early."""
        self.attribute_count = self.ordinary_count + early

    def with_grid(self, grid: Dim3) -> LaunchConfiguration:
        """The same for another grid, and the default stream."""
        made = type(self)(_extents(grid), self.block, self.shared_bytes)
        made.attributes, made.attribute_count = self.attributes, self.attribute_count
        made.ordinary_count = self.ordinary_count
        return made


def _extents(extents: Dim3) -> ctypes.Array[ctypes.c_uint]:
    return (ctypes.c_uint * 3)(*extents)


@cache
def library() -> ctypes.CDLL:
    """The driver's library; its calls let other Python threads run."""
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


@cache
def records_dependent_launches() -> bool:
    """Whether the driver has programmatic dependent launches that graphs can record."""
    version = ctypes.c_int()
    failed = library().cuDriverGetVersion(ctypes.byref(version))
    return not failed and version.value >= _RECORDS_DEPENDENT_LAUNCHES


def launcher() -> Any:
    """`cuLaunchKernelEx(config, function, parameters, None)`: an error's number, or 0."""
    return library().cuLaunchKernelEx


def capture_query() -> Any:
    """`cuStreamIsCapturing(stream, status)`."""
    return library().cuStreamIsCapturing
