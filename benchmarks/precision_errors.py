"""Errors of fp32 products by several methods: the table of `docs/precision.md`.

`gemm_fp16x3` and `gemm_tf32x3` run on the emulator; the other methods are modelled in NumPy, on the
tensor cores of `gemmkit.emulator.numerics`. With no argument the table is printed, with `--write`
it is written to the page.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gemmkit.emulator.numerics.model import multiply
from gemmkit.emulator.numerics.rules import Kind

Singles = NDArray[np.float32]
Pair = tuple[Singles, Singles]
PAGE = Path(__file__).resolve().parent.parent / "docs" / "precision.md"
BEGIN = "<!-- errors: written by benchmarks/precision_errors.py -->"
END = "<!-- end of errors -->"
UNIT = 2.0**-24
SIDE, SEED = 16, 1
LENGTHS = (64, 128, 256, 1024, 4096, 16384)
TF32_STEP = Kind("wgmma", "tf32", "tf32", "f32", 8)


def _normal(rng: np.random.Generator, shape: tuple[int, int]) -> Singles:
    return rng.standard_normal(shape, np.float32)


def _log_uniform(rng: np.random.Generator, shape: tuple[int, int]) -> Singles:
    return np.float32(_normal(rng, shape) * np.exp2(rng.uniform(-20, 20, shape)))


def _graded(rng: np.random.Generator, m: int, n: int, k: int) -> Pair:
    rows, columns = (np.exp2(rng.uniform(-60, 60, each)) for each in (m, n))
    a, b = _normal(rng, (m, k)), _normal(rng, (k, n))
    return np.float32(a * rows[:, None]), np.float32(b * columns)


def _cancelling(rng: np.random.Generator, m: int, n: int, k: int) -> Pair:
    """Each term is followed by its negative, with a change in the last bit."""
    a, b = _normal(rng, (m, k)), _normal(rng, (k, n))
    half = k // 2
    a[:, half : 2 * half] = -a[:, :half] * np.float32(1 + 2.0**-23)
    b[half : 2 * half] = b[:half]
    return a, b


def _hilbert(_: np.random.Generator, m: int, n: int, k: int) -> Pair:
    """Parts of a Hilbert matrix: positive, the first elements by far the largest."""
    i, j, inner = np.arange(m)[:, None], np.arange(n)[None], np.arange(k)
    return np.float32(1 / (i + inner[None] + 1.0)), np.float32(1 / (inner[:, None] + j + 1.0))


# A (m × k) and B (k × n).
FAMILIES: dict[str, Callable[[np.random.Generator, int, int, int], Pair]] = {
    "normal": lambda rng, m, n, k: (_normal(rng, (m, k)), _normal(rng, (k, n))),
    "uniform": lambda rng, m, n, k: (
        rng.random((m, k), np.float32),
        rng.random((k, n), np.float32),
    ),
    "log-uniform": lambda rng, m, n, k: (_log_uniform(rng, (m, k)), _log_uniform(rng, (k, n))),
    "graded": _graded,
    "cancelling": _cancelling,
    "Hilbert": _hilbert,
}


def fused_chain(a: Singles, b: Singles) -> Singles:
    """A·B by a chain of fused multiply-adds along k, as FFMA has it.

    float64 holds products exactly and rounds their sums to 53 bits first; that shows in few of the
    results, and little.
    """
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for left, right in zip(a.T.astype(float), b.astype(float), strict=True):
            total = (np.multiply.outer(left, right) + total).astype(np.float32)
    return total


def _tf32(x: Singles) -> Singles:
    """Rounded to nearest, to 11 bits."""
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = bits + 0xFFF + (bits >> 13 & 1)
    return (rounded & 0xFFFFE000).astype(np.uint32).view(np.float32)


def _by_tf32(pairs: list[Pair]) -> Singles:
    """Sums on tensor cores alone: of each pair's products, eight of k of one after the other."""
    total = np.zeros((pairs[0][0].shape[0], pairs[0][1].shape[1]), np.uint32)
    for start in range(0, pairs[0][0].shape[1], TF32_STEP.depth):
        steps = slice(start, start + TF32_STEP.depth)
        for a, b in pairs:
            factors = a[:, steps].view(np.uint32), np.ascontiguousarray(b[steps]).view(np.uint32)
            total = multiply(TF32_STEP, (9, 0), *factors, total)
    return total.view(np.float32)


def tf32(a: Singles, b: Singles) -> Singles:
    """A·B with operands rounded to TF32."""
    return _by_tf32([(_tf32(a), _tf32(b))])


def three_tf32(a: Singles, b: Singles) -> Singles:
    """A·B by three products of TF32 parts, without scales or promotion (CUTLASS's FastF32)."""
    high_a, high_b = _tf32(a), _tf32(b)
    low_a, low_b = _tf32(a - high_a), _tf32(b - high_b)
    return _by_tf32([(low_a, high_b), (high_a, low_b), (high_a, high_b)])


