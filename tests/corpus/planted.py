"""The corpus of planted bugs: a list of small changes to kernels, each of which breaks one."""

from __future__ import annotations

from pathlib import Path

import planted_async
import planted_direct
import planted_grouped
import planted_hopper
import planted_rung_async
import planted_rung_skinny
import planted_rung_split
import planted_skinny
import planted_split
import planted_tensor
import planted_tiled
import planted_vector
from mutation import CONFIGS, WRONG_RESULT, Mutation

from gemmkit.bench.check import check
from gemmkit.check_record import CheckRecord
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.fitting import fitting, in_types_of
from gemmkit.problem import GemmProblem
from rung_boards import board_for, device_for

MUTATIONS: tuple[Mutation, ...] = (
    *planted_direct.PLANTED,
    *planted_tiled.PLANTED,
    *planted_vector.PLANTED,
    *planted_rung_async.PLANTED,
    *planted_rung_split.PLANTED,
    *planted_rung_skinny.PLANTED,
    *planted_tensor.PLANTED,
    *planted_hopper.PLANTED,
    *planted_async.PLANTED,
    *planted_split.PLANTED,
    *planted_skinny.PLANTED,
    *planted_grouped.PLANTED,
)


def clean_problems(kernel: str) -> dict[str, GemmProblem]:
    """Problems for an unchanged rung: partial tiles everywhere, and quads with padded rows."""
    problems = {
        "edges": GemmProblem(65, 67, 35),
        "quads": GemmProblem(68, 132, 36, -1.5, 0.5, lda=40, ldb=136, ldc=140),
    }
    rung = find_kernel(kernel)
    board = board_for(rung, find_board("rtx3090"))
    return {name: fitting(rung, in_types_of(rung, each), board) for name, each in problems.items()}


def check_mutant(mutation: Mutation, device: EmulatedDevice, folder: Path) -> CheckRecord:
    """The sanitizers' and the reference's verdict on a mutant, on the problem that shows it."""
    kernel = mutation.mutant(folder)
    config = CONFIGS[mutation.kernel]
    device = device_for(kernel, device)
    return check(kernel, [mutation.problem], config=config, device=device)[0]


def seen(record: CheckRecord) -> set[str]:
    """The checks with a finding, and `WRONG_RESULT` if the result is wrong."""
    found: set[str] = {finding.check for finding in record.findings}
    # A launch that corrupts the next one has failed, even if its own result is correct.
    wrong = record.correct is False or record.verdict == "failed"
    return found | ({WRONG_RESULT} if wrong else set())
