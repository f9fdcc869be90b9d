"""Selects the native code of a form: integers, floats or half-precision numbers."""

from __future__ import annotations

from collections.abc import Sequence

from gemmkit.emulator.codegen import floats, halves, integers
from gemmkit.emulator.codegen.ir import Function, Value
from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.isa.form import Form

# Operations that the block writer itself translates.
_BY_HAND = frozenset(["move", "convert_address", "load_parameter", "call_parameter"])


def native(form: Form) -> bool:
    """Whether a pure form has native code."""
    return form.operation in _BY_HAND or any(
        kind.native(form) for kind in (integers, halves, floats)
    )


def scalar_native(action: Action) -> bool:
    """Whether one value can serve all lanes of a result."""
    return action.pure and native(action.form)


def emit(f: Function, form: Form, sources: Sequence[Value]) -> Sequence[Value]:
    """Emit a form; the sources have the widths that it asks for."""
    emitters = halves.EMITTERS if halves.native(form) else floats.EMITTERS
    if form.operation in integers.EMITTERS:
        emitters = integers.EMITTERS
    return emitters[form.operation](f, form, sources)


def pack(f: Function, bits: int, sources: Sequence[Value]) -> Value:
    """`mov` from a brace list: the first element becomes the lowest bits."""
    width = bits // len(sources)
    whole = f.resize(sources[0], bits)
    for index, source in enumerate(sources[1:], 1):
        whole = f.or_(whole, f.shl(f.resize(source, bits), index * width))
    return whole


def unpack(f: Function, source: Value, bits: int, count: int) -> Sequence[Value]:
    """`mov` to a brace list."""
    width = bits // count
    return [
        f.resize(f.lshr(source, index * width) if index else source, width)
        for index in range(count)
    ]


def merge(f: Function, sources: Sequence[Value]) -> Sequence[Value]:
    """The new value where the predicate holds, else the old; sources are predicate, new, old."""
    predicate, new, old = sources
    return (f.select(predicate, new, old),)