def by_kernel(name: str, board: str, keys: dict[str, int]) -> Callable[[Singles, Singles], Singles]:
    """A kernel of precision "fp32" on an emulated board, in a configuration of these keys."""
    from gemmkit.bench.workload import Case
    from gemmkit.devices.emulated import EmulatedDevice
    from gemmkit.gpu import find_board
    from gemmkit.jit.compiler import compile_plan
    from gemmkit.kernels.catalog import find_kernel
    from gemmkit.problem import GemmProblem
    from gemmkit.verify import make_inputs

    device = EmulatedDevice(find_board(board), sanitize=False)
    kernel = find_kernel(name)
    config = kernel.configure(keys)

    def product(a: Singles, b: Singles) -> Singles:
        problem = GemmProblem(a.shape[0], b.shape[1], a.shape[1], precision="fp32")
        inputs = replace(make_inputs(problem), a=a.ravel(), b=b.ravel())
        plan = kernel.plan(problem, config, device.spec)
        binary = compile_plan(plan, device.spec.arch, assemble=False)
        _, results = Case.of(problem, inputs, device).result(problem, device, binary, plan)
        return results[0].view(np.float32).reshape(a.shape[0], b.shape[1])

    return product


def in_fp16(depth: int) -> Callable[[Singles, Singles], Singles]:
    """`gemm_fp16x3` with chunks of `depth`, on an H100."""
    keys = {"BM": 64, "BN": 32, "BK": depth, "stages": 2, "consumers": 1}
    return by_kernel("gemm_fp16x3", "h100", keys)


def in_tf32() -> Callable[[Singles, Singles], Singles]:
    """`gemm_tf32x3` on an A100."""
    keys = {"BM": 32, "BN": 32, "BK": 32, "WM": 16, "WN": 16, "stages": 2}
    return by_kernel("gemm_tf32x3", "a100", keys)


def errors(found: Singles, a: Singles, b: Singles, *, cancelling: bool) -> tuple[float, float]:
    """Norm-wise and largest component-wise error, in units of 2^-24.

    The former is ‖E‖/‖A·B‖ where rows of A and columns of B are scaled to norm 1; relative to
    ‖|A|·|B|‖ if terms cancel. The latter is the largest |E|/(|A|·|B|).
    """
    left, right = a.astype(np.longdouble), b.astype(np.longdouble)
    exact, magnitude = left @ right, np.abs(left) @ np.abs(right)
    off = np.abs(found - exact)
    norms = np.multiply.outer(*(np.sqrt((x**2).sum(axis=1)) for x in (left, right.T)))
    of_all = np.linalg.norm(np.float64((magnitude if cancelling else exact) / norms))
    norm_wise = np.linalg.norm(np.float64(off / norms)) / of_all
    return float(norm_wise / UNIT), float(np.max(off / magnitude) / UNIT)


def table() -> str:
    """The table in Markdown."""
    methods = {
        "FFMA": fused_chain,
        "TF32": tf32,
        "3×TF32": three_tf32,
        "`fp32` in fp16, chunks of 64": in_fp16(64),
        "`fp32` in fp16, chunks of 32": in_fp16(32),
        "`fp32` in TF32": in_tf32(),
    }
    lines = [f"| inputs | k | {' | '.join(methods)} |", "|---|--:|" + "--:|" * len(methods)]
    for family, make in FAMILIES.items():
        for k in LENGTHS:
            a, b = make(np.random.default_rng(SEED), SIDE, SIDE, k)
            cells = []
            for method in methods.values():
                with np.errstate(over="ignore", invalid="ignore"):
                    pair = errors(method(a, b), a, b, cancelling=family == "cancelling")
                cells.append(" / ".join(map(units_text, pair)))
            lines.append(f"| {family} | {k:,} | {' | '.join(cells)} |")
            print(lines[-1], file=sys.stderr)
    return "\n".join(lines)


def units_text(units: float) -> str:
    """An error in units of 2^-24, with two digits or as a whole number."""
    if not np.isfinite(units):
        return "NaN"
    return f"{units:,.0f}" if units >= 100 else f"{units:.2g}" if units < 10 else f"{units:.0f}"


def write_section(begin: str, end: str, text: str) -> None:
    """Put a text between two lines of the page."""
    before, _, rest = PAGE.read_text("utf-8").partition(begin)
    PAGE.write_text(f"{before}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}", "utf-8")


def main() -> None:
    """Print the table, or write it to the page."""
    found = table()
    if "--write" not in sys.argv[1:]:
        print(found)
        return
    write_section(BEGIN, END, found)


if __name__ == "__main__":
    main()
