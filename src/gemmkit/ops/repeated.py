"""Products that are made again and again with other arrays of the same shapes, types and devices.

`matmul` looks at all that a launch depends on in each call. Where the caller knows most of it,
strides and addresses are left, and a call takes the host a third of the time.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from gemmkit.ops.matmul import matmul
from gemmkit.ops.product import NOTHING, further_operands, overlapping, prepared_call
from gemmkit.ops.request import Call
from gemmkit.ops.warm import LIBRARIES, Calls
from gemmkit.trials import changes

if TYPE_CHECKING:
    from collections.abc import Hashable

    from gemmkit.epilogue import Epilogue
    from gemmkit.ops.prepared import Prepared

# Strides and alignments that are kept, for each thread.
_MOST_KEPT = 64


class _Ready(threading.local):
    """What a thread has prepared; None where `matmul` makes the product each time."""

    def __init__(self) -> None:
        self.calls: Calls[Prepared | None] = Calls(_MOST_KEPT)


class Repeated:
    """`matmul` with given options, for arrays whose shapes, types and devices are those of the
    first call in every call; the caller sees to that, and that nothing watches the arrays or
    records their gradients.

    Args:
        alpha, beta, epilogue, precision: as for `matmul`; for another setting of
            `gemmkit.set_precision`, there has to be another object.
    """

    def __init__(
        self,
        *,
        alpha: float = 1,
        beta: float = 0,
        epilogue: Epilogue | str | None = None,
        precision: str | None = None,
    ) -> None:
        self._given: dict[str, Any] = {
            "alpha": alpha,
            "beta": beta,
            "epilogue": epilogue,
            "precision": precision,
        }
        self._ready = _Ready()

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any,
        new: bool,
        bias: Any = None,
        residual: Any = None,
        c: Any = None,
        scale_a: Any = None,
        scale_b: Any = None,
    ) -> None:
        """Write the product of a and b, matrices, to `out`; `new` says that this is memory of the
        caller's own, with which no operand overlaps.

        Raises:
            GemmkitError: as `matmul`.
        """
        library = LIBRARIES.get(type(a))
        key: Hashable = None
        prepared: Prepared | None = None
        calls = self._ready.calls
        addresses: tuple[int, ...] = NOTHING
        try:
            if library is not None:
                address_a, address_b, address_out, seen = library.glance_at_strides(a, b, out)
                low, further = address_a | address_b | address_out, None
                if (
                    bias is not None
                    or residual is not None
                    or c is not None
                    or scale_a is not None
                    or scale_b is not None
                ):
                    further, addresses, bits = further_operands(
                        library, address_out, (c, bias, residual, None, scale_a, scale_b, None)
                    )
                    low |= bits
                key = seen, further, low & 15
                if calls.version != changes.count:
                    calls.forget()
                prepared = calls.get(key)
        except (AttributeError, TypeError, ValueError, RuntimeError):
            # `matmul` finds out what the arrays are.
            key = None
        if library is None or prepared is None:
            self._by_matmul(key, a, b, out, bias, residual, c, scale_a, scale_b)
            return
        if not new:
            if overlapping(prepared.spans, (address_a, address_b, address_out, *addresses)):
                # They may lie in the gaps of each other, or it is refused.
                self._by_matmul(None, a, b, out, bias, residual, c, scale_a, scale_b)
                return
            library.overwritten(out)
        current = library.current_stream(prepared.ordinal)
        if prepared.plain is not None:
            prepared.plain.run_plain(address_a, address_b, address_out, current)
        else:
            prepared.launch.run((address_a, address_b, address_out, *addresses), current)

    def _by_matmul(
        self,
        key: Hashable | None,
        a: Any,
        b: Any,
        out: Any,
        bias: Any,
        residual: Any,
        c: Any,
        scale_a: Any,
        scale_b: Any,
    ) -> None:
        """The slow way, which the next call with the same key need not take."""
        beside = {
            "bias": bias,
            "residual": residual,
            "c": c,
            "scale_a": scale_a,
            "scale_b": scale_b,
        }
        matmul(a, b, out=out, **beside, **self._given)
        calls = self._ready.calls
        if key is not None and key not in calls:
            call = Call(a, b, out, auxiliary=None, **beside, **self._given)
            calls.keep(key, prepared_call(call))
