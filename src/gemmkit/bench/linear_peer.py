"""The peer `linear`: `F.linear` with its epilogue as PyTorch users write it, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gemmkit.bench.baseline import Arguments, Way, steps_of, stored_steps
from gemmkit.bench.torch_peer import (
    activations,
    cuda_torch,
    on_stream,
    refuse_foreign,
    without_advice,
)
from gemmkit.bench.torch_tensors import further_tensors, operand_tensors
from gemmkit.devices.device import TimedDevice, Work
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem
from gemmkit.problem import GemmProblem
from gemmkit.verify.arithmetic import Step

EAGER, COMPILED = "eager", "compiled"

# Of x, weight, bias and residual, the last two of which may be None.
Function = Callable[[Any, Any, Any, Any], tuple[Any, ...]]


def linear_function(torch: Any, epilogue: Epilogue) -> Function:
    """scale · activation(F.linear(x, weight, bias)) + residual as PyTorch code; where the epilogue
    has an auxiliary output, the argument of the activation as a second result."""
    linear = torch.nn.functional.linear
    activate = activations(torch).get(str(epilogue.activation))
    scale, auxiliary = epilogue.scale, epilogue.auxiliary

    def apply(x: Any, weight: Any, bias: Any, residual: Any) -> tuple[Any, ...]:
        before = result = linear(x, weight, bias)
        if activate is not None:
            result = activate(result)
        if scale != 1:
            result = result * scale
        if residual is not None:
            result = result + residual
        return (result, before) if auxiliary else (result,)

    return apply


class LinearBaseline:
    """`F.linear` and what follows it, op by op and under torch.compile with its default mode.

    Results are arrays that PyTorch allocates, as they are in a program. Products are computed in
    the arithmetic of `torch_peer.in_precision`.

    Raises:
        ImportError: PyTorch is not installed.
        RuntimeError: it is, but without CUDA.
    """

    def __init__(self, device: TimedDevice) -> None:
        self._torch, self._ordinal = cuda_torch(), device.stream.device.device_id
        self.name = f"PyTorch {self._torch.__version__}"
        self._compiled: tuple[GemmProblem, Function] | None = None

    def candidates(self, problem: GemmProblem, arguments: Sequence[Arguments]) -> dict[str, Way]:
        """Both ways.

        Raises:
            UnsupportedProblem: it is not what `F.linear` computes, or not of its types.
        """
        refuse_foreign(problem)
        scaled = (problem.alpha, problem.beta) != (1, 0)
        several = problem.batch != 1 or problem.groups is not None
        if several or problem.transc or problem.epilogue.bias == "row" or scaled:
            raise UnsupportedProblem(
                "F.linear has one product with α = 1 and β = 0, a row-major result and a bias for "
                "each column"
            )
        epilogue = problem.epilogue
        eager, compiled = linear_function(self._torch, epilogue), self._compile(problem)
        text = f"F.linear, {epilogue}" if str(epilogue) != "none" else "F.linear"
        # What the compiler makes adds the bias in the product's kernel or in that of the rest.
        stored: dict[str, tuple[Step, ...]] = {
            EAGER: stored_steps(epilogue, ("product", "bias")),
            COMPILED: _stored_by_compiler(epilogue),
        }
        return {
            f"{self.name}: {text}{told}": Way(
                [self._work(problem, function, each, judged=False) for each in arguments],
                stored[choice],
                choice,
                [self._work(problem, function, each, judged=True) for each in arguments],
            )
            for choice, function, told in (
                (EAGER, eager, ", op by op"),
                (COMPILED, compiled, ", torch.compile"),
            )
        }

    def _compile(self, problem: GemmProblem) -> Function:
        """The compiled function of the last problem; one that is recompiled too often would fall
        back to running op by op."""
        if self._compiled is None or self._compiled[0] != problem:
            self._torch.compiler.reset()
            function = linear_function(self._torch, problem.epilogue)
            made = self._torch.compile(function, fullgraph=True, dynamic=False)
            self._compiled = problem, made
        return self._compiled[1]

    def _work(
        self, problem: GemmProblem, function: Function, bound: Arguments, *, judged: bool
    ) -> Work:
        torch = self._torch
        a, b, c = operand_tensors(torch, self._ordinal, problem, bound)
        further = further_tensors(torch, self._ordinal, problem, bound)
        # F.linear takes a vector.
        bias = further["bias"].view(-1) if "bias" in further else None
        given = a, b.mT, bias, further.get("residual")

        def enqueue(stream: Any) -> None:
            # The first call compiles.
            placed = on_stream(torch, stream, self._ordinal, problem.precision)
            with torch.no_grad(), placed, without_advice():
                results = function(*given)
                if judged:
                    for target, result in zip((c, further.get("auxiliary")), results, strict=False):
                        target.copy_(result)

        return enqueue


def _stored_by_compiler(epilogue: Epilogue) -> tuple[Step, ...]:
    """Steps after which what the compiler makes may store: the product, with its bias or without;
    all that follows is one kernel."""
    steps = steps_of(epilogue)
    several = steps[1:] or epilogue.residual
    if not several:
        return ()
    further = [each for each in steps if each not in ("product", "bias")] or epilogue.residual
    return ("product", "bias") if "bias" in steps and further else ("product",)
