"""cuBLAS through PyTorch, with an epilogue in kernels of its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from gemmkit.bench.baseline import Arguments, Way, stored_steps
from gemmkit.bench.groups import BATCHED, EACH, GROUPED, as_strided_batch, single_products
from gemmkit.bench.torch_groups import GroupedOperands, why_not_grouped
from gemmkit.bench.torch_scaled import ScaledOperands, refuse_unscalable, why_not_scaled
from gemmkit.bench.torch_tensors import (
    device_tensor,
    further_tensors,
    matrix_tensor,
    operand_tensors,
)
from gemmkit.devices.device import TimedDevice, Work
from gemmkit.dtypes import OPERAND_TYPES, Dtype, Precision
from gemmkit.epilogue import Custom
from gemmkit.errors import UnsupportedProblem
from gemmkit.problem import GemmProblem
from gemmkit.storage import scale_layouts
from gemmkit.verify.arithmetic import Step

_SCALE_TYPE: Dtype = "float32"


class TorchBaseline:
    """torch.addmm, or torch.baddbmm for batches, in the arithmetic of `in_precision`; both call
    cuBLAS. Of groups a call for each product, of equal ones also a batch, and of those that share n
    and k torch._grouped_mm. Of operands of 8 bits torch._scaled_mm, which calls cuBLAS or a kernel
    of CUTLASS.

    An epilogue takes kernels of its own, each of which stores its result in C.

    Raises:
        ImportError: PyTorch is not installed.
        RuntimeError: it is, but without CUDA.
    """

    def __init__(self, device: TimedDevice) -> None:
        self._torch, self._ordinal = cuda_torch(), device.stream.device.device_id
        self.name = f"cuBLAS through PyTorch {self._torch.__version__}"

    def candidates(self, problem: GemmProblem, arguments: Sequence[Arguments]) -> dict[str, Way]:
        """One way: the product, then the epilogue's parts if it has any. Of groups up to three:
        one by one, as a batch, and by a kernel for groups.

        Raises:
            UnsupportedProblem: A and C have different types, or the activation is the user's own;
                or PyTorch has no such product of 8 bits.
        """
        if problem.dtype in OPERAND_TYPES:
            return self._scaled(problem, arguments)
        refuse_foreign(problem)
        separate = "" if str(problem.epilogue) == "none" else ", epilogue in kernels of its own"
        stored = stored_steps(problem.epilogue)
        works = [self._products(problem, each) for each in arguments]
        if problem.groups is None:
            return {self.name + separate: Way(works, stored)}
        found = {f"{self.name} (torch.mm for each product){separate}": Way(works, stored, EACH)}
        if (batch := as_strided_batch(problem)) is not None:
            works = [self._products(batch, each) for each in arguments]
            found[f"{self.name} (torch.bmm){separate}"] = Way(works, stored, BATCHED)
        if not why_not_grouped(self._torch, self._ordinal, problem):
            pairs = [self._grouped_mm(problem, each) for each in arguments]
            works, judged = ([pair[place] for pair in pairs] for place in (0, 1))
            name = f"PyTorch {self._torch.__version__} (torch._grouped_mm)"
            found[name] = Way(works, choice=GROUPED, judged=judged)
        return found

    def _grouped_mm(self, problem: GemmProblem, bound: Arguments) -> tuple[Work, Work]:
        """torch._grouped_mm of copies of A and B, made now; and the same with its results in C."""

        def operands(bound: Arguments) -> GroupedOperands:
            products = [
                operand_tensors(self._torch, self._ordinal, *each)[:2]
                for each in single_products(problem, bound)
            ]
            return GroupedOperands(self._torch, *zip(*products, strict=True))

        return self._in_one_call(operands, problem, bound)

    def _in_one_call(
        self,
        copies: Callable[[Arguments], GroupedOperands],
        problem: GemmProblem,
        bound: Arguments,
    ) -> tuple[Work, Work]:
        """The products of all groups by copies made now; and the same with its results in C."""
        torch, operands = self._torch, copies(bound)
        c = [
            operand_tensors(torch, self._ordinal, *each)[2]
            for each in single_products(problem, bound)
        ]
        # They were made on another stream.
        torch.cuda.synchronize(self._ordinal)

        def work(multiply: Callable[[], Any]) -> Work:
            def enqueue(stream: Any) -> None:
                with on_stream(torch, stream, self._ordinal):
                    multiply()

            return enqueue

        return work(operands.multiply), work(lambda: operands.multiply_into(c))

    def _scaled(self, problem: GemmProblem, arguments: Sequence[Arguments]) -> dict[str, Way]:
        """torch._scaled_mm, then the epilogue's parts if it has any; of groups
        torch._scaled_grouped_mm."""
        if problem.groups is not None:
            return self._scaled_groups(problem, arguments)
        refuse_unscalable(problem)
        alone = str(problem.epilogue) in ("none", "scale_result")
        separate = "" if alone else ", epilogue in kernels of its own"
        name = f"PyTorch {self._torch.__version__} (torch._scaled_mm){separate}"
        works = [self._scaled_mm(problem, each) for each in arguments]
        return {name: Way(works, stored_steps(problem.epilogue))}

    def _scaled_groups(
        self, problem: GemmProblem, arguments: Sequence[Arguments]
    ) -> dict[str, Way]:
        torch = self._torch
        if reason := why_not_scaled(torch, self._ordinal, problem):
            raise UnsupportedProblem(
                f"torch._scaled_grouped_mm does not take these groups: {reason}"
            )
        how = {"out_dtype": torch.bfloat16, "use_fast_accum": problem.precision == "fast"}

        def operands(bound: Arguments) -> ScaledOperands:
            products = [
                (*operand_tensors(torch, self._ordinal, *each)[:2], *self._scales(*each))
                for each in single_products(problem, bound)
            ]
            return ScaledOperands(torch, *zip(*products, strict=True), **how)

        pairs = [self._in_one_call(operands, problem, each) for each in arguments]
        works, judged = ([pair[place] for pair in pairs] for place in (0, 1))
        name = f"PyTorch {torch.__version__} (torch._scaled_grouped_mm)"
        return {name: Way(works, choice=GROUPED, judged=judged)}

    def _scales(self, problem: GemmProblem, bound: Arguments) -> tuple[Any, Any]:
        """Those of A and B, 1 for an operand that has none."""
        torch, found = self._torch, scale_layouts(problem)
        scale_a, scale_b = (
            matrix_tensor(torch, self._ordinal, problem, found[name], bound[name], _SCALE_TYPE)
            if name in found
            else torch.ones((), device=f"cuda:{self._ordinal}")
            for name in ("scale_a", "scale_b")
        )
        return scale_a, scale_b

    def _scaled_mm(self, problem: GemmProblem, bound: Arguments) -> Work:
        torch = self._torch
        a, b, c = operand_tensors(torch, self._ordinal, problem, bound)
        scale_a, scale_b = self._scales(problem, bound)
        further: dict[str, Any] = {}
        if problem.epilogue.scale_result:
            further["scale_result"] = device_tensor(
                torch, self._ordinal, bound["scale_result"], (), (), _SCALE_TYPE
            )
        fast = problem.precision == "fast" and not problem.scales.of_chunks
        finish = self._finishing(problem, bound)

        def enqueue(stream: Any) -> None:
            with on_stream(torch, stream, self._ordinal):
                torch._scaled_mm(
                    *(a, b, scale_a, scale_b),
                    out_dtype=c.dtype,
                    use_fast_accum=fast,
                    out=c,
                    **further,
                )
                finish()

        return enqueue

    def _products(self, problem: GemmProblem, bound: Arguments) -> Work:
        """The product or the batch, or that of each of the groups."""
        return _in_turn([self._addmm(*each) for each in single_products(problem, bound)])

    def _addmm(self, problem: GemmProblem, bound: Arguments) -> Work:
        torch = self._torch
        a, b, c = operand_tensors(torch, self._ordinal, problem, bound)
        finish = self._finishing(problem, bound)
        multiply, add = torch.mm, torch.addmm
        if problem.batch != 1:
            multiply, add = torch.bmm, torch.baddbmm

        def enqueue(stream: Any) -> None:
            with on_stream(torch, stream, self._ordinal, problem.precision):
                if problem.beta == 0 and problem.alpha == 1:
                    multiply(a, b, out=c)
                else:
                    add(c, a, b, beta=problem.beta, alpha=problem.alpha, out=c)
                finish()

        return enqueue

    def rest(
        self, problem: GemmProblem, arguments: Sequence[Arguments], done: Sequence[Step]
    ) -> list[Work]:
        """What is left to do to each C after another library's kernel has done some steps.

        Raises:
            UnsupportedProblem: the activation is the user's own.
        """
        torch = self._torch
        if isinstance(problem.epilogue.activation, Custom):
            raise UnsupportedProblem("PyTorch has no such activation")

        def work(bound: Arguments) -> Work:
            finish = [self._finishing(*each, done) for each in single_products(problem, bound)]

            def enqueue(stream: Any) -> None:
                with on_stream(torch, stream, self._ordinal, problem.precision):
                    for each in finish:
                        each()

            return enqueue

        return [work(each) for each in arguments]

    def _finishing(
        self, problem: GemmProblem, bound: Arguments, done: Sequence[Step] = ("product",)
    ) -> Callable[[], None]:
        """What is left to do to C, in place and on the current stream, after the steps that are
        `done`."""
        torch, epilogue = self._torch, problem.epilogue
        c = operand_tensors(torch, self._ordinal, problem, bound)[2]
        further = further_tensors(torch, self._ordinal, problem, bound)
        activate = activations(torch, "_").get(str(epilogue.activation))

        def finish() -> None:
            if "bias" in further and "bias" not in done:
                c.add_(further["bias"])
            if "activation" not in done:
                if epilogue.auxiliary:
                    further["auxiliary"].copy_(c)
                if activate is not None:
                    activate(c)
            if epilogue.scale != 1:
                c.mul_(epilogue.scale)
            if epilogue.residual:
                c.add_(further["residual"])

        return finish


def _in_turn(works: Sequence[Work]) -> Work:
    """All of these as one."""

    def enqueue(stream: Any) -> None:
        for work in works:
            work(stream)

    return works[0] if len(works) == 1 else enqueue


def cuda_torch() -> Any:
    """PyTorch.

    Raises:
        ImportError: it is not installed.
        RuntimeError: it is, but without CUDA.
    """
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("this PyTorch has no CUDA")
    return torch


def refuse_foreign(problem: GemmProblem) -> None:
    """See that PyTorch has the product's types and its activation.

    Raises:
        UnsupportedProblem: it has not.
    """
    if problem.dtype in OPERAND_TYPES:
        raise UnsupportedProblem(f"gemmkit asks PyTorch for no products of {problem.dtype}")
    if problem.dtype != problem.result_dtype:
        raise UnsupportedProblem(
            f"PyTorch multiplies {problem.dtype} to {problem.dtype}, not {problem.result_dtype}"
        )
    if isinstance(problem.epilogue.activation, Custom):
        raise UnsupportedProblem("PyTorch has no such activation")


def activations(torch: Any, suffix: str = "") -> dict[str, Callable[[Any], Any]]:
    """PyTorch's functions by `Epilogue`'s names; with the suffix `_` those that work in place."""
    functions = {name: getattr(torch.ops.aten, name + suffix) for name in ("relu", "gelu", "silu")}
    return {**functions, "gelu_tanh": partial(functions["gelu"], approximate="tanh")}


@contextmanager
def on_stream(
    torch: Any, stream: Any, ordinal: int, precision: Precision = "ieee"
) -> Iterator[None]:
    """Put PyTorch's work on a stream of CUDA's, in the arithmetic of `in_precision`."""
    outer = torch.cuda.ExternalStream(int(stream.handle), device=ordinal)
    with in_precision(torch.backends.cuda.matmul, precision), torch.cuda.stream(outer):
        yield


@contextmanager
def in_precision(settings: Any, precision: Precision = "ieee") -> Iterator[None]:
    """Multiply fp32 in TF32 where that is the precision, else in IEEE arithmetic, and add up 16-bit
    products in fp32, whatever the program has set; newer releases renamed the first setting."""
    lower = precision == "tf32"
    exact: dict[str, Any] = {"allow_tf32": lower}
    if hasattr(settings, "fp32_precision"):
        exact = {"fp32_precision": "tf32" if lower else "ieee"}
    for kind in ("fp16", "bf16"):
        name = f"allow_{kind}_reduced_precision_reduction"
        if hasattr(settings, name):
            exact[name] = False
    previous = {name: getattr(settings, name) for name in exact}
    for name, value in exact.items():
        setattr(settings, name, value)
    try:
        yield
    finally:
        for name, value in previous.items():
            setattr(settings, name, value)


@contextmanager
def without_advice() -> Iterator[None]:
    """Keep PyTorch from warning that products stay in fp32, which is meant, and that a profile is
    of its last cycle, which is its only one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)
        warnings.filterwarnings("ignore", ".*Profiler clears events", UserWarning)
        yield
