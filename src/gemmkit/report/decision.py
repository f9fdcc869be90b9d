"""A dispatch decision as text: the launch, the reason, and the runners-up."""

from __future__ import annotations

from gemmkit.dispatch.which import Alternative, Decision
from gemmkit.dtypes import types_text
from gemmkit.gpu import GIB
from gemmkit.kernels.layouts import layout_text
from gemmkit.units import counted, microseconds_text


def decision_text(decision: Decision) -> str:
    """A decision as `gemmkit which` prints it."""
    rows = {
        "problem": _problem(decision),
        "kernel": f"{decision.kernel}",
        "config": _config(decision.config),
        **_groups(decision),
        **_launch(decision),
        "source": decision.source,
        "reason": decision.reason,
        "time": _time(decision),
    }
    if decision.limiter:
        rows["limiter"] = decision.limiter
    if 0 < decision.memory_bytes < decision.stored_bytes:
        needed, there = (each / GIB for each in (decision.stored_bytes, decision.memory_bytes))
        rows["memory"] = (
            f"the matrices take {needed:,.0f} GiB and do not fit in the {there:,.0f} GiB of "
            f"{decision.gpu}"
        )
    if decision.parts > 1:
        rows["k"] = f"split: up to {decision.parts} blocks share a tile"
    if decision.copied:
        rows["copies"] = (
            f"{' and '.join(decision.copied)}, by a launch before it, {decision.copied_as}: "
            f"{decision.copied_bytes / 1e6:,.1f} MB read and written"
        )
    if decision.prepared:
        rows["prepared"] = (
            f"{' and '.join(decision.prepared.upper())}, {decision.copied_as}: "
            f"{decision.prepared_bytes / 1e6:,.1f} MB, made once"
        )
    if any(decision.residue):
        rows["edge"] = (
            f"residue tiles for the last {_sides(decision.residue)}, past the whole tiles"
        )
    if decision.rasterized:
        rows["order"] = "grouped rasterization, for reuse in the L2 cache"
    if decision.fewer_stages:
        rows["stages"] = (
            f"{decision.stages}, not the {decision.config['stages']} of the configuration: "
            f"{decision.fewer_stages}"
        )
    if decision.dependent:
        rows["start"] = "while the product before it ends, in CUDA graphs"
    if decision.chunks > 1:
        rows["sums"] = f"chunked accumulation in {decision.chunks} chunks of k, for accuracy"
    lines = [f"{name:8} {text}" for name, text in rows.items()]
    if decision.alternatives:
        lines += ["", "runners-up"]
        for each in decision.alternatives:
            lines += [
                f"{microseconds_text(each.estimate_us):>15}  {_label(each)}",
                f"{'':17}{each.why}",
            ]
    return "\n".join(lines) + "\n"


def _problem(decision: Decision) -> str:
    parts = [f"{decision.shape} on {decision.gpu}", decision.size]
    if decision.layout != "nn":
        parts.append(layout_text(decision.layout))
    types = types_text(decision.dtype, decision.out_dtype, decision.precision, decision.scales)
    if types != "fp32":
        parts.append(types)
    if not decision.aligned:
        parts.append("rows not aligned to 16 bytes")
    if decision.alpha != 1:
        parts.append(f"α = {decision.alpha:g}")
    if decision.beta:
        parts.append(f"β = {decision.beta:g}")
    if decision.epilogue != "none":
        parts.append(f"with {decision.epilogue}")
    return ", ".join(parts)


def _groups(decision: Decision) -> dict[str, str]:
    if not decision.groups:
        return {}
    least, mean, most = decision.rows_per_group
    spread = (
        f"{least} to {most} rows each, {mean:,.1f} on average"
        if least < most
        else (f"{counted(most, 'row')} each")
    )
    return {"groups": f"{decision.groups:,} of {spread}"}


def _launch(decision: Decision) -> dict[str, str]:
    if not all(decision.grid):
        return {"grid": "no blocks: C is empty, so nothing is launched"}
    each = "1 block" if decision.blocks_per_sm == 1 else f"{decision.blocks_per_sm} blocks"
    busy = f"; {decision.busy_blocks} have tiles of these rows" if decision.busy_blocks else ""
    return {
        "grid": f"{_dims(decision.grid)} {'block' if decision.grid == (1, 1, 1) else 'blocks'} of "
        f"{_threads(decision)} threads{busy}",
        "waves": f"{decision.waves:,.2f}, with {each} per SM at a time; "
        f"SMs busy {100 * decision.busy:.0f} % of the time",
    }


def _sides(residue: tuple[int, int]) -> str:
    """For example "1 row and 2 columns"; a side with none is left out."""
    sides = zip(residue, ("row", "column"), strict=True)
    return " and ".join(f"{count} {what}{'s'[: count > 1]}" for count, what in sides if count)


def _time(decision: Decision) -> str:
    text = microseconds_text(decision.time_us)
    if decision.tflops:
        text += f", {decision.tflops:.1f} TFLOP/s"
    if decision.measured:
        return f"{text}, measured; estimated {microseconds_text(decision.estimate_us)}"
    return f"{text}, estimated"


def _label(candidate: Alternative) -> str:
    mark = "  (the usual tile for this size)" if candidate.by_size else ""
    return f"{candidate.kernel}:{_config(candidate.config)}{mark}"


def _config(config: dict[str, int]) -> str:
    return ",".join(f"{key}={value}" for key, value in config.items())


def _threads(decision: Decision) -> int:
    x, y, z = decision.block
    return x * y * z


def _dims(dims: tuple[int, int, int]) -> str:
    return " × ".join(map(str, dims))
