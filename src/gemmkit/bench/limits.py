"""Limits for counters, such as `bank_conflicts == 0`, and what one launch says of them."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from gemmkit.analysis.explain.derived import PREDICTED, figures
from gemmkit.analysis.explain.facts import Facts
from gemmkit.analysis.metric_list import metric_list
from gemmkit.analysis.model import predict
from gemmkit.analysis.occupancy import launch_occupancy
from gemmkit.bench.count import Counters
from gemmkit.bench.run import make_record, verdict_fields
from gemmkit.bench.workload import Workload
from gemmkit.check_record import CheckRecord, CheckVerdict, LimitRecord
from gemmkit.cxx.expressions import Expression
from gemmkit.devices.device import Launch
from gemmkit.errors import DeviceError, UsageError, nearest
from gemmkit.gpu import GpuSpec
from gemmkit.jit.binary import Binary
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.asked import Asked
from gemmkit.kernels.fitting import fitting
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import LaunchPlan, TileConfig
from gemmkit.problem import GemmProblem, Shape
from gemmkit.record import Record
from gemmkit.verify import Verdict

# Where limits hold if nothing else is asked for: a tenth of a second on the emulator.
LIMITS_AT = "256x256x256"

_RELATIONS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_RELATION = re.compile(r"<=|>=|==|(?<!<)<(?!<)|(?<!>)>(?!>)")
_SIZES = ("M", "N", "K")
_SHORT_NAMES = tuple(name for name, each in vars(Counters).items() if isinstance(each, property))


@dataclass(frozen=True, slots=True)
class Limit:
    """`left relation right`: formulas over counters and M, N and K, compared as real numbers."""

    text: str
    left: Expression
    relation: str
    right: Expression

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Read one limit, such as `load_sectors <= 5*M*N*K/32`.

        Counters are those of `Counters`, by their short names, and every metric of
        `gemmkit counters`. The operators and functions are those of `Expression`, but for `/`,
        which does not round.

        Raises:
            UsageError: it is not a comparison of two expressions, or a counter does not exist.
        """
        parts = _RELATION.split(text)
        if len(parts) != len(("left", "right")) or not all(part.strip() for part in parts):
            raise UsageError(
                f"'{text}' is not a limit: write a counter, one of <= >= == < >, and a value, such "
                "as 'bank_conflicts == 0' or 'load_sectors <= 5*M*N*K/32'"
            )
        left, right = (_real(Expression.parse(part)) for part in parts)
        names = left.names | right.names
        known = _counter_names()
        for name in sorted(names - known - set(_SIZES)):
            near = nearest(name, known, 3)
            hint = f": did you mean {' or '.join(near)}?" if near else ""
            raise UsageError(
                f"limit '{text}': there is no counter '{name}'{hint} (`gemmkit counters` lists all)"
            )
        if not names & known:
            raise UsageError(
                f"limit '{text}' names no counter (`gemmkit counters` lists all), such as "
                "load_sectors or bank_conflicts"
            )
        return cls(text.strip(), left, _RELATION.findall(text)[0], right)

    @property
    def counters(self) -> frozenset[str]:
        """The counters in it."""
        return (self.left.names | self.right.names) - set(_SIZES)

    def against(self, values: Mapping[str, float]) -> LimitRecord:
        """Whether it is met by these values of counters and sizes; not by a counter without one.

        Raises:
            UsageError: a formula divides by zero.
        """
        if not self.counters <= values.keys():
            return LimitRecord(limit=self.text, relation=self.relation, met=False)
        left, right = (float(each.evaluate(values)) for each in (self.left, self.right))
        met = _RELATIONS[self.relation](left, right)
        return LimitRecord(
            limit=self.text, relation=self.relation, met=met, value=left, bound=right
        )


def limits_problem(
    kernel: Kernel,
    config: TileConfig,
    gpu: GpuSpec,
    shape: Shape | None,
    asked: Asked,
) -> GemmProblem:
    """The problem at which limits are tested: of `shape`, or the nearest to 256³ that it accepts.


    Raises:
        UnsupportedProblem: the kernel refuses it.
    """
    problem = asked.problem(shape or LIMITS_AT, kernel)
    if shape is None:
        return fitting(kernel, problem, gpu, config)
    return kernel.lay_out(problem)


