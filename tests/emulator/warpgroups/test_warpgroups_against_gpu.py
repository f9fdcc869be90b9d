"""wgmma on the engine against this machine's GPU, bit for bit: every kind, on random bits,
descriptors of every swizzling mode, both major-nesses, and A from registers.

GEMMKIT_TENSOR_RESULTS sets how many results of each kind are compared.
"""

from __future__ import annotations

import os
import zlib

import numpy as np
import pytest
from gpu_executor import GPU
from launching import ENGINE
from test_engine_against_gpu import WAYS, operands, registers
from test_warpgroup_products import KINDS, descriptor, kind_of, opcode_of
from warpgroup_programs import THREADS, TILE_BYTES, Instruction, run, tile_address

from gemmkit.emulator.numerics.rules import SIZES

pytestmark = pytest.mark.gpu

RESULTS = int(os.environ.get("GEMMKIT_TENSOR_RESULTS", "100000"))
COLUMNS = (8, 64, 208)


@pytest.mark.parametrize("types", KINDS, ids=".".join)
def test_every_kind(types: tuple[str, str, str]) -> None:
    number = 0
    per_column = RESULTS // (len(COLUMNS) * len(WAYS))
    for columns in COLUMNS:
        blocks = max(1, per_column // (64 * columns))
        for way in WAYS:
            number += 1
            rng = np.random.default_rng((zlib.crc32("".join(types).encode()), number))
            kind = kind_of(*types, saturates=types[2] == "s32" and number % 2 == 0)
            in_registers = number % 3 == 0
            majors = rng.integers(0, 2, 2).tolist()
            signs = rng.choice((1, -1), 2).tolist()
            immediates = (*signs, *majors[in_registers:] * (kind.depth == 16))
            if kind.result == "s32":
                immediates = ()
            each = Instruction(opcode_of(kind, columns), in_registers, immediates)
            width = 8 * SIZES[kind.b]
            count = TILE_BYTES * 8 // width
            tile = operands(rng, (blocks, count // 32, 32), kind.b, way)
            tile = tile.reshape(blocks, count).astype(f"u{width // 8}").view(np.uint8)
            sums = registers(rng, each.sums, 4 * blocks, kind.result, 32, way)
            sums = sums.reshape(blocks, 4, each.sums, 32).transpose(0, 1, 3, 2)
            sums = sums.reshape(blocks, THREADS, each.sums).astype(np.uint32)
            factors = registers(rng, 4, 4 * blocks, kind.a, 32, way)
            factors = factors.reshape(blocks, 4, 4, 32).transpose(0, 1, 3, 2)
            factors = factors.reshape(blocks, THREADS, 4).astype(np.uint32)
            base, words = tile_address(each), []
            for _ in range(2):
                near, far = sorted(rng.integers(1, 48, 2).tolist())
                start = base + 16 * int(rng.integers(0, 256))
                words.append(descriptor(start, 16 * near, 16 * far, int(rng.integers(0, 4))))
            adds = bool(number % 4)
            engine, gpu = (
                run(
                    executor, each, tile, sums, left=words[0], right=words[1],
                    factors=np.ascontiguousarray(factors), adds=adds,
                ).arrays[1]
                for executor in (ENGINE, GPU)
            )  # fmt: skip
            wrong = int((engine != gpu).sum())
            what = f"{each.opcode} {immediates} {way}, registers {in_registers}, add {adds}"
            assert wrong == 0, f"{what}: {wrong:,} of {engine.size:,} registers differ"
