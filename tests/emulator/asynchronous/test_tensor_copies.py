"""Tensor copies on each executor, against a plain model: boxes, strides, swizzles, fills."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from launching import ENGINE, ORACLE, Executor, kernel_ptx
from launching import parsed

from gemmkit.emulator import DeviceMemory, LaunchRequest, load, oracle
from gemmkit.emulator.isa.tensor_maps import encoded
from gemmkit.tensor_maps import ELEMENT_BYTES, TensorMap
