"""Which device to take: the GPU where one works, else the emulator, standing for some board."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Literal, get_args

from gemmkit.devices.device import Device
from gemmkit.devices.gpu_packages import packages_problem
from gemmkit.errors import DeviceError, UsageError, unknown_name
from gemmkit.gpu import DEFAULT_BOARD, GpuSpec, find_board
from gemmkit.loading import load

if TYPE_CHECKING:
    from gemmkit.emulator.schedule import Schedule

DeviceKind = Literal["auto", "cuda", "emulator"]

# cuda-bindings 13 and the binaries that gemmkit makes need a driver of that generation.
LEAST_DRIVER = 13000
PATIENCE_S = 20.0

# Warp instructions of one block; a 256×256 tile of a product with k = 16384 takes some tens of
# millions. An endless loop is reported after about ten seconds.
DEFAULT_MAX_STEPS = 1_000_000_000

NO_GPU = 100


def open_device(
    kind: DeviceKind = "auto",
    gpu: GpuSpec | str | None = None,
    *,
    threads: int | None = None,
    progress: Callable[[float], None] | None = None,
    sanitize: bool = False,
    max_steps: int | None = DEFAULT_MAX_STEPS,
    warp_seed: int = 0,
    schedule: str | None = None,
    not_written_before: Collection[str] = (),
    printf_bytes: int | None = None,
) -> Device:
    """Open a GPU or the emulator.

    Args:
        kind: "cuda", "emulator", or "auto": the GPU if there is a usable one and no other board is
            named, otherwise the emulator.
        gpu: the target board of the emulator, by default an RTX 3090.
        threads: CPU threads of the emulator, by default one per core.
        progress: called by the emulator with the completed fraction of each launch, 0 to 1.
        sanitize: whether the sanitizers of the emulator are on; a GPU has none.
        max_steps: warp instructions after which the emulator stops a block; None for no limit.
        warp_seed: shuffles the order in which the emulator runs the warps of a block; 0 keeps them
            in the order of their numbers.
        schedule: what the warps and copies of one block, or its cluster, do first on the
            emulator, and in which order: see `gemmkit.emulator.schedule`.
        not_written_before: see `EmulatedDevice`.
        printf_bytes: size of the buffer in which a GPU keeps what kernels print; lines beyond it
            are lost. By default the driver's (1 MiB). The emulator loses none.

    Raises:
        DeviceError: "cuda" was requested and there is no usable GPU; the message says why.
        UsageError: an unknown kind or board, a schedule that cannot be read, or a board that is not
            the GPU of this machine.
    """
    if kind not in get_args(DeviceKind):
        raise UsageError(unknown_name("device", kind, get_args(DeviceKind)))
    board = find_board(gpu) if gpu is not None else None
    if kind != "emulator":
        device = _open_gpu(board, required=kind == "cuda", printf_bytes=printf_bytes)
        if device is not None:
            return device
    load("gemmkit.devices.emulated")
    from gemmkit.devices.emulated import EmulatedDevice

    return EmulatedDevice(
        board or DEFAULT_BOARD,
        threads=threads,
        progress=progress,
        sanitize=sanitize,
        max_steps=max_steps,
        warp_seed=warp_seed,
        schedule=_parsed(schedule) if schedule is not None else None,
        not_written_before=not_written_before,
    )


def _open_gpu(board: GpuSpec | None, *, required: bool, printf_bytes: int | None) -> Device | None:
    """The GPU, if there is a usable one that is the board (if one is named)."""
    problem = gpu_problem()
    if problem is not None:
        if required:
            raise DeviceError(f"no usable GPU: {problem}; `--device emulator` needs none")
        return None
    load("gemmkit.devices.cuda")
    from gemmkit.devices.cuda import CudaDevice

    try:
        device = CudaDevice(printf_bytes=printf_bytes)
    except DeviceError:
        if required:
            raise
        return None
    if board is None or board == device.spec:
        return device
    if required:
        raise UsageError(
            f"the GPU here is {device.spec.name}, not {board.name}: leave --gpu out, or take "
            "`--device emulator` to stand for another board"
        )
    return None


def gpu_problem() -> str | None:
    """Why there is no usable GPU, or None if there is one, as the driver library tells.

    Where there is one, a missing package of the extra `gpu` counts too.

    It neither prints nor hangs: a driver that does not answer within 20 s counts as unusable.
    """
    answer: list[str | None] = []
    asking = threading.Thread(target=lambda: answer.append(_ask_driver()), daemon=True)
    try:
        asking.start()
    except RuntimeError:
        # No threads are started when the process ends.
        return _ask_driver() or packages_problem()
    asking.join(PATIENCE_S)
    if not answer:
        return f"the CUDA driver did not answer within {PATIENCE_S:.0f} s"
    return answer[0] or packages_problem()


def _ask_driver() -> str | None:
    library = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return f"this machine has no NVIDIA driver ({library})"
    version, count = ctypes.c_int(0), ctypes.c_int(0)
    for function, *arguments in (
        (driver.cuDriverGetVersion, ctypes.byref(version)),
        (driver.cuInit, 0),
        (driver.cuDeviceGetCount, ctypes.byref(count)),
    ):
        status = function(*arguments)
        if status == NO_GPU:
            return "the driver finds no GPU"
        if status != 0:
            return f"the CUDA driver answers with error {status}"
        if version.value < LEAST_DRIVER:
            found = f"{version.value // 1000}.{version.value % 1000 // 10}"
            return f"the NVIDIA driver supports CUDA {found}; gemmkit needs one for CUDA 13"
    return None if count.value else "the driver finds no GPU"


def _parsed(schedule: str) -> Schedule:
    load("gemmkit.emulator.schedule")
    from gemmkit.emulator.schedule import Schedule

    return Schedule.parse(schedule)
