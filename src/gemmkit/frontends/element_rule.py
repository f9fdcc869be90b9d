"""What the compiler is to make sure of where a source hides the element types of its matrices."""

from __future__ import annotations

from dataclasses import dataclass

from gemmkit.cxx.element_types import Asserted, element_assertions
from gemmkit.problem import GemmProblem


@dataclass(frozen=True, slots=True)
class ElementRule:
    """The parameters of a kernel that point to elements of hidden types.

    `entry` is its whole name expression; `hidden` has the number of each with its matrix.
    """

    entry: str
    hidden: tuple[tuple[int, str], ...]

    def __call__(self, problem: GemmProblem) -> str:
        """CUDA C++ that compiles if they point to elements of the problem's types."""
        return element_assertions(
            self.entry,
            [
                Asserted(
                    number,
                    matrix,
                    problem.dtype if matrix in ("A", "B") else problem.result_dtype,
                )
                for number, matrix in self.hidden
            ],
        )
