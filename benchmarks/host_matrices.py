"""Products of matrices in host memory: `python benchmarks/host_matrices.py --results FILE`.

gemmkit streams tiles; its peers are a copy of both operands, `torch.mm` and a copy back, and
cublasXt by blocks of 4096. They follow each other in each repetition, on the same random normal
matrices in pinned (or with `--memory pageable`, ordinary) memory, and every result of gemmkit's is
checked: against float64 products with a random vector, which cover all elements, and in some rows
element by element. Bandwidths of the link are measured in the same run. It needs GPUs, and PyTorch.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gemmkit
from gemmkit.devices.host import host_environment
from gemmkit.ops.streamed.explain import explain_stream
from gemmkit.problem import GemmProblem

# What is multiplied, by its name: the type, and gemmkit's precision.
KINDS = {
    "fp32": ("float32", "ieee"),
    "fp32 on tensor cores": ("float32", "fp32"),
    "tf32": ("float32", "tf32"),
    "bf16": ("bfloat16", None),
    "fp16": ("float16", None),
    "fp64": ("float64", None),
}
# Largest relative errors of products with a random vector, for sums of so many random terms.
BOUNDS = {"fp32": 1e-5, "fp32 on tensor cores": 1e-5, "tf32": 2e-3, "bf16": 8e-3, "fp16": 1e-3}
BOUNDS["fp64"] = 1e-12
BLOCK, CHECKED_ROWS, GIB = 4096, 4, 1 << 30

Product = Callable[[], object]


class Matrices:
    """A, B and C in host memory as tensors of PyTorch, which share it with NumPy's arrays."""

    def __init__(self, size: int, dtype: str, pinned: bool) -> None:
        self.size, self.pinned = size, pinned
        self.dtype = getattr(torch, dtype)
        self.a, self.b = (self._filled(seed) for seed in (1, 2))
        self.out = self._empty()

    def _empty(self) -> torch.Tensor:
        width = torch.empty((), dtype=self.dtype).element_size()
        nbytes = self.size * self.size * width
        memory = (
            gemmkit.empty_pinned(nbytes, np.uint8) if self.pinned else np.empty(nbytes, np.uint8)
        )
        return torch.from_numpy(memory).view(self.dtype).reshape(self.size, self.size)

    def _filled(self, seed: int) -> torch.Tensor:
        made = self._empty()
        maker = torch.Generator("cuda").manual_seed(seed)
        for rows in made.split(1024):
            rows.copy_(torch.randn(rows.shape, device="cuda", generator=maker).to(self.dtype))
        return made

    def error(self) -> dict[str, float]:
        """The error of C·x relative to A·(B·x), and the largest of some rows relative to the
        norms of the row of A and the column of B."""
        x = torch.randn(self.size, 1, device="cuda", dtype=torch.float64)

        def times(matrix: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
            return torch.cat([rows.cuda().double() @ vector for rows in matrix.split(1024)])

        wanted = times(self.a, times(self.b, x))
        found = times(self.out, x)
        vector = float((found - wanted).norm() / wanted.norm())
        chosen = torch.randint(self.size, (CHECKED_ROWS,))
        rows, worst = self.a[chosen].cuda().double(), 0.0
        for column in range(0, self.size, 1024):
            part = self.b[:, column : column + 1024].cuda().double()
            wrong = (self.out[chosen, column : column + 1024].cuda().double() - rows @ part).abs()
            scale = rows.norm(dim=1)[:, None] * part.norm(dim=0)[None]
            worst = max(worst, float((wrong / scale).max()))
        # NaN stays.
        return {"vector_error": vector, "row_error": worst}


def bandwidths() -> dict[str, float]:
    """GB/s of the first GPU's link with pinned memory: in, out, and the sum of both at once."""
    host = [torch.from_numpy(gemmkit.empty_pinned(GIB, np.uint8)) for _ in range(2)]
    card = [torch.empty(GIB, dtype=torch.uint8, device="cuda") for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]

    def copies(ways: str) -> None:
        for way in ways:
            with torch.cuda.stream(streams[way == "o"]):
                if way == "i":
                    card[0].copy_(host[0], non_blocking=True)
                else:
                    host[1].copy_(card[1], non_blocking=True)
        torch.cuda.synchronize()

    found = {}
    for name, ways in (("in", "i"), ("out", "o"), ("both", "io")):
        copies(ways)
        seconds = min(timed(lambda: copies(ways)) for _ in range(3))  # noqa: B023
        found[f"{name}_gb_per_s"] = round(len(ways) * GIB / seconds / 1e9, 1)
    return found


def timed(product: Product) -> float:
    """Seconds of a call whose result is in host memory when it returns."""
    start = time.perf_counter()
    product()
    return time.perf_counter() - start


# --- peers --------------------------------------------------------------------------------------


def copying(matrices: Matrices, kind: str) -> Product:
    """Copies of both operands to one GPU, `torch.mm`, and a copy back; memory is there before."""
    torch.backends.cuda.matmul.allow_tf32 = False
    shape = (matrices.size, matrices.size)
    a, b, out = (torch.empty(shape, dtype=matrices.dtype, device="cuda") for _ in range(3))
    allowed = kind == "tf32"

    def product() -> None:
        torch.backends.cuda.matmul.allow_tf32 = allowed
        a.copy_(matrices.a, non_blocking=True)
        b.copy_(matrices.b, non_blocking=True)
        torch.mm(a, b, out=out)
        matrices.out.copy_(out, non_blocking=True)
        torch.cuda.synchronize()

    return product


class CublasXt:
    """cublasXt on some GPUs, of the cuBLAS that is at hand.

    Raises:
        OSError, RuntimeError: there is none, or it fails.
    """

    def __init__(self, devices: int) -> None:
        major = str(torch.version.cuda).partition(".")[0]
        torch.mm(*(torch.ones(1, 1, device="cuda") for _ in range(2)))
        self._library = ctypes.CDLL(f"libcublas.so.{major}")
        self._handle = ctypes.c_void_p()
        self._call("cublasXtCreate", ctypes.byref(self._handle))
        numbers = (ctypes.c_int * devices)(*range(devices))
        self._call("cublasXtDeviceSelect", self._handle, devices, numbers)
        self._call("cublasXtSetBlockDim", self._handle, BLOCK)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} answers {status}")

    def product(self, matrices: Matrices) -> Product:
        """The transposed product, whose columns are the rows of ours."""
        single = matrices.dtype == torch.float32
        number = ctypes.c_float if single else ctypes.c_double
        size, one, zero = ctypes.c_size_t(matrices.size), number(1), number(0)
        places = [ctypes.c_void_p(each.data_ptr()) for each in (matrices.b, matrices.a)]
        out = ctypes.c_void_p(matrices.out.data_ptr())

        def product() -> None:
            self._call(
                "cublasXtSgemm" if single else "cublasXtDgemm",
                *(self._handle, 0, 0, size, size, size, ctypes.byref(one)),
                *(places[0], size, places[1], size, ctypes.byref(zero), out, size),
            )

        return product

    def close(self) -> None:
        """Give its memory back."""
        self._call("cublasXtDestroy", self._handle)


