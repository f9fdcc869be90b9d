"""The fixture `gemm_kernel` for pytest: tests of GPU kernels that run on machines without a GPU.

pytest imports this file in every run, so gemmkit itself is imported only by tests that use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gemmkit.bench.count import Counters
    from gemmkit.check_record import CheckRecord
    from gemmkit.kernels.kernel import Kernel
    from gemmkit.problem import Shape

# One bug affects many problems; the first few suffice.
_SHOWN_PROBLEMS = 5
_HELP = "target board of gemm_kernel's kernels, such as rtx3090 or h100 (default: RTX 3090)"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--gemmkit-gpu` and the setting `gemmkit_gpu`."""
    group = parser.getgroup("gemmkit", "GPU kernels on an emulated GPU")
    group.addoption("--gemmkit-gpu", metavar="BOARD", help=_HELP)
    parser.addini("gemmkit_gpu", _HELP)


@pytest.fixture
def gemm_kernel(request: pytest.FixtureRequest) -> GemmKernels:
    """Make a kernel to test from a `.cu` or `.ptx` file next to the test, or a numba-cuda function.

    `gemm_kernel("sgemm.cu", entry=…, args=…, grid=…, block=…)` takes the arguments of
    `Kernel.from_file`, `from_ptx` and `from_numba`, and returns a `KernelUnderTest`.
    """
    gpu = request.config.getoption("--gemmkit-gpu") or request.config.getini("gemmkit_gpu") or None
    return GemmKernels(request.path.parent, gpu)


class GemmKernels:
    """Makes kernels to test; paths are relative to `folder`, and `gpu` is the default board."""

    def __init__(self, folder: Path, gpu: str | None) -> None:
        self._folder, self._gpu = folder, gpu

    def __repr__(self) -> str:
        return f"<gemm_kernel for {self._gpu or 'the default board'}>"

    def __call__(
        self,
        source: str | Path | Kernel | Callable[..., object],
        *,
        gpu: str | None = None,
        **options: Any,
    ) -> KernelUnderTest:
        """A kernel to test.

        Args:
            source: a path, a numba-cuda function, or a `gemmkit.Kernel`.
            gpu: the target board, instead of the one set for all tests.
            options: entry, args, grid, block …, as for `Kernel.from_file`, `from_ptx` or
                `from_numba`.
        """
        __tracebackhide__ = True
        with _ErrorsFail():
            kernel = self._kernel(source, options)
        return KernelUnderTest(kernel, gpu or self._gpu)

    def _kernel(
        self, source: str | Path | Kernel | Callable[..., object], options: dict[str, Any]
    ) -> Kernel:
        from gemmkit.errors import UsageError, unknown_name
        from gemmkit.kernels.kernel import Kernel
        from gemmkit.kernels.launch_options import LaunchOptions

        if isinstance(source, Kernel):
            if options:
                raise UsageError(
                    f"a Kernel has launch options already: leave out {', '.join(options)}"
                )
            return source
        if not isinstance(source, (str, Path)):
            return Kernel.from_numba(source, **options)
        known = [field.name for field in fields(LaunchOptions)]
        for name in options:
            if name not in known:
                raise UsageError(unknown_name("option", name, known))
        launch = LaunchOptions(**options)
        folders = [self._folder / each for each in launch.include_dirs]
        return Kernel.from_path(self._folder / source, replace(launch, include_dirs=folders))


class KernelUnderTest:
    """A kernel and its target board `gpu`; wrong results and findings fail the test."""

    def __init__(self, kernel: Kernel, gpu: str | None) -> None:
        self.kernel, self.gpu = kernel, gpu

    def check(self, shapes: Sequence[Shape] | None = None, **options: Any) -> list[CheckRecord]:
        """Compare its results with a reference and run the sanitizers, on edge cases.

        The test fails, with the findings and their source lines, if a result is wrong, a sanitizer
        finds something or a limit is missed, and if too few problems ran.

        Args:
            shapes: strings `MxNxK`, tuples (M, N, K) or problems, instead of the edge cases.
            options: other arguments of `gemmkit.check`, such as `limits=["bank_conflicts == 0"]`.
        """
        __tracebackhide__ = True
        from gemmkit.bench.check import check

        with _ErrorsFail():
            records = check(self.kernel, shapes, gpu=self.gpu, **options)
        bad = [record for record in records if not record.clean]
        if bad:
            pytest.fail(_report(records, bad, self.kernel))
        return records

    def counters(
        self,
        m: int,
        n: int,
        k: int,
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
        dtype: str | None = None,
        out_dtype: str | None = None,
        precision: str | None = None,
        config: Mapping[str, int] | None = None,
        seed: int = 0,
    ) -> Counters:
        """The counters for one problem; the test fails if the result is wrong.

        Args:
            m, n, k: the size.
            alpha, beta: the factors of A·B and of the previous C.
            dtype: the type of A and B, by default the first that the kernel accepts.
            out_dtype: the type of C, by default the same.
            precision: how float32 may be multiplied, as for `gemmkit.check`.
            config: keys of the configuration to change, such as `{"BM": 64}`.
            seed: seed for the inputs.
        """
        __tracebackhide__ = True
        from gemmkit.bench.count import count
        from gemmkit.kernels.asked import Asked

        with _ErrorsFail():
            asked = Asked(
                alpha=alpha, beta=beta, dtype=dtype, out_dtype=out_dtype, precision=precision
            )
            problem = asked.problem((m, n, k), self.kernel)
            found = count(self.kernel, problem, config=config, gpu=self.gpu, seed=seed)
        if not found.record.correct:
            from gemmkit.report.wrong_result import wrong_result

            wrong = wrong_result(found.record.diagnosis, found.record.check)
            pytest.fail(f"{self.kernel.name}, {m}x{n}x{k}: {wrong}")
        return found

    def __repr__(self) -> str:
        return f"<{self.kernel.name} for {self.gpu or 'the default board'}>"


def _report(records: Sequence[CheckRecord], bad: Sequence[CheckRecord], kernel: Kernel) -> str:
    """A summary in the first line, which pytest repeats; then the details, problem by problem."""
    from gemmkit.report.findings import check_table, findings_text, sizes_hint, summary
    from gemmkit.report.limits import limits_tables

    table = check_table(bad[:_SHOWN_PROBLEMS]).to_text().plain.rstrip()
    left = len(bad) - _SHOWN_PROBLEMS
    more = f"\n… and {left} more problems" if left > 0 else ""
    text = f"{summary(records)}\n\n{table}{more}\n{findings_text(bad, kernel).plain}".rstrip()
    for limits in limits_tables(bad):
        text += f"\n\n{limits.to_text().plain.rstrip()}"
    hint = sizes_hint(records, kernel)
    return f"{text}\n\n{hint}" if hint else text


class _ErrorsFail:
    """Turns a gemmkit error, which is one clear message, into a test failure."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        __tracebackhide__ = True
        from gemmkit.errors import GemmkitError

        if isinstance(error, GemmkitError):
            raise pytest.fail.Exception(str(error)) from None
