"""atom and red: one lane after the other, atomic also against other workers."""

from __future__ import annotations

from gemmkit.emulator.codegen.ir import Function, Module, Value
from gemmkit.emulator.codegen.layout import PATTERN
from gemmkit.emulator.codegen.runtime.access import begin, host_pointer, return_if_idle
from gemmkit.emulator.codegen.runtime.bounds import SITE_POINTER as SITE_AT
from gemmkit.emulator.codegen.runtime.bounds import C
from gemmkit.emulator.codegen.runtime.patterns import BASE, element
from gemmkit.emulator.codegen.runtime.patterns import PATTERN_POINTER as P
from gemmkit.emulator.codegen.runtime.peers import update_lane, visit_peers
from gemmkit.emulator.codegen.runtime.spaces import for_each_part

# PTX's operations, and LLVM's atomicrmw for each type.
_OPERATIONS = {
    "add": {"u32": "add", "s32": "add", "u64": "add", "f32": "fadd", "f64": "fadd"},
    **{name: {"b32": name, "b64": name} for name in ("and", "or", "xor")},
    "exch": {"b32": "xchg", "b64": "xchg"},
    **{
        name: {"u32": f"u{name}", "s32": name, "u64": f"u{name}", "s64": name}
        for name in ("min", "max")
    },
    "inc": {"u32": "uinc_wrap"},
    "dec": {"u32": "udec_wrap"},
}
_FLOATS = {"f32": "float", "f64": "double"}

ACT = Value("ptr", "%act")
RESULT, OPERAND, OTHER = Value("ptr", "%result"), Value("ptr", "%x"), Value("ptr", "%y")
AT = Value("ptr", "%at")


def is_native(name: str, of: str) -> bool:
    """Whether there is a function for this operation (or `cas`) on this type."""
    return of in _OPERATIONS.get(name, {}) or (name == "cas" and of in ("b32", "b64"))


def define(module: Module) -> None:
    """Add the functions of this file to the runtime."""
    for name, types in _OPERATIONS.items():
        for of, operation in types.items():
            _define_action(module, f"{name}_{of}", of, operation)
    for of in ("b32", "b64"):
        _define_action(module, f"cas_{of}", of, "cmpxchg")
    for bits in (32, 64):
        for space in ("global", "shared"):
            _define_atomic(module, space, bits)
        _define_generic(module, bits)


def _define_action(module: Module, name: str, of: str, operation: str) -> None:
    """<operation>_<type>(pattern, address, result or null, operand, other operand)."""
    bits = int(of[1:])
    with module.function(f"gemmkit.{name}", "void", (P, AT, RESULT, OPERAND, OTHER)) as f:
        with f.each_bit(f.load("i32", P, PATTERN.mask)) as lane:
            pointer = f.offset(AT, element(f, P, lane, 64))
            old = _act(f, pointer, element(f, OPERAND, lane, bits), lane, of, operation)
            with f.when(f.compare("ne", RESULT, Value("ptr", "null"))):
                f.store(old, f.element(RESULT, lane, bits))
        f.ret()


def _act(f: Function, pointer: Value, x: Value, lane: Value, of: str, operation: str) -> Value:
    if operation == "cmpxchg":
        return f.compare_exchange(pointer, x, element(f, OTHER, lane, int(of[1:])))
    if of not in _FLOATS:
        return f.atomic(operation, pointer, x)
    old = f.atomic(operation, pointer, f.cast("bitcast", x, _FLOATS[of]))
    return f.cast("bitcast", old, x.type)


def _parameters() -> tuple[Value, ...]:
    return (C, SITE_AT, P, BASE, ACT, RESULT, OPERAND, OTHER)


def _define_atomic(module: Module, space: str, bits: int) -> None:
    """atomic_<space>_<bits>(worker, site, pattern, base, action, result, operand, other)."""
    name = f"gemmkit.atomic_{space}_{bits}"
    with module.function(name, "void", _parameters()) as f:
        if space == "shared":
            return_if_idle(f)
            rest = (RESULT, OPERAND, OTHER)

            def again(p: Value, base: Value) -> None:
                f.call(name, "void", C, SITE_AT, p, base, ACT, *rest)

            def whole(at: Value) -> None:
                f.call_pointer(ACT, "void", P, at, *rest)

            visit_peers(f, bits // 8, whole, update_lane(f, ACT, rest), again)
        begin(f, space, bits // 8, store=True)
        at = host_pointer(f, space)
        f.call_pointer(ACT, "void", P, at, RESULT, OPERAND, OTHER)
        f.ret()


def _define_generic(module: Module, bits: int) -> None:
    """The same for generic addresses; there are no atomics on local memory."""
    with module.function(f"gemmkit.atomic_generic_{bits}", "void", _parameters()) as f:
        return_if_idle(f)
        rest = (ACT, RESULT, OPERAND, OTHER)
        for_each_part(f, f"atomic_{{}}_{bits}", rest, ("shared", "global"))
        f.ret()
