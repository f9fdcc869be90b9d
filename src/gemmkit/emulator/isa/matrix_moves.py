"""What `ldmatrix`, `stmatrix` and `movmatrix` do to registers: (…, registers, lanes) of 32 bits.

Lane 4 g + t holds elements 2 t and 2 t + 1 of row g of an 8×8 matrix of 16-bit elements, in the
halves of one register (PTX ISA, "ldmatrix").
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.isa.matrix_access import ROWS

Raw = NDArray[Any]
_WORDS = 4


def distributed(words: Raw, matrices: int, *, transposed: bool) -> Raw:
    """The registers of `matrices` matrices from the rows that the lanes have, four words each."""
    rows = words.reshape(*words.shape[:-1], -1, ROWS)[..., :matrices, :]
    found = np.moveaxis(rows, -3, -1)  # (…, matrix, row, word)
    if transposed:
        found = _turned(found)
    return np.ascontiguousarray(found.reshape(*found.shape[:-2], ROWS * _WORDS))


def collected(registers: Raw, *, transposed: bool) -> Raw:
    """The inverse: four words for each lane that gives a row, 0 in other lanes."""
    matrices = registers.shape[-2]
    found = registers.reshape(*registers.shape[:-1], ROWS, _WORDS)
    if transposed:
        found = _turned(found)
    words = np.zeros((*registers.shape[:-2], _WORDS, registers.shape[-1]), registers.dtype)
    rows = np.moveaxis(found, -1, -3)  # (…, word, matrix, row)
    words[..., : ROWS * matrices] = rows.reshape(*rows.shape[:-2], ROWS * matrices)
    return words


def transposed(register: Raw) -> Raw:
    """`movmatrix`: (…, lanes) to the register of the transposed matrix."""
    found = _turned(register.reshape(*register.shape[:-1], ROWS, _WORDS))
    return np.ascontiguousarray(found.reshape(register.shape))


def _turned(rows: Raw) -> Raw:
    """Transpose matrices that are (…, 8 rows, 4 words)."""
    halves = np.ascontiguousarray(rows.astype("<u4")).view("<u2")
    return np.ascontiguousarray(np.swapaxes(halves, -1, -2)).view("<u4").astype(rows.dtype)
