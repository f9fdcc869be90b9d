"""`Asked`: what a user asks for of products beside their shapes, and the problems that it means."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from gemmkit.epilogue import Epilogue
from gemmkit.kernels.fitting import in_types, with_own_bias
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import GemmProblem, Shape, read_problem
from gemmkit.scales import Scales


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked for; None of what was not.

    The fields are those of `GemmProblem`, in the forms in which users give them: an epilogue in
    words, types by their short names, scales as `Scales.parse` reads them.
    """

    alpha: float | None = None
    beta: float | None = None
    epilogue: Epilogue | str | None = None
    dtype: str | None = None
    out_dtype: str | None = None
    precision: str | None = None
    scales: Scales | str | None = None
    prepared: str | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The fields by name, as functions take them that are called by users."""
        return {name: getattr(self, name) for name in NAMES}

    @property
    def is_anything(self) -> bool:
        """Whether anything at all was asked for."""
        return self != Asked()

    def problem(self, shape: Shape, kernel: Kernel | None = None) -> GemmProblem:
        """The problem of a shape, in plain layout unless it has one.

        What was not asked for is as the problem has it; for a shape that is none, α = 1, β = 0, the
        first of the kernel's types, and the epilogue of its own parameters: a bias where a user's
        kernel takes one. Without `out_dtype`, C has the type of A and B. With another type than
        float32, a problem loses its precision and its scales.

        Raises:
            UsageError: it is not a valid shape, no epilogue, or no precision or scales of this
                type.
            UnsupportedType: there is no such type.
        """
        problem = read_problem(shape)
        new = kernel is not None and not isinstance(shape, GemmProblem)
        if kernel is not None and new:
            types = kernel.types(self.dtype, self.out_dtype, self.precision)
            problem = replace(problem, **types)
        else:
            problem = in_types(problem, self.dtype, self.out_dtype, self.precision)
        epilogue = self.epilogue
        if isinstance(epilogue, str):
            epilogue = Epilogue.parse(epilogue)
        if epilogue is None and kernel is not None and new:
            epilogue = with_own_bias(kernel, problem.epilogue)
        return replace(
            problem,
            scales=problem.scales if self.scales is None else Scales.parse(self.scales),
            alpha=problem.alpha if self.alpha is None else self.alpha,
            beta=problem.beta if self.beta is None else self.beta,
            epilogue=epilogue or problem.epilogue,
            prepared=problem.prepared if self.prepared is None else self.prepared,
        )

    def of_kernel(self, groups: GemmProblem, kernel: Kernel) -> GemmProblem:
        """Groups whose types nobody has named: in those asked for, else the first of the kernel.

        Raises:
            UnsupportedType: there is no such type.
        """
        return replace(groups, **kernel.types(self.dtype, self.out_dtype, self.precision))


# What is asked for, by name.
NAMES = tuple(each.name for each in fields(Asked))
