"""Derives from the PTX which shared variable each access is to.

This is data flow over registers, independent of the path: an address belongs to a variable if its
symbol is a source on all paths and only numbers are added to it. If several variables are possible,
or an address is split into parts, nothing is known, and only the bounds of shared memory are
checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.ptx.module import Negated, Register, Symbol, Variable

# What a register holds, other than the address of a variable, which is represented by its name.
_NUMBER, _UNKNOWN = "", "?"

_PASSED_ON = frozenset(["move", "convert_address", "convert_integer", "call_parameter"])
_SHARED = frozenset(["", "shared", "shared::cta"])


def shared_arrays(actions: Sequence[Action], variables: Iterable[str]) -> Mapping[int, str]:
    """By the number of a memory instruction, the variable that its address is derived from.

    Args:
        actions: of one kernel.
        variables: the kernel's variables in shared memory; all others count as numbers.
    """
    symbols = frozenset(variables)
    held = _held(actions, symbols)
    found = {}
    for action in actions:
        if action.address is None or action.form.modifiers.get("S", "") not in _SHARED | {"global"}:
            continue
        # The space of cp.async is that of its source.
        if action.form.modifiers.get("S") == "global" and action.operation != "copy_async":
            continue
        base = action.address.base
        name = held.get(base) if isinstance(base, Register) else _of(base, held, symbols)
        if name is not None and name in symbols:
            found[action.number] = name
    return found


def bounds(variable: Variable, static_end: int, end: int) -> tuple[int, int]:
    """First byte and size of a variable; a variable of unknown size extends over all dynamic shared
    memory.

    Static shared memory ends at the address `static_end`, dynamic at `end`.
    """
    if variable.size == 0 and variable.offset >= static_end:
        return variable.offset, end - variable.offset
    return variable.offset, variable.size


def _held(actions: Sequence[Action], symbols: frozenset[str]) -> dict[Register, str]:
    """What each register holds at all times; a register that is never written holds nothing."""
    held: dict[Register, str] = {}
    changed = True
    while changed:
        changed = False
        for action in actions:
            results = [each for each in action.dests if each is not None]
            if not results:
                continue
            sources = [_of(source, held, symbols) for source in action.sources]
            known = [each for each in sources if each is not None]
            if len(known) < len(sources):
                continue
            value = _result(action, known)
            for register in results:
                before = held.get(register)
                now = value if before in (None, value) else _UNKNOWN
                if now != before:
                    held[register] = now
                    changed = True
    return held


def _of(source: object, held: Mapping[Register, str], symbols: frozenset[str]) -> str | None:
    if isinstance(source, Negated):
        source = source.register
    if isinstance(source, Register):
        return held.get(source)
    if isinstance(source, Symbol) and source.name in symbols:
        return source.name
    return _NUMBER


def _result(action: Action, sources: Sequence[str]) -> str:
    """What an instruction's result holds, given its sources."""
    form = action.form
    if action.operation == "load":
        return _UNKNOWN if form.modifiers.get("S") in ("local", "") else _NUMBER
    if all(each == _NUMBER for each in sources):
        return _NUMBER
    if action.operation in _PASSED_ON and len(sources) == 1:
        return sources[0]
    if action.operation == "map_address":
        return sources[0]
    if action.operation == "select":
        return sources[0] if sources[0] == sources[1] else _UNKNOWN
    if _UNKNOWN in sources:
        return _UNKNOWN
    return _moved(action.operation, form, sources)


def _moved(operation: str, form: Form, sources: Sequence[str]) -> str:
    """The variable whose address had numbers added to it; unknown for anything else."""
    addresses = [index for index, each in enumerate(sources) if each != _NUMBER]
    if len(addresses) != 1:
        return _UNKNOWN
    index = addresses[0]
    how = form.modifiers.get("O")
    adds = operation == "integer" and how in ("add", "sub") and (how == "add" or index == 0)
    # Compilers add by `or` if bits are known to be zero; kernels swizzle by `xor`.
    adds |= operation == "logic" and how in ("or", "xor")
    adds |= operation in ("multiply_add", "multiply_add_wide", "multiply24_add") and index == 2
    return sources[index] if adds else _UNKNOWN
