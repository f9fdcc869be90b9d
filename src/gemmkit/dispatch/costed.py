"""`CostedCandidate`: a candidate on a board that can run it, at fitted costs if there are any."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache

import msgspec

from gemmkit.analysis.closed_form.costs import UNCORRECTED, BoardCosts, Correction
from gemmkit.analysis.closed_form.form import ClosedForm
from gemmkit.decoding import from_json
from gemmkit.dispatch import shipped_file
from gemmkit.dispatch.candidate import Candidate
from gemmkit.dtypes import Dtype
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.cut import useful_parts
from gemmkit.problem import GemmProblem

# What is only derived must promise that much more than what was measured.
DOUBT = 1.08
DOUBTED = Correction(step=DOUBT, latency=DOUBT, tile=DOUBT)


class CostedCandidate(ClosedForm):
    """A candidate with the closed form of its launches.

    `board` is what is known of boards of this kind, by default what ships. Where costs were
    measured of others and not of this one, its estimates are taken to be longer by `DOUBT`.
    A kernel with the mainloop of another has the costs of that one until its own are measured.
    """

    def __init__(self, candidate: Candidate, gpu: GpuSpec, board: BoardCosts | None = None) -> None:
        board = board or board_costs(gpu.capability.major, gpu.capability.minor)
        super().__init__(candidate.kernel, candidate.config, gpu, board=board)
        self.candidate = candidate
        self._unmeasured = DOUBTED if board.corrections else UNCORRECTED
        self._split: dict[int, CostedCandidate] = {}
        self._corrections: dict[Dtype, Correction] = {}

    def correction_for(self, dtype: Dtype) -> Correction:
        """As `ClosedForm.correction_for`."""
        if dtype not in self._corrections:
            self._corrections[dtype] = self._correction_for(dtype)
        return self._corrections[dtype]

    def _correction_for(self, dtype: Dtype) -> Correction:
        corrections = self.board.corrections
        found = corrections.get(self.candidate.costed_as(dtype))
        if found is None and self.kernel.mainloop is not None:
            alike = Candidate(self.kernel.mainloop.name, self.config)
            found = corrections.get(alike.costed_as(dtype))
        return found or self._unmeasured

    def is_measured(self, dtype: Dtype) -> bool:
        """Whether its costs for a type rest on measurements of this board's kind."""
        return self.correction_for(dtype) is not self._unmeasured

    def variants(self, problem: GemmProblem) -> Iterator[CostedCandidate]:
        """Itself, and where its k is whole but can be cut, the cuts that suit the problem."""
        yield self
        if self.config.split_k == 1:
            work = self.kernel.work(problem, self.config, self.gpu)
            resident = self.blocks_per_sm(work, self.costs(work, problem.dtype).registers)
            for parts in useful_parts(problem, self.config, self.gpu, resident, work.cut):
                if parts not in self._split:
                    candidate = self.candidate.split(parts)
                    self._split[parts] = CostedCandidate(candidate, self.gpu, self.board)
                yield self._split[parts]


@cache
def board_costs(major: int, minor: int) -> BoardCosts:
    """The figures of a compute capability; general ones where nothing was measured.

    A file that cannot be read is reported in a warning, and counts as not there.
    """
    path = shipped_file("fitted", f"sm_{major}{minor}.json")
    try:
        return from_json(path.read_bytes(), BoardCosts)
    except FileNotFoundError:
        return BoardCosts()
    except (OSError, msgspec.MsgspecError) as error:
        warnings.warn(
            f"{path} cannot be read ({error}): times are estimated without it",
            RuntimeWarning,
            stacklevel=2,
        )
        return BoardCosts()
