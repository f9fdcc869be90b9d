"""Matrix products that Triton compiled for an H100: right to the bit, and clean but for what
current hardware makes up for. `benchmarks/triton_ptx.py` made the files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from launching import ENGINE, Executor, parsed
from numpy.typing import NDArray

from gemmkit.emulator import DeviceMemory, LaunchRequest, load
from gemmkit.emulator.isa.tensor_maps import encoded
from gemmkit.emulator.numerics.model import multiply
from gemmkit.emulator.numerics.rules import SIZES, Kind
from gemmkit.findings import Finding
from gemmkit.tensor_maps import Element, TensorMap

FOLDER = Path(__file__).parent / "data" / "triton"
KERNELS = json.loads((FOLDER / "kernels.json").read_text("utf-8"))["kernels"]
# Of a type of PyTorch: its name in PTX, and that of a map's elements.
TYPES: dict[str, tuple[str, Element]] = {
    "bfloat16": ("bf16", "bfloat16"),
    "float16": ("f16", "float16"),
    "float32": ("tf32", "float32"),
    "float8_e4m3fn": ("e4m3", "uint8"),
}
# M, N and K have tails in each tile, and are multiples of 16, as the compiler was told.
SHAPE = (144, 208, 144)
# Triton initializes some mbarriers of specialized warps at the start of the tile of A, and never
# uses them there.
KNOWN = {"specialized_bf16": {"invalid mbarrier", "mbarrier overwritten", "write after write"}}
Bits = NDArray[np.unsignedinteger]


def operands(name: str) -> tuple[Bits, Bits]:
    """Raw bits of A and B."""
    m, n, k = SHAPE
    of, _ = TYPES[KERNELS[name]["type"]]
    rng = np.random.default_rng(len(name))
    found = []
    for shape in ((m, k), (k, n)):
        numbers = rng.standard_normal(shape).astype(np.float32)
        if of == "f16":
            found.append(numbers.astype(np.float16).view(np.uint16))
        elif of == "e4m3":
            found.append(
                rng.integers(0, 0x70, shape).astype(np.uint8) | (numbers < 0) * np.uint8(128)
            )
        else:
            bits = numbers.view(np.uint32)
            found.append(bits if of == "tf32" else (bits >> 16).astype(np.uint16))
    return found[0], found[1]


def run(
    executor: Executor, name: str, *, sanitize: bool = False
) -> tuple[Bits, tuple[Finding, ...]]:
    """C, and the findings."""
    about, ptx = KERNELS[name], (FOLDER / f"{name}.ptx").read_text("utf-8")
    m, n, k = SHAPE
    a, b = operands(name)
    c = np.full((m, n), -1, np.dtype(f"i{2 if about['out'].endswith('16') else 4}"))
    memory, held = DeviceMemory(), []
    for each, array in (("a", a), ("b", b), ("c", c)):
        held.append(memory.allocate(array.nbytes, each))
        memory.view(held[-1].address, array.nbytes)[:] = array.reshape(-1).view(np.uint8)
    _, flow = parsed(ptx)
    types = [TYPES[about["type"]][1]] * 2 + [TYPES[about["out"]][1]]
    values: list[int | bytes] = [each.address for each in held]
    if about["maps"]:
        values = []
        for array, at, of, each in zip((a, b, c), held, types, about["maps"], strict=True):
            rows, columns = array.shape
            strides, box = (array.strides[0],), tuple(reversed(each["box"]))
            tensor_map = TensorMap(
                at.address, of, (columns, rows), strides, box, swizzle=each["swizzle"]
            )
            values += [encoded(tensor_map), rows, columns, columns, 1]
    # Two pointers to scratch memory, which none needs, come last.
    sizes = len(flow.kernel.parameters) - len(values) - 2
    values += [*(m, n, k)[-sizes:], 0, 0]
    packed = bytearray(flow.kernel.parameter_bytes)
    for value, parameter in zip(values, flow.kernel.parameters.values(), strict=True):
        raw = value if isinstance(value, bytes) else value.to_bytes(parameter.size, "little")
        packed[parameter.offset : parameter.offset + parameter.size] = raw
    (threads,) = re.findall(r"\.reqntid (\d+)", ptx)
    tiles = -(-m // about["tile"][0]), -(-n // about["tile"][1])
    grid = (*(about["grid"] if len(about["grid"]) == 1 else tiles), 1, 1)[:3]
    request = LaunchRequest(grid, (int(threads), 1, 1), bytes(packed), about["shared_bytes"])
    if sanitize:
        execution = load(ptx, flow.kernel.name).run(request, memory, sanitize=True)
    else:
        execution = executor.run(ptx, flow, request, memory)
    result = memory.view(held[2].address, c.nbytes).view(f"u{c.itemsize}").reshape(c.shape)
    return result.copy(), execution.findings


def wanted(name: str) -> Bits:
    """C as an H100's tensor cores add it: from zero, one wgmma after another along k."""
    a, b = operands(name)
    of, out = TYPES[KERNELS[name]["type"]][0], KERNELS[name]["out"]
    kind = Kind("wgmma", of, of, "f32", 32 // SIZES[of])
    sums = np.zeros((a.shape[0], b.shape[1]), np.uint32)
    for start in range(0, a.shape[1], kind.depth):
        steps = slice(start, start + kind.depth)
        sums = multiply(kind, (9, 0), a[:, steps], b[steps], sums)
    if out == "float16":
        return sums.view(np.float32).astype(np.float16).view(np.uint16)
    if out == "bfloat16":
        # To nearest even.
        return (sums + np.uint32(0x7FFF) + (sums >> 16 & 1) >> 16).astype(np.uint16)
    return sums


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.sample(4)
def test_a_product_is_right_to_the_bit(name: str) -> None:
    result, _ = run(ENGINE, name)
    assert np.array_equal(result, wanted(name))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.sample(4)
def test_a_product_is_clean(name: str) -> None:
    result, findings = run(ENGINE, name, sanitize=True)
    assert np.array_equal(result, wanted(name))
    unforgiven = {each.kind for each in findings if not each.forgiven_by}
    assert unforgiven == KNOWN.get(name, set())
    # cp.async or an mbarrier's initialization, with no fence for the asynchronous proxy.
    forgiven = {each.kind for each in findings if each.forgiven_by}
    assert forgiven == {"mbarrier not visible" if KERNELS[name]["maps"] else "missing proxy fence"}


@pytest.mark.gpu
@pytest.mark.parametrize("name", KERNELS)
def test_a_gpu_computes_the_same(name: str) -> None:
    from gpu_executor import GPU

    result, _ = run(GPU, name)
    assert np.array_equal(result, wanted(name))
