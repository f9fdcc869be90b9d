"""Launches that a board refuses: limits of CUDA, directives of the PTX, registers, clusters."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gemmkit.devices.limits import LaunchBounds, launch_bounds, refusal
from gemmkit.gpu import find_board
from gemmkit.jit.binary import Binary, Resources
from gemmkit.kernels.plan import LaunchPlan, SourceFile

RTX_3090, H100 = find_board("rtx3090"), find_board("h100")
PLAN = LaunchPlan("mine", SourceFile("", "mine.cu"), "mine", (6, 4, 1), (256, 1, 1), ())
KIB = 1024


def compiled(directives="", registers=32):
    ptx = (
        ".version 8.0\n.target sm_80\n.visible .entry other()\n.maxntid 1, 1, 1\n{ ret; }\n"
        f".visible .entry mine(\n\t.param .u64 mine_param_0\n)\n{directives}\n{{ ret; }}\n"
    )
    taken = Resources(registers=registers, spill_bytes=0, shared_bytes=0, local_bytes=0)
    return Binary(
        entry="mine", arch="sm_80", ptx=ptx, cubin=b"", resources=taken, compiler="", key=""
    )


def reason(directives="", *, registers=32, static=0, board=RTX_3090, **changes):
    return refusal(board, compiled(directives, registers), replace(PLAN, **changes), static)


def test_directives():
    binary = compiled(".maxntid 16, 16\n.reqntid 8, 8, 1\n.reqnctapercluster 2")
    assert launch_bounds(binary.ptx, "mine") == LaunchBounds(256, (8, 8, 1), (2, 1, 1))
    assert launch_bounds(binary.ptx, "other") == LaunchBounds(1)
    assert launch_bounds(binary.ptx, "absent") == LaunchBounds()


@pytest.mark.parametrize(
    ("allowed", "refused", "words"),
    [
        ({"block": (1024, 1, 1)}, {"block": (32, 33, 1)}, "1,056 threads; RTX 3090 allows 1,024"),
        (
            {"block": (1, 1, 64)},
            {"block": (1, 1, 65)},
            "block.z is 65, but must be .* 1 and 64",
        ),
        ({"grid": (1, 65535, 1)}, {"grid": (1, 65536, 1)}, "grid.y is 65,536, .* 1 and 65,535"),
        ({"grid": (1, 1, 65535)}, {"grid": (1, 1, 65536)}, "grid.z is 65,536"),
        ({"grid": (2**31 - 1, 1, 1)}, {"grid": (2**31, 1, 1)}, "grid.x is 2,147,483,648"),
        (
            {"directives": ".maxntid 256, 1, 1"},
            {"directives": ".maxntid 128, 1, 1"},
            r"128 threads per block at most \(__launch_bounds__\) and launched with 256",
        ),
        (
            {"directives": ".reqntid 256"},
            {"directives": ".reqntid 16, 16, 1"},
            r"compiled for blocks of 16×16×1 .* launched with 256×1×1",
        ),
        # 8 warps of 255 registers, each rounded up to 256; 9 warps take the room of 12.
        (
            {"registers": 255},
            {"registers": 255, "block": (288, 1, 1)},
            "288 threads of 255 registers take 98,304 .* a block has 65,536 .*LaunchOutOfRes",
        ),
        (
            {"registers": 64, "block": (1024, 1, 1)},
            {"registers": 65, "block": (1024, 1, 1)},
            r"take 73,728 registers.*add __launch_bounds__\(1024\)",
        ),
        ({"static": 48 * KIB}, {"static": 48 * KIB + 4}, "49,156 bytes of static .* 49,152 are"),
        (
            {"static": 3 * KIB, "shared_bytes": 96 * KIB},
            {"static": 3 * KIB + 4, "shared_bytes": 96 * KIB},
            "101,380 bytes of shared memory per block, 98,304 of them dynamic; RTX 3090 has "
            "101,376",
        ),
        (
            {"directives": ".reqnctapercluster 2, 2, 1", "board": H100},
            {"directives": ".reqnctapercluster 4, 2, 1", "board": H100},
            "grid of 6×4×1 blocks is not made of whole clusters of 4×2×1",
        ),
        (
            {"directives": ".reqnctapercluster 1, 1, 1"},
            {"directives": ".reqnctapercluster 2, 1, 1"},
            "clusters of blocks need compute capability 9.0, and this is 8.6",
        ),
        (
            {"directives": ".reqnctapercluster 6, 1, 1", "board": H100},
            {"directives": ".reqnctapercluster 3, 4, 1", "board": H100},
            r"cluster of 3×4×1 has 12 blocks, and 8 are what",
        ),
    ],
)
def test_each_limit_from_both_sides(allowed, refused, words):
    assert reason(**allowed) is None
    assert re.match(f"'mine': .*{words}", reason(**refused) or "")


def test_an_empty_grid_is_no_launch_and_unknown_registers_no_reason():
    assert reason(".maxntid 128", grid=(0, 1, 1)) is None
    unknown = Binary(
        entry="mine", arch="", ptx=".entry mine {}", cubin=b"", resources=None, compiler="", key=""
    )
    assert refusal(RTX_3090, unknown, replace(PLAN, block=(1024, 1, 1)), 0) is None
