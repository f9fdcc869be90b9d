"""`LaunchRule`: grid, block and memory of a user's kernel, and which problems fit them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gemmkit.cxx.expressions import Expression, Number, split_list
from gemmkit.errors import UsageError
from gemmkit.gpu import MAX_BLOCK, MAX_GRID, GpuSpec
from gemmkit.kernels.launch_options import Extent, LaunchOptions
from gemmkit.kernels.plan import (
    ARGUMENT_NAMES,
    LEADING_DIMENSIONS,
    SCRATCH_ARGUMENTS,
    Dim3,
    LaunchShape,
    Signature,
    TileConfig,
    names_in,
)
from gemmkit.kernels.sizes import SIZES, SizeRule
from gemmkit.problem import GemmProblem

if TYPE_CHECKING:
    from gemmkit.kernels.kernel import Kernel


class LaunchRefused(UsageError):
    """A launch that CUDA refuses on every board; the text names axis, limit and option."""


@dataclass(frozen=True)
class LaunchRule:
    """Grid, block, shared memory, and the bytes of the workspace and the number of semaphores, as
    expressions; called, it gives the launch for a problem.

    `aliases` are the kernel's own names of what it is given, such as `width` for N.
    """

    grid: tuple[Expression, ...]
    block: tuple[Expression, ...]
    shared: Expression
    workspace: Expression
    semaphores: Expression
    constants: Mapping[str, Number]
    aliases: Mapping[str, Expression] = field(default_factory=dict)

    @classmethod
    def read(
        cls,
        grid: Extent,
        block: Extent,
        launch: LaunchOptions,
        *,
        constants: Mapping[str, Number],
        signature: Signature,
        parameters: Sequence[str],
    ) -> LaunchRule:
        """Read what a user wrote; `parameters` are the kernel's own names of its signature.

        Raises:
            UsageError: it is not an expression, or one that uses unknown names; or there is memory
                without an argument for it, or the reverse.
        """
        _check_scratch(signature, launch)
        aliases = _aliases(signature, parameters)
        extents = _extents(grid, "grid"), _extents(block, "block")
        rule = cls(
            *extents,
            shared=Expression.parse(launch.shared),
            workspace=Expression.parse(launch.workspace),
            semaphores=Expression.parse(launch.semaphores),
            constants=constants,
            aliases=aliases,
        )
        rule._check_names()
        return rule

    def __call__(
        self,
        problem: GemmProblem,
        config: TileConfig,  # noqa: ARG002
        gpu: GpuSpec,  # noqa: ARG002
    ) -> LaunchShape:
        """The launch.

        Raises:
            UsageError: an expression fails.
            LaunchRefused: its result is not a valid extent.
        """
        values = self._values(problem)
        block = [
            self._within("block", axis, expression, values, 1, limit)
            for axis, expression, limit in zip("xyz", self.block, MAX_BLOCK, strict=False)
        ]
        shared = self.shared.integer(values)
        if not 0 <= shared < 2**31:
            raise LaunchRefused(
                f"a launch cannot request {shared:,} bytes of shared memory: "
                f"{self._origin('shared', self.shared, values)}"
            )
        return LaunchShape(
            template=(),
            grid=self.extents(problem),
            block=_three(block),
            shared_bytes=shared,
            workspace_bytes=self._scratch("workspace", values),
            semaphores=self._scratch("semaphores", values),
        )

    def _scratch(self, what: str, values: Mapping[str, Number]) -> int:
        expression: Expression = getattr(self, what)
        amount = expression.integer(values)
        if amount < 0:
            raise UsageError(f"{self._origin(what, expression, values)}: {amount:,} is negative")
        return amount

    def extents(self, problem: GemmProblem) -> Dim3:
        """The grid.

        Raises:
            UsageError: an expression fails.
            LaunchRefused: its result is not a valid extent.
        """
        values = self._values(problem)
        return _three(
            [
                self._within("grid", axis, expression, values, 0, limit)
                for axis, expression, limit in zip("xyz", self.grid, MAX_GRID, strict=False)
            ]
        )

    def refusal(self, problem: GemmProblem, gpu: GpuSpec) -> str | None:
        """Why CUDA refuses the launch of this problem on the board, or None.

        Raises:
            UsageError: an expression fails.
        """
        try:
            shape = self(problem, TileConfig(), gpu)
        except LaunchRefused as refused:
            return str(refused)
        values = self._values(problem)
        threads, limit = math.prod(shape.block), gpu.capability.max_threads_per_block
        if threads > limit:
            return (
                f"{threads:,} threads per block exceed the limit of {limit:,} on {gpu.name}: "
                f"{self._origin('block', None, values)}"
            )
        if problem.m and problem.n and 0 in shape.grid:
            axis = shape.grid.index(0)
            origin = self._origin("grid", self.grid[axis], values)
            return (
                f"grid.{'xyz'[axis]} is 0, and CUDA rejects an empty grid "
                f"(cudaErrorInvalidConfiguration): {origin}; "
                "round up, as in ceil_div(M,16)"
            )
        return None

    def _within(
        self,
        what: str,
        axis: str,
        expression: Expression,
        values: Mapping[str, Number],
        least: int,
        most: int,
    ) -> int:
        value = expression.integer(values)
        if least <= value <= most:
            return value
        limit = f"{value:,}, above CUDA's limit of {most:,}"
        advice = "; put the longest side on x, or loop in the kernel" if what == "grid" else ""
        if value < least:
            limit, advice = f"{value:,}, but must be between {least} and {most:,}", ""
        origin = self._origin(what, expression, values)
        raise LaunchRefused(f"{what}.{axis} is {limit}: {origin}{advice}")

    def _origin(
        self, what: str, expression: Expression | None, values: Mapping[str, Number]
    ) -> str:
        """The option that an extent comes from, and the sizes that it follows from."""
        given = getattr(self, what) if expression is None else expression
        parts = given if isinstance(given, tuple) else (given,)
        text = ",".join(each.text for each in parts)
        names = sorted(set[str]().union(*(each.names for each in parts)) - self.constants.keys())
        sizes = ", ".join(f"{name} = {values[name]:,}" for name in names)
        return f"--{what} is '{text}'" + (f", where {sizes}" if sizes else "")

    def _check_names(self) -> None:
        """Raise a UsageError for a name that no problem gives a value."""
        known = self._values(GemmProblem(1, 1, 1))
        memory = (self.shared, self.workspace, self.semaphores)
        for expression in (*self.grid, *self.block, *memory):
            unknown = sorted(expression.names - known.keys())
            if unknown:
                raise UsageError(
                    f"'{expression.text}' uses {', '.join(unknown)}; grid, block and memory "
                    f"may use {', '.join(sorted(known, key=self.constants.__contains__))}"
                )

    def _values(self, problem: GemmProblem) -> dict[str, Number]:
        sizes = {"M": problem.m, "N": problem.n, "K": problem.k, "batch": problem.batch}
        leading = {"lda": problem.lda, "ldb": problem.ldb, "ldc": problem.ldc}
        values: dict[str, Number] = {**sizes, **leading}
        own = {name: each.evaluate(values) for name, each in self.aliases.items()}
        return {**self.constants, **own, **values}


def condition_of(
    signature: Signature, rule: LaunchRule, sizes: SizeRule, refuses: str | None
) -> Callable[[GemmProblem, GpuSpec], str | None]:
    """Why a problem is refused, as a function of the problem and the board: see `Kernel`."""
    used = names_in(signature, sizes.maps)

    def condition(problem: GemmProblem, gpu: GpuSpec) -> str | None:
        reason = refuses or sizes.refusal(problem) or _not_passed(used, problem)
        if reason is not None:
            return reason
        try:
            # An empty grid is not launched, and needs no maps.
            maps = sizes.maps if sizes.maps and 0 not in rule.extents(problem) else ()
            for each in maps:
                reason = reason or each.refusal(problem)
            return reason or rule.refusal(problem, gpu)
        except UsageError as error:
            return str(error)

    return condition


def refused_launch(kernel: Kernel, problem: GemmProblem, gpu: GpuSpec) -> str | None:
    """Why the board refuses a launch that a user's kernel is given for a problem that it takes.

    None for launches that are not refused, for problems that the kernel does not take, and for
    rungs, whose launches follow from their configuration.
    """
    if not isinstance(kernel.launch, LaunchRule):
        return None
    try:
        reason = kernel.launch.refusal(problem, gpu)
    except UsageError:
        return None
    return reason if reason == kernel.accepts(problem, gpu) else None


def _not_passed(used: frozenset[str], problem: GemmProblem) -> str | None:
    """What a problem asks for that no argument passes to the kernel, or None."""
    if bool(problem.epilogue.bias) != ("bias" in used):
        has = "has an argument 'bias': choose an epilogue with a bias" if "bias" in used else (
            "has no argument 'bias'"
        )  # fmt: skip
        return f"its signature {has}"
    told = "; if one of its parameters is {}, identify it with --args"
    for name, asked, plain, more in (
        ("alpha", problem.alpha, (1.0, -1.0), ", or -1 for a kernel that subtracts" + told),
        ("beta", problem.beta, (0.0, 1.0), ", or 1 for a kernel that adds to C (--beta 1)" + told),
        *(
            (name, getattr(problem, name), (tight,), "")
            for name, tight in zip(LEADING_DIMENSIONS, problem.tight, strict=True)
        ),
    ):
        if name not in used and asked not in plain:
            only = f"so {name} can only be {plain[0]:g}{more.format(name)}"
            return f"its signature has no argument '{name}', {only}"
    return None


def _check_scratch(signature: Signature, launch: LaunchOptions) -> None:
    """Raise a UsageError for an argument without memory, or memory without an argument."""
    for name, unit in zip(SCRATCH_ARGUMENTS, ("BYTES", "COUNT"), strict=True):
        given = name in launch.given
        if given and name not in signature:
            raise UsageError(
                f"--{name} is given, but the kernel has no argument '{name}': name it in --args"
            )
        if name in signature and not given:
            raise UsageError(
                f"the kernel has an argument '{name}': give --{name} {unit}, as an expression like "
                "those of --grid"
            )


def _aliases(signature: Signature, parameters: Sequence[str]) -> dict[str, Expression]:
    """The kernel's own names of sizes and leading dimensions, with what each is given."""
    found = {}
    for text, name in zip(signature, parameters, strict=False):
        expression = Expression.parse(text)
        if name not in ("", *ARGUMENT_NAMES) and expression.names <= {*SIZES, *LEADING_DIMENSIONS}:
            found[name] = expression
    return found


def _extents(given: Extent, what: str) -> tuple[Expression, ...]:
    if isinstance(given, int):
        given = [given]
    parts = split_list(given) if isinstance(given, str) else [str(each) for each in given]
    if not 1 <= len(parts) <= 3:
        raise UsageError(
            f"--{what} '{given}' has {len(parts)} dimensions: give one to three, in x,y,z order"
        )
    return tuple(Expression.parse(part) for part in parts)


def _three(extents: Sequence[int]) -> Dim3:
    x, y, z = [*extents, 1, 1][:3]
    return x, y, z
