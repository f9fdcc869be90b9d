"""What epilogues ask of the warps that finish a tile's results, and of memory."""

from __future__ import annotations

from gemmkit.kernels.work import Finishing, Work
from gemmkit.problem import GemmProblem

# Instructions per result that each part of an epilogue adds in the PTX of `gemm_wgmma`, for results
# of 16 bits: loads, conversions, arithmetic and, of what is kept, stores; and `OPERANDS` of them
# where any matrix or bias has to be found for a result.
ACTIVATIONS = {"relu": 2.0, "gelu": 20.0, "gelu_tanh": 8.0, "silu": 5.0}
OPERANDS, ADDEND, BIAS, RESIDUAL, AUXILIARY, SCALE = 2.9, 0.3, 2.2, 2.7, 3.9, 1.0
# Of these, an exponential and a reciprocal.
SPECIAL = {"gelu": 2.0, "gelu_tanh": 2.0, "silu": 2.0}


def finishing(problem: GemmProblem, work: Work, first_tiles: int) -> Finishing:
    """What the problem's epilogue adds to the write-back of such tiles, of which a CTA has the
    first ones at once."""
    epilogue, addend = problem.epilogue, problem.beta != 0
    activation = str(epilogue.activation)
    scaled = epilogue.scale != 1 or epilogue.scale_result
    operands = addend or bool(epilogue.bias) or epilogue.residual or epilogue.auxiliary
    issue = (
        ACTIVATIONS.get(activation, 0.0)
        + OPERANDS * operands
        + ADDEND * addend
        + BIAS * bool(epilogue.bias)
        + RESIDUAL * epilogue.residual
        + AUXILIARY * epilogue.auxiliary
        + SCALE * scaled
    )
    read = (addend + epilogue.residual) * problem.out_item_bytes
    return Finishing(
        issue=issue,
        special=SPECIAL.get(activation, 0.0),
        waits=float(bool(epilogue.bias)),
        first_bytes=float(first_tiles * work.rows * work.columns * read),
    )
