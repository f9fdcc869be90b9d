"""Raw bits for tensor-core instructions, and `mma.sync` run natively on whole matrices."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gemmkit.diskcache import DiskCache, default_cache_directory
from gemmkit.emulator.codegen.ir import RUNTIME_PREFIX
from gemmkit.emulator.codegen.native import runtime
from gemmkit.emulator.codegen.runtime.fused_sums import ROWS, FusedSum
from gemmkit.emulator.codegen.runtime.matrices import function_of
from gemmkit.emulator.codegen.runtime.modules import modules_for
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.isa.matrices import LANES, MatrixProduct
from gemmkit.emulator.isa.table import table
from gemmkit.emulator.numerics.formats import FORMATS, exponents_of, numbers_of
from gemmkit.emulator.numerics.rules import Capability, Kind, rules_of
from gemmkit.emulator.program import CACHE_KIND

DATA = Path(__file__).parent / "data"
Bits = NDArray[np.unsignedinteger]
MMA_FORMS = {
    opcode: form for opcode, form in table().items() if form.operation == "multiply_matrices"
}


def measured() -> Iterator[tuple[str, Kind]]:
    """The files of measured results, and the kind of each."""
    for path in sorted(DATA.glob("*.npz")):
        instruction, shape, operands, result = path.stem.split("_")
        depth = int(shape.partition("k")[2])
        yield path.stem, Kind(instruction, operands, operands, result, depth)


def results_of(name: str) -> dict[str, np.ndarray]:
    """The arrays of a file of measured results."""
    with np.load(DATA / f"{name}.npz") as data:
        return dict(data)


def form_of_kind(kind: Kind, rows: int) -> Form:
    """The `mma.sync` of a kind."""
    wanted = MatrixProduct(kind, rows)
    return next(form for form in MMA_FORMS.values() if MatrixProduct.of(form) == wanted)


def _aligned(shape: tuple[int, ...], dtype: type) -> NDArray:
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(nbytes + 64, np.uint8)
    return raw[-raw.ctypes.data % 64 :][:nbytes].view(dtype).reshape(shape)


@cache
def _function(name: str, pointers: int, numbers: int = 0) -> ctypes._CFuncPtr:
    full, cache = RUNTIME_PREFIX + name, DiskCache(default_cache_directory(CACHE_KIND))
    modules = [*modules_for([full]), *([name] if numbers else [])]
    runtime().require(modules, [full], cache)
    kinds = [ctypes.c_void_p] * pointers + [ctypes.c_int64] * numbers
    return ctypes.CFUNCTYPE(None, *kinds)(runtime().addresses[full])


def registers_of(product: MatrixProduct, a: Bits, b: Bits, c: Bits) -> Bits:
    """The registers of A, B and C, (registers, lanes), from whole matrices."""
    parts = []
    packed = (product.packed, product.packed, product.packed_sums)
    for fragment, matrix, count in zip(product.fragments, (a, b, c), packed, strict=True):
        numbers = fragment.scatter(matrix)
        if count > 1:
            shifts = np.arange(count, dtype=np.uint32)[:, None] * np.uint32(32 // count)
            grouped = numbers.astype(np.uint32).reshape(-1, count, LANES) << shifts
            numbers = np.bitwise_or.reduce(grouped, axis=-2)
        parts.append(numbers)
    return np.concatenate(parts)


def multiply_natively(form: Form, capability: Capability, a: Bits, b: Bits, c: Bits) -> Bits:
    """D of an `mma.sync`, computed by the engine's runtime."""
    product = MatrixProduct.of(form)
    results, total = product.counts[0], sum(product.counts)
    held = _aligned((total, LANES), np.uint64 if product.kind.a == "f64" else np.uint32)
    held[results:] = registers_of(product, a, b, c)
    function = _function(function_of(form, capability), total)
    function(*(held[number].ctypes.data for number in range(total)))
    sums = MatrixProduct(product.kind, product.rows).numbers(
        [*held[results:-results], *held[:results]]
    )
    return product.fragments[2].gather(sums[2])


def fuse_natively(kind: Kind, capability: Capability, a: Bits, b: Bits, c: Bits) -> Bits:
    """D of 16 rows and any number of columns, by the fused sums of the engine's runtime."""
    rules = rules_of(kind, capability)
    result, columns = FORMATS[kind.result], c.shape[1]
    left, right, sums = (
        _aligned(shape, np.float32)
        for shape in ((kind.depth, ROWS), (columns, kind.depth), (columns, ROWS))
    )
    of_left, of_right = _aligned(left.shape, np.int16), _aligned(right.shape, np.uint32)
    for raw, of, numbers, places in ((a.T, kind.a, left, of_left), (b.T, kind.b, right, of_right)):
        found = numbers_of(raw, FORMATS[of])
        numbers[:] = found
        exponents = np.where(found == 0, -4000, exponents_of(found, FORMATS[of]))
        exponents = np.where(np.isfinite(found), exponents, 8000) & 0xFFFF
        places[:] = exponents if places is of_right else exponents.astype(np.uint16).view(np.int16)
    of_right |= of_right << np.uint32(16)
    sums[:] = numbers_of(c.T, result)
    function = _function(FusedSum.of(rules, kind.result).name, 6, 2)
    for start in range(0, kind.depth, rules.products):
        operands = (left[start:], of_left[start:], right[:, start:], of_right[:, start:])
        pointers = (each.ctypes.data for each in (sums, sums, *operands))
        function(*pointers, columns, 4 * kind.depth)
    if kind.result == "f32":
        return sums.T.view(np.uint32)
    halves = sums.T.astype(np.float16).view(np.uint16)
    return np.where(np.isnan(sums.T), np.uint16(result.nan), halves)
