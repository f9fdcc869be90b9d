"""What there is to try: every configuration of some kernels that one problem and board allow."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gemmkit.analysis.closed_form.form import ClosedForm
from gemmkit.dispatch.choose import Dispatcher
from gemmkit.errors import UnsupportedProblem
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.catalog import alternatives
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import LaunchShape, TileConfig
from gemmkit.problem import GemmProblem
from gemmkit.trials.entry import Entry

# Estimates are within half for every rung that was measured, and mostly within a tenth for later
# ones: what they predict to be so much slower than the best is not going to win.
WITHIN = 3.0

REFUSED = "refused by the kernel's rule"
OUTSIDE = "the kernel does not take this problem"
UNFIT_FOR_PROBLEM = "refused for this problem's layout or types"
UNFIT = "a block fits no SM"
SAME = "launched like another one"
SLOW = "estimated far slower than the best"


# A kernel's name and the sorted keys of a configuration.
Identity = tuple[str, tuple[tuple[str, int], ...]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration of a kernel, and its time in microseconds by the closed form."""

    kernel: Kernel
    config: TileConfig
    estimate_us: float

    @property
    def label(self) -> str:
        """Kernel and configuration as command lines take them."""
        told = str(self.config)
        return f"{self.kernel.name}:{told}" if told else self.kernel.name

    @property
    def identity(self) -> Identity:
        """What an entry of a store for it shares with it."""
        return identity_of(self.kernel, self.config)


@dataclass(frozen=True)
class Space:
    """Candidates, the fastest by estimate first, and how many were left out, by reason.

    `examples` has for a reason one configuration with the sentence of its refusal, `excluded` for
    each kernel of which nothing is left the sentence why. `total` is what the kernels' spaces hold
    together, before any rule.
    """

    problem: GemmProblem
    spec: GpuSpec
    candidates: tuple[Candidate, ...]
    left_out: Mapping[str, int]
    total: int
    examples: Mapping[str, str] = field(default_factory=dict)
    excluded: Mapping[str, str] = field(default_factory=dict)

    @property
    def nothing_left(self) -> str:
        """Why there are no candidates, kernel by kernel, and which kernels take the problem."""
        reasons = (f"{name}: {why}" for name, why in self.excluded.items())
        return "; ".join(reasons) + alternatives(self.problem, self.spec)


def identity_of(kernel: Kernel, config: TileConfig) -> Identity:
    """`Candidate.identity` of the candidate that this would be."""
    return kernel.name, tuple(sorted(config.as_dict().items()))


def unrefined(kernel: Kernel, config: Mapping[str, int]) -> TileConfig:
    """A configuration with the kernel's refinements at their defaults, as a space has it.

    Raises:
        UsageError: it has a key that the kernel has not.
    """
    own = kernel.default.as_dict()
    return kernel.configure({**config, **{key: own[key] for key in kernel.refinements}})


def refined(candidate: Candidate, problem: GemmProblem, spec: GpuSpec) -> Iterator[Candidate]:
    """The candidate with each other value of its kernel's refinements that is allowed."""
    kernel = candidate.kernel
    for values in itertools.product(*kernel.refinements.values()):
        changes = dict(zip(kernel.refinements, values, strict=True))
        config = kernel.configure({**candidate.config.as_dict(), **changes})
        if config != candidate.config and kernel.supports(problem, config, spec) is None:
            yield Candidate(kernel, config, candidate.estimate_us)


def likely(
    problem: GemmProblem, spec: GpuSpec, allowed: Sequence[Allowed], most: int
) -> Iterator[Candidate]:
    """What dispatch would choose without a store, then what it ranks next, of these kernels."""
    kernels = {each.kernel.name: each.kernel for each in allowed}
    dispatcher = Dispatcher(spec, None)
    try:
        choice = dispatcher.choose(problem)
    except UnsupportedProblem:
        return
    chosen = dispatcher.costed(choice.kernel.name, choice.config)
    ranked = (each.costed for each in dispatcher.ranked(problem))
    mine = (each for each in (chosen, *ranked) if each.kernel.name in kernels)
    for costed in itertools.islice(mine, most):
        kernel = kernels[costed.kernel.name]
        if kernel.supports(problem, costed.config, spec) is None:
            yield Candidate(kernel, costed.config, costed.estimate(problem).microseconds)


def entry_identity(entry: Entry) -> Identity:
    """`Candidate.identity` of the candidate that an entry is of."""
    return entry.kernel, tuple(sorted(entry.config.items()))


@dataclass(frozen=True)
class Allowed:
    """The configurations of a kernel that its rule allows on a board, whatever the problem.

    They are found when they are first asked for: a large space takes seconds.
    """

    kernel: Kernel
    spec: GpuSpec

    @cached_property
    def configurations(self) -> tuple[TileConfig, ...]:
        """All of them, in the order of the kernel's space."""
        return tuple(self.kernel.configurations(self.spec))

    @property
    def total(self) -> int:
        """The size of the kernel's space."""
        return math.prod(len(values) for values in self.kernel.space.values())


def search_space(
    problem: GemmProblem, spec: GpuSpec, allowed: Sequence[Allowed], *, within: float = WITHIN
) -> Space:
    """The configurations worth trying, by the kernels' rules, by occupancy, and by estimate.

    Args:
        problem: what is to be computed.
        spec: the board.
        allowed: what the kernels' rules leave of their spaces.
        within: how many times the best estimate one may reach; infinite to leave out nothing.
    """
    left_out: Counter[str] = Counter()
    examples: dict[str, str] = {}
    excluded: dict[str, str] = {}
    found: list[Candidate] = []
    for each in allowed:
        kernel = each.kernel
        before = len(found)
        why = kernel.accepts(problem, spec)
        if why is not None:
            left_out[OUTSIDE] += each.total
            excluded[kernel.name] = why
            continue
        left_out[REFUSED] += each.total - len(each.configurations)
        if not each.configurations:
            excluded[kernel.name] = kernel.rule(kernel.default, spec) or REFUSED
            continue
        for config in each.configurations:
            # The kernel accepts the problem, and its rule allows the configuration.
            why = kernel.pairing(problem, config, spec) if kernel.pairing is not None else None
            if why is not None:
                left_out[UNFIT_FOR_PROBLEM] += 1
                examples.setdefault(UNFIT_FOR_PROBLEM, f"{kernel.label(config)}: {why}")
                continue
            time_us = ClosedForm(kernel, config, spec).estimate(problem).microseconds
            if math.isinf(time_us):
                left_out[UNFIT] += 1
                examples.setdefault(UNFIT, f"{kernel.label(config)} on {spec.name}")
            else:
                found.append(Candidate(kernel, config, time_us))
        if len(found) == before:
            excluded[kernel.name] = why or UNFIT
    # Of equals the first: sorting keeps their order.
    found.sort(key=lambda candidate: candidate.estimate_us)
    limit = within * found[0].estimate_us if found else 0.0
    quick = [candidate for candidate in found if candidate.estimate_us <= limit]
    left_out[SLOW] += len(found) - len(quick)
    # A launch takes longer to make than an estimate.
    launches: set[tuple[str, LaunchShape]] = set()
    kept = []
    for candidate in quick:
        kernel = candidate.kernel
        launch = kernel.name, kernel.launch(problem, candidate.config, spec)
        if launch not in launches:
            launches.add(launch)
            kept.append(candidate)
    left_out[SAME] += len(quick) - len(kept)
    return Space(
        problem,
        spec,
        tuple(kept),
        {why: n for why, n in left_out.items() if n},
        sum(each.total for each in allowed),
        examples,
        excluded,
    )
