"""`Making`: how a GPU makes what a kernel reads in place of a prepared operand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gemmkit.devices import driver
from gemmkit.devices.captures import is_capturing
from gemmkit.devices.context import Context
from gemmkit.devices.launcher import prepared_launches
from gemmkit.devices.packing import preparing_launches
from gemmkit.devices.patches import ROLES, Places
from gemmkit.devices.streams import finish
from gemmkit.dispatch.choose import choose
from gemmkit.errors import UsageError
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import LaunchPlan
from gemmkit.ops.compiled import compiled, step_numbers, step_places
from gemmkit.ops.placement import Step


@dataclass(frozen=True, slots=True)
class Making:
    """A form of an operand, the call's `role` ("a" or "b"): its name, its bytes, and what fills it.

    `places` are those of its launch's addresses, `numbers` the values of its other arguments.
    """

    role: str
    form: str
    nbytes: int
    context: Context
    maker: LaunchPlan
    binary: Binary
    numbers: Mapping[str, int | float]
    places: Places

    def fill(self, operand: int, form: int, stream: int) -> None:
        """Make the form from the operand, by their addresses, and wait until it is there, so that
        any stream may read it.

        Raises:
            UsageError: the stream is being captured into a graph.
            DeviceError: the launch failed.
        """
        self.refuse_capture(stream)
        addresses = dict.fromkeys(ROLES, 0) | {self.role: operand, f"prepared_{self.role}": form}
        arguments = (self.maker, self.binary, self.numbers, self.places)
        for launch in prepared_launches(self.context, *arguments):
            launch.run(tuple(addresses.values()), stream)
        finish(stream, self.context)

    def refuse_capture(self, stream: int) -> None:
        """Refuse to work on a stream that is being captured.

        Raises:
            UsageError: it is.
        """
        refuse_capture(self.role, stream)


def refuse_capture(name: str, stream: int) -> None:
    """Refuse to make something of the prepared operand `name` on a stream that is being captured.

    Raises:
        UsageError: it is.
    """
    if is_capturing(driver.capture_query(), stream):
        raise UsageError(
            f"what kernels read of the prepared operand {name} is made at the first product of a "
            "kind, which cannot be captured into a graph: multiply once before, or give its rows "
            "to gemmkit.prepare"
        )


def makings(step: Step, context: Context) -> Iterator[Making]:
    """What makes the forms that the launch of a step reads.

    Raises:
        UnsupportedProblem: no kernel takes its problem.
        CompileError, CompilerMissing: as `compile_plan`.
    """
    choice = choose(step.problem, context.spec)
    plan, binary = compiled(step.problem, choice.kernel, choice.config, context.spec)
    yield from makings_of(plan, binary, step, context)


def makings_of(plan: LaunchPlan, binary: Binary, step: Step, context: Context) -> Iterator[Making]:
    """What makes the forms that a plan for a step reads."""
    numbers, places = step_numbers(step), prepared_places(step)
    for copy, (maker, code) in zip(plan.prepared, preparing_launches(plan, binary), strict=True):
        role = step.operands["AB".index(copy.operand)]
        yield Making(role, copy.form, copy.nbytes, context, maker, code, numbers, places)


def prepared_places(step: Step) -> Places:
    """Where the addresses of a step's launches come from, those of prepared operands included."""
    first, second = step.operands
    return {
        **step_places(step),
        "prepared_a": (f"prepared_{first}", 0),
        "prepared_b": (f"prepared_{second}", 0),
    }
