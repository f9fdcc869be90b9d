"""Symbols of variables become the names that the source has."""

import pytest

from gemmkit.emulator.ptx.names import kernel_name, source_name


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_ZZ13shared_tilingILi32E8EpilogueILb0E8IdentityEEviiifPKfiS4_ifPfiS4_E2As", "As"),
        ("_ZZ6kernelPfE4tile", "tile"),
        ("_ZZ6kernelPfE4tile_0", "tile"),
        ("_ZZ6kernelPfE4tile__12_", "tile"),
        ("_ZZ1fvE1E", "E"),
        ("_ZZ1fvE3E2A", "E2A"),
        ("shared", "shared"),
        ("_Z5tiles", "_Z5tiles"),
        ("_ZZ6kernelPfE", "_ZZ6kernelPfE"),
    ],
)
def test_local_names(symbol, name):
    assert source_name(symbol) == name


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("scratch", "scratch"),
        ("_ZL7scratch", "scratch"),
        ("_ZN2ns7scratchE", "ns::scratch"),
        ("_ZN5outer5inner7scratchE", "outer::inner::scratch"),
        ("_ZN12_GLOBAL__N_17scratchE", "scratch"),
        ("_ZN49_INTERNAL_0000000000000000_5_h1_cu_1234_567890abc7scratchE", "scratch"),
        ("_ZN3BoxIfE7scratchE", "_ZN3BoxIfE7scratchE"),
        ("_ZN2ns7scratch", "_ZN2ns7scratch"),
    ],
)
def test_names_in_namespaces(symbol, name):
    assert source_name(symbol) == name


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("gemm", "gemm"),
        ("_Z4gemmPKfS0_Pfi", "gemm"),
        ("_Z13shared_tilingILi32E8EpilogueILb0E8IdentityEEviiifPKfiS4_ifPfiS4_", "shared_tiling"),
        ("_ZL4gemmPf", "gemm"),
        ("_ZN2ns4gemmILi8EEEvPf", "ns::gemm"),
        ("_ZN12_GLOBAL__N_14gemmEPf", "gemm"),
        ("_Z9gemm", "_Z9gemm"),
        ("_Zplus", "_Zplus"),
    ],
)
def test_names_of_kernels(symbol, name):
    assert kernel_name(symbol) == name
