"""Enters what happens to mbarriers into the sanitizers' log of accesses."""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Value, literal
from gemmkit.emulator.codegen.layout import WORKER
from gemmkit.emulator.codegen.runtime.bounds import C
from gemmkit.emulator.codegen.runtime.shadow import log_entry, shadow, tell
from gemmkit.emulator.codegen.shadow_layout import (
    LOG_ENTRY,
    LOGGED_TIME,
    LOOKS,
    OBSERVED,
    OWN,
    SHADOW,
    TAG_KIND,
)


def keep_patterns(f: Function) -> None:
    """Have Python look at the log if patterns were built since it last did: further ones might
    replace those to which entries refer."""
    s = shadow(f)
    built = f.load("i64", C, WORKER["patterns"])
    with f.when(f.compare("ne", built, f.load("i64", s, SHADOW["patterns_seen"]))):
        tell(f, s, LOOKS)


def enter(
    f: Function, kind: int, number: Value, lane: Value, address: Value, completes: Value
) -> None:
    """A lane of the running warp uses an mbarrier, arrives there, or observes that a phase is
    complete; `completes`: that completes a phase. An arrival advances the block's clock."""
    s = shadow(f)
    count = f.load("i64", s, SHADOW["log_count"])
    entry = log_entry(f, s, count)
    time = f.load("i64", s, SHADOW["time"])
    both = f.or_(f.resize(number, 64), f.shl(f.resize(lane, 64), 32))
    tag = f.or_(f.load("i64", s, SHADOW["own_tag"]), kind << TAG_KIND)
    for name, a in (
        ("pattern", both),
        ("base", f.or_(address, f.shl(time, LOGGED_TIME))),
        ("serial", literal("i64", 0)),
        ("tag", f.or_(tag, f.resize(completes, 64))),
    ):
        f.store(a, entry, LOG_ENTRY[name])
    now = f.add(count, 1)
    f.store(now, s, SHADOW["log_count"])
    f.increase(s, SHADOW["time"], 1)
    if kind == OBSERVED:
        # The lanes of a warp that has waited are in step.
        own = f.load("ptr", s, SHADOW["own"])
        f.store(now, own, OWN["in_step"])
        f.store(f.load("i64", s, SHADOW["time"]), own, OWN["step_time"])
        f.increase(own, OWN["steps"], 1)
