"""Compile matrix products by Triton for an H100, and keep their PTX for the tests.

    python benchmarks/triton_ptx.py       on a machine with an H100 (or H200) and Triton

It writes `tests/emulator/data/triton/NAME.ptx`, and `kernels.json` with what a launch needs. Each
kernel is run once, and must be right. Loads go through pointers (cp.async), or through tensor maps
(TMA): a tile per block, persistent, and persistent with specialized warps.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "emulator" / "data" / "triton"
SHAPE = (256, 384, 192)
BLOCKS = 3


@triton.jit
def by_pointers(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    cols = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    steps = tl.arange(0, BK)
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + steps
        x = tl.load(a + rows * K + k[None, :], mask=(rows < M) & (k[None, :] < K), other=0.0)
        y = tl.load(b + k[:, None] * N + cols, mask=(k[:, None] < K) & (cols < N), other=0.0)
        sums = tl.dot(x, y, sums)
    tl.store(c + rows * N + cols, sums.to(c.dtype.element_ty), mask=(rows < M) & (cols < N))


@triton.jit
def by_maps(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, col = tl.program_id(0) * BM, tl.program_id(1) * BN
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        sums = tl.dot(a.load([row, k]), b.load([k, col]), sums)
    c.store([row, col], sums.to(c.dtype))


@triton.jit
def persistent(
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    BLOCKS: tl.constexpr, SPECIALIZED: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(N, BN)
    tiles = tl.cdiv(M, BM) * across
    for tile in tl.range(tl.program_id(0), tiles, BLOCKS, warp_specialize=SPECIALIZED):
        row, col = tile // across * BM, tile % across * BN
        sums = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, K, BK):
            sums = tl.dot(a.load([row, k]), b.load([k, col]), sums)
        c.store([row, col], sums.to(c.dtype))


# Name: the kernel, its own constants, types of A and B and of C, tile.
KERNELS: dict[str, tuple[Any, dict[str, Any], Any, Any, tuple[int, int, int]]] = {
    "pointers_bf16": (by_pointers, {}, torch.bfloat16, torch.bfloat16, (64, 64, 64)),
    "pointers_tf32": (by_pointers, {}, torch.float32, torch.float32, (64, 64, 32)),
    "maps_bf16": (by_maps, {}, torch.bfloat16, torch.bfloat16, (128, 128, 64)),
    "maps_e4m3": (by_maps, {}, torch.float8_e4m3fn, torch.float32, (64, 64, 64)),
    "persistent_f16": (
        persistent,
        {"BLOCKS": BLOCKS, "SPECIALIZED": False},
        torch.float16,
        torch.float16,
        (64, 64, 64),
    ),
    "specialized_bf16": (
        persistent,
        {"BLOCKS": BLOCKS, "SPECIALIZED": True},
        torch.bfloat16,
        torch.bfloat16,
        (64, 64, 64),
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    launches = {}
    for name, (kernel, constants, type_in, type_out, tile) in KERNELS.items():
        m, n, k = SHAPE
        a = torch.randn(m, k, device="cuda").to(type_in)
        b = torch.randn(k, n, device="cuda").to(type_in)
        c = torch.full((m, n), float("nan"), device="cuda", dtype=type_out)
        operands, grid = (a, b, c), (triton.cdiv(m, tile[0]), triton.cdiv(n, tile[1]))
        if kernel is not by_pointers:
            boxes = ((tile[0], tile[2]), (tile[2], tile[1]), (tile[0], tile[1]))
            operands = tuple(
                TensorDescriptor(each, list(each.shape), list(each.stride()), list(box))
                for each, box in zip(operands, boxes, strict=True)
            )
        if kernel is persistent:
            grid = (BLOCKS,)
        sizes = (k,) if kernel is by_maps else (m, n, k)
        compiled = kernel[grid](*operands, *sizes, *tile, **constants, num_warps=4, num_stages=3)
        wanted = a.float() @ b.float()
        error = ((c.float() - wanted).abs().max() / wanted.abs().max()).item()
        print(f"{name}: relative error {error:.2g}", flush=True)
        if not error < 0.01:
            return 1
        (folder / f"{name}.ptx").write_text(without_paths(compiled.asm["ptx"]), "utf-8")
        maps = getattr(compiled.metadata, "tensordesc_meta", None) or []
        launches[name] = {
            "shape": SHAPE,
            "type": str(type_in).removeprefix("torch."),
            "out": str(type_out).removeprefix("torch."),
            "tile": tile,
            "grid": grid,
            "shared_bytes": compiled.metadata.shared,
            "maps": [
                {"box": each["block_size"], "swizzle": (0, 32, 64, 128)[each["swizzle"]]}
                for each in maps
            ],
        }
    about = {"triton": triton.__version__, "gpu": torch.cuda.get_device_name()}
    text = json.dumps({**about, "kernels": launches}, indent=1)
    (folder / "kernels.json").write_text(text + "\n", "utf-8")
    return 0


def without_paths(ptx: str) -> str:
    """PTX without what it says of the machine that compiled it: folders, and debug sections."""
    ptx = re.sub(r'(\.file\s+\d+\s+")[^"]*/', r"\1", ptx)
    return re.sub(r"\t\.section\t\.debug_(?:abbrev|info)\n\t\{.*?\n\t\}\n", "", ptx, flags=re.S)


if __name__ == "__main__":
    sys.exit(main())
