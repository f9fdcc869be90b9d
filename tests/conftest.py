"""What all tests share: the `gpu` marker, cache folders away from the user's own, Hypothesis,
stores of trials."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

# Before NumPy is loaded. After each larger product OpenBLAS's threads spin for some 16 ms, on cores
# that the other test processes use.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hypothesis
import msgspec
import pytest

from gemmkit.devices.choose import gpu_problem
from gemmkit.record import (
    DeviceRecord,
    OccupancyRecord,
    ProblemRecord,
    Record,
    ResourceRecord,
)
from gemmkit.trials.entry import Entry, ProblemClass
from gemmkit.trials.freshness import Freshness
from gemmkit.trials.store import Store
from kept_compiled import kept_cache

# Fixed examples in continuous integration; elsewhere new ones each time, a failure with its seed.
hypothesis.settings.register_profile(
    "gemmkit", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True
)
hypothesis.settings.load_profile("gemmkit")


ROOT = Path(__file__).parent.parent

# How many slow tests are not run.
LEFT_OUT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--write-references`, for the pictures of views, and `--keep-compiled`."""
    parser.addoption(
        "--keep-compiled",
        action="store_true",
        help="keep compiled kernels in build/compiled for the next run with this option",
    )
    parser.addoption(
        "--write-references",
        action="store_true",
        help="write the reference pictures of the pages' views instead of comparing with them",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, with the reason, tests that need a GPU where there is none; leave out slow ones."""
    mark_cases_between_samples(items)
    if "slow" not in config.getoption("markexpr"):
        # To skip thousands of cases one by one takes pytest seconds.
        slow = [item for item in items if item.get_closest_marker("slow")]
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        config.stash[LEFT_OUT] = len(slow)
        if hasattr(config, "workeroutput"):
            config.workeroutput["left_out"] = len(slow)
    # The longest ones are not left for the end, where one process would wait for another.
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    problem = gpu_problem() if marked else None
    if problem is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"needs an NVIDIA GPU: {problem}"))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what one of pytest-xdist's processes, which all collect the same, has left out."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Tell how many slow tests were left out."""
    if left_out := config.stash.get(LEFT_OUT, 0):
        terminalreporter.line(f"{left_out} slow tests left out: `pytest -m slow` runs them")


@pytest.fixture
def handles_interrupts() -> Iterator[None]:
    """Ctrl-C interrupts this process and those that the test starts, also where pytest was started
    with SIGINT ignored, as a shell does for its background jobs: processes inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking through what collecting made again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def mark_cases_between_samples(items: Iterable[pytest.Item]) -> None:
    """Mark as slow the cases that a test marked `sample` leaves out."""
    tests: defaultdict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sample") and not item.get_closest_marker("slow"):
            assert isinstance(item, pytest.Function)
            tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        every = cases[0].get_closest_marker("sample").args
        chosen = range(0, len(cases), *every) if every else each_value(cases)
        for left_out in set(range(len(cases))) - set(chosen):
            cases[left_out].add_marker(pytest.mark.slow)


def each_value(cases: Sequence[pytest.Function]) -> list[int]:
    """The numbers of cases in which each value of each parameter of their test occurs.

    Parameters that one mark sets together count as one. The next case always has the most values
    that have not occurred, and of equal ones the values that have occurred least.
    """
    values = [set(values_of(case)) for case in cases]
    seen: Counter[tuple[str, ...]] = Counter()
    chosen: list[int] = []
    while missing := set[tuple[str, ...]]().union(*values) - seen.keys():
        chosen.append(
            max(
                range(len(cases)),
                key=lambda case: (
                    len(values[case] & missing),
                    -sum(seen[value] for value in values[case]),
                ),
            )
        )
        seen.update(values[chosen[-1]])
    return chosen


def values_of(case: pytest.Function) -> Iterator[tuple[str, ...]]:
    """What tells the values of a case's parameters from those of other cases, for each mark."""
    given = dict(case.callspec.params)
    for mark in case.iter_markers("parametrize"):
        names = mark.args[0]
        names = names.replace(",", " ").split() if isinstance(names, str) else names
        yield (*names, *(str(id(given.pop(name))) for name in names))
    for name, value in given.items():
        yield name, str(id(value))


@pytest.fixture(scope="session", autouse=True)
def shared_cache_dir(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[Path]:
    """The user's cache folder for this test session: each kernel is compiled once in it.

    All of pytest-xdist's processes, and what they start, share it. A test that looks at the cache
    itself takes `cache_dir` instead.
    """
    session = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        session = session.parent
    folder = session / "user-cache"
    if pytestconfig.getoption("keep_compiled"):
        folder = kept_cache(ROOT / "src" / "gemmkit", ROOT / "build" / "compiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        # pytest-xdist sets it; lines of output are as long as they are unless a test says so.
        patch.delenv("COLUMNS", raising=False)
        yield folder


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    """A cache folder of the test's own; not yet made."""
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def make_record() -> Callable[..., Record]:
    """A record of a correct, emulated naive kernel at 64³, with the given fields changed."""
    record = Record(
        kernel="naive",
        rung=2,
        idea="Neighboring threads take neighboring columns.",
        problem=ProblemRecord(
            m=64, n=64, k=64, alpha=1.0, beta=0.0, epilogue="none", lda=64, ldb=64, ldc=64
        ),
        config={"BM": 32, "BN": 32},
        device=DeviceRecord(kind="emulator", gpu="RTX 3090"),
        correct=True,
        max_error=1.5e-6,
        error_bound=3e-5,
        error_ratio=0.05,
        counters={
            "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 16384,
            "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 40960,
            "ptx__data_bytes_mem_global_op_ld.sum": 2 * 64 * 64 * 64 * 4,
        },
        resources=ResourceRecord(registers=40, spill_bytes=0, shared_bytes=0, local_bytes=0),
        occupancy=OccupancyRecord(
            theoretical=2 / 3, waves_per_sm=0.05, blocks_per_sm=1, limiter="warps"
        ),
        time_us=None,
        tflops=None,
        peak_fraction=None,
        baseline=None,
        emulation_seconds=0.01,
        environment={},
        seed=0,
    )
    return lambda **changes: msgspec.structs.replace(record, **changes)


@pytest.fixture
def freshness() -> Freshness:
    """Whatever the kernels' source is, this compiler is installed."""
    return Freshness(compiler="13.5.37")


@pytest.fixture
def store(tmp_path: Path, freshness: Freshness) -> Store:
    return Store(tmp_path / "store.sqlite3", freshness)


@pytest.fixture
def make_entry(freshness: Freshness) -> Callable[..., Entry]:
    """An entry of a fresh kernel, with the given fields changed."""

    def make(**changes: Any) -> Entry:
        fields: dict[str, Any] = {
            "gpu": "h100-132sm",
            "problem": ProblemClass(m=64, n=64, k=64, aligned=True),
            "kernel": "naive",
            "config": {"BM": 32, "BN": 32},
            "outcome": "ok",
            "compiler": "13.5.37",
            "time_us": 10.0,
        }
        fields |= changes
        fields.setdefault("source", freshness.source(fields["kernel"]))
        return Entry(**fields)

    return make
