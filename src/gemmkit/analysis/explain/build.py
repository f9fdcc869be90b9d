"""`explain`: builds the explanation of a kernel, and of one to compare it with."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from gemmkit.analysis.explain import derived
from gemmkit.analysis.explain.derived import figures
from gemmkit.analysis.explain.explanation import Explanation, Operand, SourceLine
from gemmkit.analysis.explain.facts import Facts, gather
from gemmkit.analysis.explain.pair import Pair
from gemmkit.analysis.explain.reasons import compare
from gemmkit.analysis.explain.remarks import remarks
from gemmkit.analysis.explain.sections import sections
from gemmkit.analysis.memory import MemoryRow
from gemmkit.cxx.includes import included_files
from gemmkit.gpu import DEFAULT_BOARD, GpuSpec, find_board
from gemmkit.kernels import include_files
from gemmkit.kernels.asked import Asked
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import EXPRESSION_FILE, TileConfig
from gemmkit.problem import GemmProblem


def explain(
    kernel: Kernel | str,
    problem: GemmProblem | str | int = 1024,
    *,
    gpu: GpuSpec | str | None = None,
    config: TileConfig | Mapping[str, int] | None = None,
    against: Kernel | str | None = None,
    against_config: TileConfig | Mapping[str, int] | None = None,
    progress: Callable[[float], None] | None = None,
    cache_dir: Path | None = None,
) -> Explanation:
    """Explain a kernel's speed, and why it is faster or slower than another kernel.

    Args:
        kernel: a rung, its name, or a user's kernel.
        problem: what it computes; a string such as `512x300x200`, or a number for a cube.
        gpu: the target board, by default an RTX 3090.
        config: the kernel's configuration, or changes to its default.
        against: the kernel to compare it with, on the same problem and board.
        against_config: the configuration of that one.
        progress: called with the completed fraction of each emulation.
        cache_dir: root of the caches; by default the user's.

    Raises:
        UsageError: no such kernel, board, shape or configuration key.
        UnsupportedProblem: a kernel refuses the problem or the configuration.
        CompileError: a kernel does not compile.
        DeviceError: a kernel failed.
    """
    board = DEFAULT_BOARD if gpu is None else find_board(gpu)
    first = find_kernel(kernel) if isinstance(kernel, str) else kernel
    asked = Asked().problem(problem, first)

    def collect(chosen: Kernel | str, changes: TileConfig | Mapping[str, int] | None) -> Facts:
        found = find_kernel(chosen) if isinstance(chosen, str) else chosen
        if not isinstance(changes, TileConfig):
            changes = found.configure(changes or {})
        return gather(
            found,
            found.lay_out(asked),
            board,
            config=changes,
            progress=progress,
            cache_dir=cache_dir,
        )

    this = collect(first, config)
    if against is None:
        return explain_facts(this)
    return explain_facts(this, collect(against, against_config))


def explain_facts(this: Facts, other: Facts | None = None) -> Explanation:
    """The explanation of facts that were already gathered, for one problem and board."""
    if other is None:
        return _alone(this, this.name, figures(this))
    pair = Pair(this, other, figures(this), figures(other))
    mine, theirs = pair.names
    return msgspec.structs.replace(
        _alone(this, mine, pair.mine),
        against=_alone(other, theirs, pair.theirs),
        comparison=compare(pair),
    )


def _alone(facts: Facts, name: str, metrics: Mapping[str, float]) -> Explanation:
    return Explanation(
        kernel=name,
        idea=facts.kernel.idea,
        config=facts.config.as_dict(),
        gpu=facts.gpu.name,
        problem=facts.problem.shape,
        counted=facts.counted.shape,
        metrics=dict(metrics),
        sections=sections(facts, metrics),
        operands=tuple(map(_operand, facts.accesses)),
        source=_source(facts),
        sentences=remarks(facts, metrics),
        wrong=facts.verdict.detail,
        diagnosis=facts.verdict.diagnosis,
        errors=facts.verdict.errors,
        error_ratio=ratio if math.isfinite(ratio := facts.verdict.error_ratio) else None,
    )


def _operand(row: MemoryRow) -> Operand:
    def mean(total: int, of: int) -> float:
        return total / of if of else 0.0

    return Operand(
        array=row.array,
        space=row.space,
        kind=row.kind,
        requests=row.requests,
        instructions=row.instructions,
        data_bytes=row.data_bytes / row.requests,
        sectors=row.sectors / row.requests,
        ideal_sectors=row.ideal_sectors / row.requests,
        tag_wavefronts=row.tag_wavefronts / row.requests,
        wavefronts=mean(row.wavefronts, row.instructions),
        ideal_wavefronts=mean(row.ideal_wavefronts, row.instructions),
    )


_COUNTS: Mapping[str, tuple[str, ...]] = {
    "instructions": ("ptx__inst_executed.sum",),
    "fma": ("ptx__inst_executed_op_fma.sum",),
    "global_requests": (
        "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
        "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    ),
    "global_sectors": (
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
        "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    ),
    "shared_wavefronts": derived.SHARED_WAVEFRONTS,
    "bank_conflicts": derived.SHARED_CONFLICTS,
}


def _texts(facts: Facts, wanted: Collection[str]) -> Mapping[str, Sequence[str]]:
    """The lines of the kernel's file, of gemmkit's headers, and of the wanted user headers.

    A line table names a header as it was included, that is, by the end of its path.
    """
    source = facts.plan.source
    texts: defaultdict[str, Sequence[str]] = defaultdict(tuple)
    texts[source.name] = facts.kernel.source.splitlines()
    texts[EXPRESSION_FILE] = source.expression.splitlines()
    for name, text in include_files().items():
        texts.setdefault(name, text.splitlines())
    left = [Path(name) for name in wanted if name not in texts]
    if left and source.include_dirs:
        own = included_files(source.text, Path(source.include_dirs[0]), source.include_dirs)
        for path, text in own.items():
            for missing in left:
                if path.parts[-len(missing.parts) :] == missing.parts:
                    texts[str(missing)] = text.splitlines()
    return texts


def _source(facts: Facts) -> tuple[SourceLine, ...]:
    """Every line that executed an instruction, with its text if the source is available."""
    texts = _texts(facts, {file for file, _ in facts.launch.line_counters})
    rows = []
    for (file, line), counters in facts.launch.line_counters.items():
        counts = {
            field: sum(counters.get(metric, 0.0) for metric in metrics)
            for field, metrics in _COUNTS.items()
        }
        if counts["instructions"]:
            lines = texts[file]
            # Line 0 stands for code without a line.
            text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
            rows.append(SourceLine(file=file, line=line, text=text, **counts))
    return tuple(rows)
