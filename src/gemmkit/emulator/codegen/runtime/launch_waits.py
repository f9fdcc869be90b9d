"""Records which lanes wait for earlier launches (`griddepcontrol.wait`), and who is ahead of that.

A thread that has executed the instruction comes after all that earlier launches do. Python knows
which other threads do as well, since barriers or mbarriers order them after it.
"""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Module, Value
from gemmkit.emulator.codegen.layout import PATTERN
from gemmkit.emulator.codegen.runtime.bounds import SITE_POINTER, C, P
from gemmkit.emulator.codegen.runtime.patterns import BASE
from gemmkit.emulator.codegen.runtime.sanitized import PREFIX
from gemmkit.emulator.codegen.runtime.shadow import event, shadow
from gemmkit.emulator.codegen.shadow_layout import AHEAD_OF_WAIT, OWN, SHADOW

_LANES = Value("i32", "%lanes")


def define(module: Module) -> None:
    """launch_wait(worker, lanes): lanes of the running warp have waited for earlier launches."""
    with module.function(f"gemmkit.{PREFIX}launch_wait", "void", (C, _LANES)) as f:
        with f.when(f.compare("ne", _LANES, 0)):
            s = shadow(f)
            own = f.load("ptr", s, SHADOW["own"])
            f.increase(s, SHADOW["launch_waits"], 1)
            left = f.and_(f.load("i64", own, OWN["ahead"]), f.not_(f.resize(_LANES, 64)))
            f.store(left, own, OWN["ahead"])
            with f.when(f.compare("eq", f.load("i64", own, OWN["launch_wait"]), 0)):
                f.increase(s, SHADOW["time"], 1)
                f.store(f.load("i64", s, SHADOW["time"]), own, OWN["launch_wait"])
        f.ret()


def tell_if_ahead(f: Function, s: Value) -> None:
    """Tell Python of an access to global memory by lanes that have not waited."""
    ahead = f.load("i64", f.load("ptr", s, SHADOW["own"]), OWN["ahead"])
    early = f.and_(ahead, f.resize(f.load("i32", P, PATTERN.mask), 64))
    with f.when(f.compare("ne", early, 0)):
        event(f, AHEAD_OF_WAIT, BASE, early, site=SITE_POINTER, p=P)
