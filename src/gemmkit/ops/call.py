"""`Call`: a product as it is asked for, before any array has been looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gemmkit.ops.request import Request, read_request

if TYPE_CHECKING:
    from gemmkit.devices.device import Device
    from gemmkit.epilogue import Epilogue

ARRAYS = ("a", "b", "out", "c", "bias", "residual", "auxiliary")


class Call(NamedTuple):
    """The arguments of `matmul`, or of `grouped_matmul` with a list for each array."""

    a: Any
    b: Any
    out: Any
    c: Any
    bias: Any
    residual: Any
    auxiliary: Any
    alpha: float
    beta: float
    epilogue: Epilogue | str | None
    out_dtype: Any = None
    stream: Any = None
    device: Device | str | None = None

    @property
    def arrays(self) -> dict[str, Any]:
        """The arrays by role; None where there is none."""
        return dict(zip(ARRAYS, self, strict=False))

    def read(self) -> Request:
        """Read its arrays and check what can be checked before anything is launched.

        Raises:
            UsageError: as `read_request`.
        """
        return read_request(
            self.arrays,
            alpha=self.alpha,
            beta=self.beta,
            epilogue=self.epilogue,
            out_dtype=self.out_dtype,
        )
