"""How a product of host matrices is streamed, as text."""

from __future__ import annotations

from gemmkit.ops.streamed.explain import StreamDecision
from gemmkit.units import bytes_text, counted, microseconds_text


def stream_text(told: StreamDecision) -> str:
    """A decision as `gemmkit which --host` prints it."""
    boards = told.gpu if told.devices == 1 else f"{told.devices} × {told.gpu}"
    m, n = told.tile
    order = f"{'row by row' if told.by_rows else 'column by column'}, serpentine"
    order = "in growing squares" if told.squares else order
    tiles = f"{counted(told.tiles, 'tile')} of {m:,}×{n:,}, {order}"
    if told.group > 1:
        tiles = f"{counted(told.tiles, 'group')} of {told.group:,} products of {m:,}×{n:,}"
    depth = f"{told.depth:,} of k, {counted(told.chunks, 'step')} for each tile"
    rows = {
        "problem": f"{told.shape} on {boards}, from and to pinned host memory",
        "tiles": tiles,
        "panels": f"{depth}; a device keeps {told.panels[0]} of A and {told.panels[1]} of B",
        "memory": f"{bytes_text(told.device_bytes)} of {bytes_text(told.memory_bytes)}"
        + (" on each" if told.devices > 1 else ""),
        "in": f"{told.bytes_in / 1e9:,.2f} GB to the device, "
        f"{told.bytes_in / max(told.least_bytes_in, 1):.2f} × the operands: {_time(told.in_s)}",
        "out": f"{told.bytes_out / 1e9:,.2f} GB to the host: {_time(told.out_s)}",
        "product": _time(told.product_s),
        "time": f"{_time(told.seconds)}, {told.tflops:,.1f} TFLOP/s, estimated; "
        f"{_time(told.serial_s)} without overlap, on one device",
        "limiter": told.limiter,
        "link": f"{told.link_gb_per_s:g} GB/s each way",
    }
    return "".join(f"{name:8} {text}\n" for name, text in rows.items())


def _time(seconds: float) -> str:
    return microseconds_text(1e6 * seconds)