def limits_record(
    blank: CheckRecord,
    limits: Sequence[Limit],
    kernel: Kernel,
    config: TileConfig,
    plan: LaunchPlan,
    workload: Workload,
    cache_dir: Path | None,
) -> CheckRecord:
    """Launch once and hold the counters to the limits; a wrong result says more than they do.

    Raises:
        CompileError: the kernel does not compile.
        UsageError: a formula divides by zero, or registers are asked for and not known.
    """
    binary = compile_plan(plan, workload.device.spec.arch, cache_dir=cache_dir)
    blank = msgspec.structs.replace(
        blank, environment={**workload.environment, "compiler": binary.compiler}
    )
    try:
        launch, seen = workload.run(binary, plan)
    except DeviceError as error:
        workload.printed = error.printed
        return msgspec.structs.replace(blank, verdict="failed", detail=str(error))
    record = make_record(kernel, config, plan, binary, workload, launch, seen, None, None)
    values = _values(
        limits, record, _facts(limits, kernel, config, plan, binary, workload, launch, seen)
    )
    judged = tuple(each.against(values) for each in limits)
    verdict: CheckVerdict = "ok" if all(each.met for each in judged) else "limit missed"
    return msgspec.structs.replace(
        blank,
        verdict=verdict if record.correct else "wrong result",
        detail=record.check,
        **verdict_fields(seen, record.diagnosis),
        note=seen.note,
        limits=judged,
        emulation_seconds=record.emulation_seconds,
    )


def _facts(
    limits: Sequence[Limit],
    kernel: Kernel,
    config: TileConfig,
    plan: LaunchPlan,
    binary: Binary,
    workload: Workload,
    launch: Launch,
    verdict: Verdict,
) -> Facts:
    """What metrics are derived from; with a prediction only where a limit names one."""
    board, problem = workload.device.spec, workload.problem
    resident = prediction = None
    if binary.resources is not None and plan.blocks:
        resident = launch_occupancy(plan, binary, board)
    fits = resident is not None and resident.blocks_per_sm and problem.flops
    if fits and any(each.counters & _predicted() for each in limits):
        prediction = predict(kernel, problem, board, config=config, binary=binary)
    return Facts(
        kernel=kernel,
        config=config,
        gpu=board,
        problem=problem,
        counted=problem,
        plan=plan,
        binary=binary,
        launch=launch,
        occupancy=resident,
        prediction=prediction,
        verdict=verdict,
    )


def _values(limits: Sequence[Limit], record: Record, facts: Facts) -> dict[str, float]:
    """The values of counters and sizes by name."""
    counters, asked = Counters(record), {name for each in limits for name in each.counters}
    short = {name: float(getattr(counters, name)) for name in asked.intersection(_SHORT_NAMES)}
    problem = facts.problem
    sizes = {"M": float(problem.m), "N": float(problem.n), "K": float(problem.k)}
    return {**figures(facts), **short, **sizes}


@cache
def _counter_names() -> frozenset[str]:
    return frozenset(_SHORT_NAMES) | {each.name for each in metric_list()}


@cache
def _predicted() -> frozenset[str]:
    return frozenset(each.name for each in metric_list() if each.basis == PREDICTED)


class _RealQuotients(ast.NodeTransformer):
    """`a / b` becomes `float(a) / b`, which is not cut off."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.BinOp:
        self.generic_visit(node)
        if isinstance(node.op, ast.Div):
            node.left = ast.Call(ast.Name("float", ast.Load()), [node.left], [])
        return node


def _real(expression: Expression) -> Expression:
    # The parser keeps its trees for other uses of the same text.
    tree = _RealQuotients().visit(ast.parse(ast.unparse(expression.tree), mode="eval").body)
    return Expression(expression.text, tree, expression.names)
