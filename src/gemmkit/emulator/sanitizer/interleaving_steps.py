"""The steps of an interleaving, and their words: warps run up to or through events, and copies take
effect."""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.emulator.machine.errors import span
from gemmkit.emulator.ptx.module import Instruction
from gemmkit.emulator.ptx.places import place_of, source_place
from gemmkit.emulator.sanitizer.trace import END, Executed, Passed, Trace
from gemmkit.emulator.schedule import Place, Run, Step


def _run(trace: Trace, node: Executed, *, whole: bool) -> Run:
    """A warp runs up to an event or, as a `whole`, through it."""
    event = trace.events[node.warp][node.index]
    rank, warp = divmod(node.warp, trace.warps)
    if event.number == END:
        return Run(warp, None, rank)
    file, line = place_of(trace.body[event.number])
    return Run(warp, Place(file, line, event.times, whole), rank)


def through(trace: Trace, node: Executed) -> Run:
    """A warp runs through an event."""
    return _run(trace, node, whole=True)


def until_next(trace: Trace, node: Passed) -> Run:
    """A warp runs to the end of a segment."""
    if node.index == trace.last(node.warp):
        rank, warp = divmod(node.warp, trace.warps)
        return Run(warp, None, rank)
    return _run(trace, Executed(node.warp, node.index + 1), whole=False)


def warp_name(warp: int, rank: int) -> str:
    """A warp in words; of the block of rank 0 it is only its number."""
    return f"warp {warp}" + (f" of rank {rank}" if rank else "")


def text_of(trace: Trace, step: Step) -> str:
    """A step in words."""
    if isinstance(step, Run):
        ending = _ending(trace, step)
        return f"{warp_name(step.warp, step.rank)} runs {ending}"
    copy = next(
        each
        for each in trace.copies
        if (each.times, each.copy.thread, each.rank) == (step.copy, step.thread, step.rank)
    ).copy
    opcode = copy.action.form.opcode.split("::")[0].split(".shared")[0].split(".global")[0]
    where = _where(copy.action.instruction)
    thread = f"thread {step.thread}" + (f" of rank {step.rank}" if step.rank else "")
    return f"copy {step.copy} of {thread} takes effect ({opcode} at {where})"


def _ending(trace: Trace, step: Run) -> str:
    """How far a warp runs."""
    until = step.until
    if until is None:
        return "to the end"
    event = next(
        each
        for each in trace.events[step.rank * trace.warps + step.warp]
        if each.number != END
        and place_of(trace.body[each.number]) == (until.file, until.line)
        and each.times == until.times
    )
    instruction = trace.body[event.number]
    opcode = ".".join(instruction.opcode.split(".shared")[0].split(".")[:4])
    times = f" (time {until.times} at this line)" if until.times > 1 else ""
    how = "through" if until.through else "up to"
    return f"{how} {opcode} at {_where(instruction)}{times}"


def _where(instruction: Instruction) -> str:
    """The source line, and that of the call if the function was inlined."""
    file, line = place_of(instruction)
    calls = source_place(instruction.named)[2] if instruction.named is not None else ()
    return f"{file}:{line}" + (f" (called at {calls[0]})" if calls else "")


def grouped(trace: Trace, steps: Sequence[Step], texts: Sequence[str]) -> list[str]:
    """The texts of steps, with warps that run equally far one after the other in one line; a text
    without a step may be the last."""
    lines: list[str] = []
    group: list[Run] = []
    for step, text in zip(steps, texts, strict=False):
        joins = isinstance(step, Run) and text == text_of(trace, step)
        if group and not (
            joins and isinstance(step, Run) and _ending(trace, step) == _ending(trace, group[0])
        ):
            lines.append(_together(trace, group))
            group = []
        if joins and isinstance(step, Run):
            group.append(step)
        else:
            lines.append(text)
    if group:
        lines.append(_together(trace, group))
    return [*lines, *texts[len(steps) :]]


def _together(trace: Trace, group: Sequence[Run]) -> str:
    if len(group) == 1:
        return text_of(trace, group[0])
    by_rank: dict[int, list[int]] = {}
    for each in group:
        by_rank.setdefault(each.rank, []).append(each.warp)
    # Ranks with the same warps share a part.
    ranks: dict[tuple[int, ...], list[int]] = {}
    for rank, warps in by_rank.items():
        ranks.setdefault(tuple(sorted(warps)), []).append(rank)
    alone = list(ranks.values()) == [[0]]
    parts = [_warps(warps, () if alone else sorted(of)) for warps, of in ranks.items()]
    return f"{', '.join(parts)} run {_ending(trace, group[0])}"


def _warps(warps: Sequence[int], ranks: Sequence[int]) -> str:
    of = f" of rank{'s' * (len(ranks) > 1)} {span(ranks)}" if ranks else ""
    return f"warp{'s' * (len(warps) > 1)} {span(warps)}{of}"
