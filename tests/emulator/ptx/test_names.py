"""Symbols of variables become the names that the source has."""

import pytest

from gemmkit.emulator.ptx.names import source_name


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
