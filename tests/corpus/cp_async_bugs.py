"""Bugs planted alike in every kernel that copies tiles by cp.async through several stages."""

from __future__ import annotations

from mutation import Mutation

from gemmkit.problem import GemmProblem

STAGES_PROBLEM = GemmProblem(64, 64, 32)

_WAIT = "cp_async_wait<STAGES - 2>();"


def waiting_bugs(
    kernel: str, barrier: str, file: str = "", problem: GemmProblem = STAGES_PROBLEM
) -> tuple[Mutation, ...]:
    """Bugs in how threads wait for copies: of the copying thread, or of those that read the tile.

    Args:
        kernel: its name.
        barrier: the line with the barrier that follows the wait.
        file: the include with the main loop, if it is not in the kernel's own file.
        problem: of whole tiles, and as many steps as the buffer needs.
    """
    changes = {
        "no wait": (_WAIT, ""),
        "wait for one group too few": (_WAIT, "cp_async_wait<STAGES - 1>();"),
        "no commit": ("cp_async_commit();", ""),
        "no barrier after the wait": (barrier, "//"),
        # The condition is for the barrier that follows.
        "barrier before the wait": (_WAIT, f"__syncthreads(); {_WAIT} if (false)"),
    }
    return tuple(
        Mutation(
            name=name,
            kernel=kernel,
            problem=problem,
            old=old,
            new=new,
            expects=("racecheck",),
            file=file,
        )
        for name, (old, new) in changes.items()
    )


def copies_past_the_matrix(
    kernel: str,
    problem: GemmProblem = GemmProblem(65, 64, 8),  # noqa: B008
) -> Mutation:
    """Copies that read bytes where they should write zeros."""
    return Mutation(
        name="copies read past the matrix",
        kernel=kernel,
        problem=problem,
        old="const int bytes = inside ? 4 * VEC : 0;",
        new="const int bytes = 4 * VEC;",
        expects=("memcheck",),
        file="cp_async.cuh",
    )