def libraries(
    matrices: Matrices, kind: str, devices: int, arguments: argparse.Namespace
) -> Iterator[tuple[str, Product, Callable[[], None]]]:
    """Their names, how they multiply, and what gives their memory back."""
    options = {"precision": KINDS[kind][1], "devices": list(range(devices))}
    if arguments.device_memory:
        options["device_memory"] = arguments.device_memory

    def stream() -> object:
        return gemmkit.matmul(matrices.a, matrices.b, out=matrices.out, **options)

    yield "gemmkit", stream, lambda: None
    if "copies" in arguments.against and devices == 1:
        yield "copies and torch.mm", copying(matrices, kind), torch.cuda.empty_cache
    if "cublasxt" in arguments.against and kind in ("fp32", "fp64"):
        try:
            peer = CublasXt(devices)
        except (OSError, RuntimeError, AttributeError) as error:
            print(f"left out: cublasXt ({error})", flush=True)
        else:
            yield "cublasXt", peer.product(matrices), peer.close


# --- the run ------------------------------------------------------------------------------------


def measured(
    size: int, kind: str, devices: int, arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """A row for each library that computes one product."""
    matrices = Matrices(size, KINDS[kind][0], arguments.memory == "pinned")
    flops = 2.0 * size**3
    every = list(libraries(matrices, kind, devices, arguments))
    durations: dict[str, list[float]] = {name: [] for name, *_ in every}
    errors: dict[str, dict[str, float]] = {}
    for repetition in range(arguments.repeats + 1):
        for name, product, _ in every:
            matrices.out.fill_(float("nan"))
            seconds = timed(product)
            # The first call compiles, plans and pins.
            if repetition:
                durations[name].append(seconds)
            if repetition in (0, arguments.repeats) and name == "gemmkit":
                errors[name] = matrices.error()
    for _, _, close in every:
        close()
    problem = GemmProblem(
        m=size,
        n=size,
        k=size,
        dtype=KINDS[kind][0],
        out_dtype=KINDS[kind][0],
        precision=KINDS[kind][1] or "ieee",
    )
    told = explain_stream(
        problem,
        gemmkit.open_device("cuda").spec,
        devices=devices,
        device_memory=arguments.device_memory,
    )
    for name in durations:
        best, middle = min(durations[name]), statistics.median(durations[name])
        row: dict[str, Any] = {"size": size, "product": kind, "devices": devices, "library": name}
        row |= {"memory": arguments.memory, "ms": round(1e3 * middle, 2)}
        row |= {"best_ms": round(1e3 * best, 2), "tflops": round(flops / middle / 1e12, 2)}
        if name == "gemmkit":
            row |= errors[name] | {"predicted_ms": round(1e3 * told.seconds, 2)}
            row |= {"limiter": told.limiter, "tile": told.tile, "depth": told.depth}
            row["correct"] = errors[name]["vector_error"] <= BOUNDS[kind]
        yield row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[16384], help="M = N = K")
    parser.add_argument("--products", nargs="+", choices=list(KINDS), default=["fp32"])
    parser.add_argument("--devices", type=int, nargs="+", default=[1], help="numbers of GPUs")
    parser.add_argument("--device-memory", help="that gemmkit may use, such as 8GiB")
    parser.add_argument("--memory", choices=("pinned", "pageable"), default="pinned")
    parser.add_argument("--against", nargs="*", default=["copies", "cublasxt"])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    link = bandwidths()
    print(json.dumps(link), flush=True)
    rows: list[dict[str, Any]] = []
    for size in arguments.sizes:
        for kind in arguments.products:
            for devices in arguments.devices:
                for row in measured(size, kind, devices, arguments):
                    rows.append(row)
                    print(json.dumps(row), flush=True)
    environment = {
        "gpu": torch.cuda.get_device_name(),
        "gpus": torch.cuda.device_count(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gemmkit": gemmkit.__version__,
        **host_environment(),
        **link,
        "command": " ".join(["python benchmarks/host_matrices.py", *sys.argv[3:]]),
    }
    text = json.dumps({"environment": environment, "rows": rows}, indent=1)
    arguments.results.write_text(text + "\n")
    return 0 if all(row.get("correct", True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
