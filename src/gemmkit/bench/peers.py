"""Peers by name: the libraries that gemmkit is compared with, each checked before it is timed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from gemmkit.bench.baseline import Arguments, Baseline, Way, arithmetic_of
from gemmkit.bench.cublas_peer import CublasBaseline
from gemmkit.bench.linear_peer import LinearBaseline
from gemmkit.bench.run import finite
from gemmkit.bench.timer import Rotation
from gemmkit.bench.torch_peer import TorchBaseline
from gemmkit.bench.triton_peer import TritonBaseline
from gemmkit.bench.workload import Workload
from gemmkit.devices.device import TimedDevice
from gemmkit.errors import UsageError, unknown_name
from gemmkit.problem import GemmProblem
from gemmkit.record import PeerRecord, TimeRecord
from gemmkit.verify import Verdict

HOW_TO_GET = (
    "no cuBLAS to compare with: `pip install 'gemmkit[baseline]'` brings it (about 450 MB), "
    "and PyTorch does too"
)
CUBLAS, GEMMKIT = "cublas", "gemmkit"
DEFAULT, BEST, PLAIN, CANDIDATE = "default", "best", "plain", "candidate"


def find_baseline(device: TimedDevice) -> Baseline | None:
    """The best baseline that is installed and works, or None: see `HOW_TO_GET`."""
    kinds: tuple[Callable[[TimedDevice], Baseline], ...] = (CublasBaseline, TorchBaseline)
    for kind in kinds:
        try:
            return kind(device)
        except Exception:
            # Absent, or without its CUDA library, or for another CUDA: all the same to a user.
            continue
    return None


@dataclass(frozen=True, slots=True)
class Library:
    """How a peer is opened, how to get it, and whether it chooses among its ways for itself."""

    open: Callable[[TimedDevice], Baseline | None]
    how_to_get: str
    chooses: bool = True


LIBRARIES = {
    CUBLAS: Library(find_baseline, HOW_TO_GET),
    "torch": Library(
        TorchBaseline,
        "no PyTorch with CUDA to compare with: `pip install 'gemmkit[torch]'` brings it",
    ),
    "linear": Library(
        LinearBaseline,
        "no PyTorch with CUDA to compare with: `pip install 'gemmkit[torch]'` brings it",
    ),
    "triton": Library(
        TritonBaseline,
        "no Triton to compare with: PyTorch for Linux brings it, `pip install 'gemmkit[torch]'`",
        chooses=False,
    ),
}


@dataclass(frozen=True, slots=True)
class Peer:
    """A library at work on a device."""

    vendor: str
    baseline: Baseline

    @property
    def chooses(self) -> bool:
        """Whether the first of its candidates is what the library takes of itself."""
        return LIBRARIES[self.vendor].chooses


@dataclass(frozen=True, slots=True)
class Entrant:
    """One way of a peer to a problem, judged already; fields of the same names as in
    `PeerRecord`."""

    vendor: str
    choice: str
    name: str
    candidates: int
    rotation: Rotation
    verdict: Verdict
    ranking: tuple[str, ...] = ()
    config: dict[str, int] = field(default_factory=dict)

    def record(self, problem: GemmProblem, times: TimeRecord, ours: TimeRecord) -> PeerRecord:
        """What was seen of it, beside the kernel's own times."""
        return PeerRecord(
            vendor=self.vendor,
            choice=self.choice,
            name=self.name,
            candidates=self.candidates,
            time_us=times,
            tflops=problem.flops / times.median / 1e6,
            speedup=times.median / ours.median,
            correct=self.verdict.correct,
            max_error=finite(self.verdict.max_error),
            error_ratio=finite(self.verdict.error_ratio),
            check=self.verdict.detail or self.verdict.method,
            arithmetic=self.verdict.arithmetic,
            ranking=self.ranking,
            config=self.config,
            errors=self.verdict.errors,
        )


def check_names(names: Collection[str]) -> None:
    """See that every name is a library's.

    Raises:
        UsageError: one is not.
    """
    for name in names:
        if name not in LIBRARIES:
            raise UsageError(unknown_name("peer", name, LIBRARIES))


def open_peers(names: Sequence[str], device: TimedDevice) -> list[Peer]:
    """The libraries of these names, each once, in their order.

    Raises:
        UsageError: a name is unknown, or its library is not installed or does not work here.
    """
    check_names(names)
    return [_open(name, device) for name in dict.fromkeys(names)]


def _open(name: str, device: TimedDevice) -> Peer:
    library = LIBRARIES[name]
    try:
        baseline = library.open(device)
    except Exception as error:
        # Absent, or without its CUDA library, or for another CUDA.
        raise UsageError(f"{library.how_to_get} ({error})") from error
    if baseline is None:
        raise UsageError(library.how_to_get)
    return Peer(name, baseline)


def entrants(peer: Peer, workload: Workload, device: TimedDevice) -> list[Entrant]:
    """What a peer sends: its own choice, and the fastest of its candidates; each is judged.

    They are two entries with one rotation where they are the same. Of a peer whose ways have names
    for their choice, each is an entry.

    Raises:
        Exception: whatever the library raises; not all have errors of their own.
    """
    ways = workload.candidates(peer.baseline)
    chosen = [(way.choice, name) for name, way in ways.items() if way.choice]
    ranking: tuple[str, ...] = ()
    if not chosen:
        ranking = tuple(workload.ranked(device, {name: way.works for name, way in ways.items()}))
        chosen = [(BEST, ranking[0])]
        if peer.chooses:
            own = (DEFAULT, next(iter(ways)))
            chosen = [own] if len(ways) == 1 else [own, *chosen]
    names = dict.fromkeys(name for _, name in chosen)
    verdicts = {name: _judge(peer, name, ways[name], workload, device) for name in names}
    return [
        Entrant(
            peer.vendor,
            choice,
            name,
            1 if ways[name].choice else len(ways),
            ways[name].works,
            verdicts[name],
            ranking if choice == BEST and len(ranking) > 1 else (),
        )
        for choice, name in chosen
    ]


def _judge(peer: Peer, name: str, way: Way, workload: Workload, device: TimedDevice) -> Verdict:
    """Whether one candidate of a peer is right, by the bound of its own roundings."""
    problem = workload.problem

    def compute(arguments: Arguments) -> None:
        fresh = peer.baseline.candidates(problem, [arguments])[name]
        (fresh.judged or fresh.works)[0](device.stream)

    return workload.judge(compute, arithmetic=arithmetic_of(problem, way.stored))
