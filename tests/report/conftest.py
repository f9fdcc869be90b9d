"""A browser for the tests of pages, and a page of each verb that writes one."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from chromium import Chromium, chromium, find_browser
from gemmkit.analysis.explain import Facts, explain_facts, gather
from gemmkit.analysis.trace import trace
from gemmkit.cli import gemmkit
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.report.explain_text import explanation_document
from gemmkit.report.explain_views import explain_views
from gemmkit.report.page.html import to_html

# Each thread zeroes its result without a guard, one lane reads what others write with no barrier
# between: findings of two sanitizers.
FAULTY = """
__global__ void faulty(int M, int N, int K, const float *A, const float *B, float *C) {
  __shared__ float line[32];
  int row = blockIdx.y, col = blockIdx.x * 32 + threadIdx.x;
  line[threadIdx.x] = A[row * K];
  __syncthreads();
  float sum = line[(threadIdx.x + 1) % 32] - line[0];
  line[threadIdx.x] = sum;
  for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + col];
  C[row * N + col] = sum;
}
"""
RUNGS = (
    "naive_uncoalesced,naive,shared_tiling,coarsening_1d,coarsening_2d,vectorized,conflict_free,"
    "double_buffered,warp_tiled,async_copy"
)
EMULATED = ("--device", "emulator", "--gpu", "rtx3090")
VERBS: Mapping[str, tuple[str, ...]] = {
    "ladder": ("ladder", "--size", "64", "--kernels", RUNGS, *EMULATED),
    "check": (
        *("check", "FAULTY", "--grid", "(N+31)/32,M", "--block", "32", "--shape", "33x20x5"),
        *("--limit", "bank_conflicts == 0", "--gpu", "rtx3090"),
    ),
    "bench": ("bench", "vectorized", "--shape", "64", *EMULATED),
    "sweep": ("sweep", "--sizes", "32,64", *EMULATED),
}


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """One Chromium for all tests of a process; they are skipped where there is none."""
    program = find_browser()
    if program is None:
        pytest.skip("needs Chromium")
    with chromium(program, tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture(scope="session")
def once(shared_cache_dir: Path) -> Callable[[str, Callable[[], str]], str]:
    """A text by name that is made once, by whichever of pytest-xdist's processes comes first."""
    folder = shared_cache_dir.parent / "pages"
    folder.mkdir(exist_ok=True)

    def found(name: str, make: Callable[[], str]) -> str:
        file = folder / f"{name}.html"
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not file.is_file():
                file.write_text(make(), encoding="utf-8")
            return file.read_text("utf-8")

    return found


@pytest.fixture(scope="session")
def written(
    once: Callable[[str, Callable[[], str]], str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], str]:
    """The page that a verb other than `explain` writes."""

    def write(verb: str) -> str:
        folder = tmp_path_factory.mktemp(verb)
        (folder / "faulty.cu").write_text(FAULTY)
        words = [str(folder / "faulty.cu") if each == "FAULTY" else each for each in VERBS[verb]]
        file = folder / "page.html"
        result = CliRunner().invoke(gemmkit, [*words, "--html", str(file)])
        assert file.is_file(), result.output
        return file.read_text("utf-8")

    return lambda verb: once(verb, lambda: write(verb))


@pytest.fixture(scope="session")
def facts() -> list[Facts]:
    """Two kernels on one problem."""
    problem, board = GemmProblem(128, 128, 64), find_board("rtx3090")
    return [gather(find_kernel(name), problem, board) for name in ("vectorized", "conflict_free")]


@pytest.fixture(scope="session")
def page(once: Callable[[str, Callable[[], str]], str], request: pytest.FixtureRequest) -> str:
    """The page of `explain` that compares them."""

    def make() -> str:
        facts: list[Facts] = request.getfixturevalue("facts")
        traces = [trace(each.kernel, each.problem, each.gpu, config=each.config) for each in facts]
        explained = explain_facts(*facts)
        return to_html(explanation_document(explained, explain_views(explained, facts, traces)))

    return once("explain", make)


@pytest.fixture(params=("explain", *VERBS))
def verb_page(request: pytest.FixtureRequest, written: Callable[[str], str]) -> str:
    """The page of each verb."""
    found: str = (
        request.getfixturevalue("page") if request.param == "explain" else written(request.param)
    )
    return found
