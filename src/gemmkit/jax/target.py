"""The functions that XLA calls for gemmkit's products, on the CPU and on CUDA GPUs."""

from __future__ import annotations

from typing import Any

from gemmkit.errors import UsageError
from gemmkit.jax.call_frame import Call
from gemmkit.jax.registry import gpu_array, numpy_view, place_of, register
from gemmkit.ops.libraries.dlpack import on_stream
from gemmkit.ops.matmul import matmul
from gemmkit.ops.narrow_results import SCALE_RESULT
from gemmkit.ops.prepared_operands import PreparedOperand

TARGET, PREPARED_TARGET = "gemmkit_matmul", "gemmkit_prepared_matmul"
SCALED_TARGET = "gemmkit_scaled_matmul"
# By their letters in the attribute `scaled`.
_ROLES = {"a": "scale_a", "b": "scale_b", "r": SCALE_RESULT}


def _on_host(call: Call) -> None:
    a, b, *scales, out = (numpy_view(each) for each in (*call.arguments, *call.results))
    ours, other = (letter == "t" for letter in call.attributes["layout"])
    scaled: dict[str, Any] = dict(zip(_scales(call), scales, strict=True))
    matmul(
        a.swapaxes(1, 2) if ours else a,
        b.swapaxes(1, 2) if other else b,
        out=out,
        precision=call.attributes["precision"],
        **scaled,
    )


def _on_gpu(call: Call) -> None:
    (a, b, *scales), (out,) = call.arguments, call.results
    ours, other = (letter == "t" for letter in call.attributes["layout"])
    place = place_of(out)
    scaled: dict[str, Any] = {
        role: gpu_array(each, place) for role, each in zip(_scales(call), scales, strict=True)
    }
    with on_stream(call.stream(), place[1]):
        matmul(
            gpu_array(a, place, ours),
            gpu_array(b, place, other),
            out=gpu_array(out, place),
            precision=call.attributes["precision"],
            **scaled,
        )


def _scales(call: Call) -> list[str]:
    """The roles of the arguments after A and B, where there are any."""
    return [_ROLES[letter] for letter in call.attributes.get("scaled", "")]


def _prepared_on_host(call: Call) -> None:
    a, out = (numpy_view(each) for each in (*call.arguments, *call.results))
    matmul(a, _held(call), out=out)


def _prepared_on_gpu(call: Call) -> None:
    (a,), (out,) = call.arguments, call.results
    place = place_of(out)
    with on_stream(call.stream(), place[1]):
        matmul(gpu_array(a, place), _held(call), out=gpu_array(out, place))


def _held(call: Call) -> PreparedOperand:
    """The operand of the program.

    Raises:
        UsageError: the program was made by another process.
    """
    found = PreparedOperand.held_by(call.attributes["key"])
    if found is None or found.precision != call.attributes["precision"]:
        raise UsageError("the program multiplies a prepared operand of another process")
    return found


register(TARGET, _on_host, _on_gpu)
register(SCALED_TARGET, _on_host, _on_gpu)
register(PREPARED_TARGET, _prepared_on_host, _prepared_on_gpu)
