"""Bugs planted in the rungs with one result per thread and no shared memory."""

from __future__ import annotations

from mutation import WRONG_RESULT, Mutation

from gemmkit.epilogue import Epilogue
from gemmkit.problem import GemmProblem

_GUARD = "if (row >= M || col >= N) return;"

PLANTED = (
    # --- naive_uncoalesced --------------------------------------------------------------------
    Mutation(
        name="row guard one too far",
        kernel="naive_uncoalesced",
        problem=GemmProblem(17, 9, 5),
        old=_GUARD,
        new="if (row > M || col >= N) return;",
        expects=("memcheck",),
    ),
    Mutation(
        name="column guard one too far",
        kernel="naive_uncoalesced",
        problem=GemmProblem(17, 9, 5),
        old=_GUARD,
        new="if (row >= M || col > N) return;",
        expects=("memcheck",),
    ),
    Mutation(
        name="C read although beta is 0",
        kernel="naive_uncoalesced",
        problem=GemmProblem(17, 9, 5),
        old="beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;",
        new="alpha * sum + beta * *c;",
        expects=("initcheck",),
    ),
    Mutation(
        name="C walked with the pitch of A",
        kernel="naive_uncoalesced",
        problem=GemmProblem(17, 9, 21),
        old="element(C, ldc, row, col)",
        new="element(C, lda, row, col)",
        expects=("memcheck",),
    ),
    Mutation(
        name="row and k swapped in A",
        kernel="naive_uncoalesced",
        problem=GemmProblem(9, 9, 33),
        old="element(A, lda, row, k)",
        new="element(A, lda, k, row)",
        expects=("memcheck",),
    ),
    Mutation(
        name="one step too many along k",
        kernel="naive_uncoalesced",
        problem=GemmProblem(17, 9, 5),
        old="k < K; ++k",
        new="k <= K; ++k",
        expects=("memcheck",),
    ),
    # --- naive --------------------------------------------------------------------------------
    Mutation(
        name="no column guard",
        kernel="naive",
        problem=GemmProblem(9, 17, 5),
        old=_GUARD,
        new="if (row >= M) return;",
        expects=("memcheck",),
    ),
    Mutation(
        name="A and B read although alpha is 0",
        kernel="naive",
        problem=GemmProblem(9, 17, 5, alpha=0.0),
        old="if (alpha == 0.0f) K = 0;",
        new="",
        expects=("initcheck",),
    ),
    Mutation(
        name="first product dropped",
        kernel="naive",
        problem=GemmProblem(9, 17, 5),
        old="int k = 0; k < K",
        new="int k = 1; k < K",
        expects=(WRONG_RESULT,),
    ),
    Mutation(
        name="two blocks write the same tile",
        kernel="naive",
        problem=GemmProblem(9, 33, 5),
        old="blockIdx.x * BN",
        new="blockIdx.x / 2 * BN",
        expects=("racecheck",),
    ),
    Mutation(
        name="write-back in every step along k",
        kernel="naive",
        problem=GemmProblem(9, 17, 5, beta=0.5),
        old="sum += *element(A, lda, row, k) * *element(B, ldb, k, col);",
        new="""{
    sum += *element(A, lda, row, k) * *element(B, ldb, k, col);
    Epilogue{alpha, beta, bias}.store(element(C, ldc, row, col), sum, row, col);
  }""",
        expects=(WRONG_RESULT,),
    ),
    Mutation(
        name="alpha forgotten",
        kernel="naive",
        problem=GemmProblem(9, 17, 5, alpha=-1.5),
        old="Sum x = alpha * sum;",
        new="Sum x = sum;",
        expects=(WRONG_RESULT,),
        file="epilogue.cuh",
    ),
    Mutation(
        name="bias of the next column",
        kernel="naive",
        problem=GemmProblem(9, 17, 5, epilogue=Epilogue(bias=True)),
        old="return epilogue.bias[BIAS == ROW_BIAS ? row : col];",
        new="return epilogue.bias[BIAS == ROW_BIAS ? row : col + 1];",
        expects=("memcheck",),
        file="epilogue.cuh",
    ),
    Mutation(
        name="bias after the activation",
        kernel="naive",
        problem=GemmProblem(9, 17, 5, epilogue=Epilogue(bias=True, activation="relu")),
        old="x = activation.apply(x);",
        new=(
            "Sum late = READS_BIAS ? widened<Sum>(operands.bias()) : Sum(0);\n"
            "    x = activation.apply(x - late) + late;"
        ),
        expects=(WRONG_RESULT,),
        file="epilogue.cuh",
    ),
    Mutation(
        name="C read in the write-back although beta is 0",
        kernel="naive",
        problem=GemmProblem(9, 17, 5),
        old="if (beta != Sum(0)) old.load(c);",
        new="old.load(c);\n    if (beta * widened<Sum>(old.get(0)) > Sum(1)) return;",
        expects=("initcheck",),
        file="epilogue.cuh",
    ),
)
