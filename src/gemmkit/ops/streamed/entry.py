"""Products of host arrays that are streamed: when, on which devices, in how much memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

from gemmkit.cores import usable_cores
from gemmkit.devices.device import Device
from gemmkit.devices.streamed import StreamedDevice
from gemmkit.errors import UnsupportedType, UsageError
from gemmkit.gpu import GpuSpec
from gemmkit.loading import load
from gemmkit.ops.carriers import compute_device
from gemmkit.ops.operands import WIDEST_ACCESS, Operand
from gemmkit.ops.placement import Terms
from gemmkit.ops.request import HostOptions, Request
from gemmkit.ops.streamed.multiply import MOST_THREADS, Report, multiply
from gemmkit.ops.streamed.operands import Streamed, streamed
from gemmkit.ops.streamed.sizes import StreamProblem
from gemmkit.ops.streamed.timeline import Rates
from gemmkit.problem import GemmProblem
from gemmkit.units import bytes_text, counted

if TYPE_CHECKING:
    from gemmkit.devices.emulated import EmulatedDevice

# Of the memory that is free, what a product takes if no limit is given: other programs may need
# some meanwhile. Limits are multiples of a step, so that plans are found again.
_SHARE, _STEP = 0.9, 256 << 20
# Bytes in a second that a copy engine moves over PCIe 5.0 ×16 (measured on an H100), and that one
# thread copies in host memory.
LINK_RATE, THREAD_RATE = 54e9, 6e9
# The emulator's, roughly: so that a step takes no longer there than on a GPU.
EMULATED = Rates(to_device=5e9, to_host=5e9, product=2e9, memory=5e9, step_s=2e-3)
# A product whose speed stands for that of the tiles.
_TYPICAL_SIDE = 4096

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{letter}IB": 1024 ** (place + 1) for place, letter in enumerate("KMGT")}
_UNITS |= {f"{letter}B": 1000 ** (place + 1) for place, letter in enumerate("KMGT")}


class _Place(NamedTuple):
    """A device that takes part: the ordinal of a GPU, or an emulator."""

    ordinal: int
    emulator: EmulatedDevice | None

    def opened(self) -> StreamedDevice:
        if self.emulator is not None:
            from gemmkit.devices.streamed import StreamedEmulator

            return StreamedEmulator(self.emulator)
        load("gemmkit.devices.streamed_gpu")
        from gemmkit.devices.streamed_gpu import StreamedGpu

        return StreamedGpu(self.ordinal)


def multiply_streamed(
    request: Request, out: Operand, device: Device | str | None, options: HostOptions | None
) -> bool:
    """Compute a product of host arrays by streaming it, where that is asked for or pays.

    Returns:
        whether it was; on the emulator it is not, unless an option asks for it.

    Raises:
        UsageError: an option is not valid, or the memory is too little.
        GemmkitError: as `multiply`.
    """
    asked = options or HostOptions()
    places = _places(device, asked.devices)
    if options is None and places[0].emulator is not None:
        return False
    told = None if asked.device_memory is None else read_bytes(asked.device_memory)
    load("gemmkit.dispatch.choose", "gemmkit.dispatch.prices")
    with _reporting(asked.progress) as report:
        devices: list[StreamedDevice] = []
        product = streamed(request, out)
        try:
            for place in places:
                devices.append(place.opened())  # noqa: PERF401 (those that are open are closed)
            memory = _memory(devices, told)
            for stack in product.stacks.values():
                stack.pinned = devices[0].is_pinned(stack.array)
            rates = _rates(product, devices[0])
        except BaseException:
            for each in devices:
                each.close()
            product.close()
            raise
        multiply(product, devices, memory, rates, report)
    return True


# --- options ------------------------------------------------------------------------------------


def read_bytes(given: object) -> int:
    """An amount of memory: a number of bytes, or a text such as "8GiB" or "500 MB".

    Raises:
        UsageError: it is neither, or not positive.
    """
    found: float | None = None
    if isinstance(given, Integral) and not isinstance(given, bool):
        found = int(given)
    elif isinstance(given, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", given)
        unit = None if match is None else _UNITS.get(match[2].upper())
        found = None if match is None or unit is None else float(match[1]) * unit
    if found is None or not 1 <= found < inf:
        kind = UsageError if isinstance(given, (str, Integral)) else UnsupportedType
        raise kind(f"device_memory = {given!r}: give bytes, or a text such as '8GiB' or '500MB'")
    return int(found)


def _places(device: Device | str | None, devices: Any) -> list[_Place]:
    """The devices that take part, in their order.

    Raises:
        UsageError: `devices` are none.
        DeviceError: as `compute_device`.
    """
    own = compute_device(device)
    first = _Place(own, None) if isinstance(own, int) else _Place(0, own)
    if devices is None:
        return [first]
    if isinstance(devices, str):
        if devices != "all":
            raise UsageError(f"devices = {devices!r}: use 'all', or a list of ordinals or devices")
        if first.emulator is not None:
            return [first]
        return [_Place(ordinal, None) for ordinal in range(_gpu_count())]
    if not isinstance(devices, Sequence) or not devices:
        raise UnsupportedType(f"devices = {devices!r}: use 'all', or a list of ordinals or devices")
    found = []
    for each in devices:
        if isinstance(each, Integral) and not isinstance(each, bool):
            found.append(_Place(int(each), first.emulator))
        else:
            kept = compute_device(each)
            found.append(_Place(kept, None) if isinstance(kept, int) else _Place(0, kept))
    numbers = [each.ordinal for each in found if each.emulator is None]
    if len(numbers) > len(set(numbers)):
        raise UsageError(f"devices = {devices!r} names a GPU twice")
    if any(each.ordinal < 0 for each in found):
        raise UsageError(f"devices = {devices!r}: ordinals are 0 or more")
    if 0 < len(numbers) < len(found):
        raise UsageError("devices are either GPUs or emulators")
    return found


def _gpu_count() -> int:
    load("gemmkit.devices.context", "cuda.bindings.driver")
    from cuda.bindings import driver

    from gemmkit.devices.cuda_errors import cuda_errors, result

    with cuda_errors("counting GPUs"):
        result(driver.cuInit(0))
        return int(result(driver.cuDeviceGetCount()))


def _memory(devices: Sequence[StreamedDevice], told: int | None) -> int:
    """The memory that each device has for the product.

    Raises:
        UsageError: more is asked for than is free.
    """
    free = min(each.free_bytes() for each in devices)
    if told is None:
        most = int(_SHARE * free)
        return most // _STEP * _STEP if most > 4 * _STEP else most
    if told > free:
        raise UsageError(
            f"device_memory = {bytes_text(told)}, and {bytes_text(free)} are free on "
            f"{counted(len(devices), 'device')}"
        )
    return told


@contextmanager
def _reporting(progress: object) -> Iterator[Report | None]:
    """What `progress` means: a bar on standard error, or the user's own function.

    Raises:
        UnsupportedType: it is neither.
    """
    if progress is None or progress is False:
        yield None
    elif progress is True:
        with progress_bar() as report:
            yield report
    elif callable(progress):
        yield progress
    else:
        raise UnsupportedType(
            f"progress = {progress!r}: use True for a bar, or a function of the completed fraction"
        )


@contextmanager
def progress_bar() -> Iterator[Callable[[float], None]]:
    """A bar on standard error; on what is no terminal, only its last state is shown."""
    load("rich.console", "rich.progress")
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("gemmkit.matmul", total=1.0)
        yield lambda fraction: bar.update(task, completed=fraction)


# --- rates --------------------------------------------------------------------------------------


def _rates(product: Streamed, device: StreamedDevice) -> Rates:
    """What is expected of a device for a product: tiles are cut by that."""
    if device.emulated:
        return EMULATED
    staged = min(usable_cores(), MOST_THREADS) * THREAD_RATE
    read, written = (
        all(product.stacks[role].pinned and product.stacks[role].file is None for role in roles)
        for roles in ("ab", ("out",))
    )
    return device_rates(
        product.problem,
        product.terms,
        device.spec,
        LINK_RATE if read else min(staged, LINK_RATE),
        LINK_RATE if written else min(staged, LINK_RATE),
    )


def device_rates(
    problem: StreamProblem, terms: Terms, spec: GpuSpec, to_device: float, to_host: float
) -> Rates:
    """The rates of a board, for products of a problem's types as dispatch estimates them.

    They are those of large tiles: `step_seconds` has small ones run slower.
    """
    from gemmkit.dispatch.choose import choose

    typical = GemmProblem(
        m=_TYPICAL_SIDE,
        n=_TYPICAL_SIDE,
        k=min(max(problem.k, 1), _TYPICAL_SIDE),
        transa=problem.columns_a,
        transb=problem.columns_b,
        dtype=terms.dtype,
        out_dtype=terms.out_dtype,
        precision=terms.precision,
        alignment=WIDEST_ACCESS,
        scales=terms.scales,
    )
    seconds = choose(typical, spec).microseconds / 1e6
    rate = typical.flops / seconds if seconds else Rates().product
    return Rates(to_device, to_host, rate, 0.8e9 * spec.dram_gb_per_s)
