"""From which variable of shared memory the address of each access is derived, as the PTX shows it.

Data flow over registers, whatever the path: an address belongs to a variable if its symbol comes in
everywhere, and only numbers are added to it. Where two variables may be meant, or where an address
is taken apart, nothing is known, and nothing is checked beyond the bounds of shared memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gemmkit.emulator.codegen.operands import Action
from gemmkit.emulator.isa.form import Form
from gemmkit.emulator.ptx.module import Negated, Register, Symbol, Variable

# What a register holds, besides the address of a variable, which is that one's name.
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
        # The space of cp.async is that of what it reads.
        if action.form.modifiers.get("S") == "global" and action.operation != "copy_async":
            continue
        base = action.address.base
        name = held.get(base) if isinstance(base, Register) else _of(base, held, symbols)
        if name is not None and name in symbols:
            found[action.number] = name
    return found


def bounds(variable: Variable, static_end: int, end: int) -> tuple[int, int]:
    """First byte and size of a variable; one of unknown size is all of dynamic shared memory.

    Static shared memory ends at the address `static_end`, dynamic at `end`.
    """
    if variable.size == 0 and variable.offset >= static_end:
        return variable.offset, end - variable.offset
    return variable.offset, variable.size


def _held(actions: Sequence[Action], symbols: frozenset[str]) -> dict[Register, str]:
    """What each register holds at all times; none where nothing is written to it."""
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
    """What an instruction makes of what its sources hold."""
    form = action.form
    if action.operation == "load":
        return _UNKNOWN if form.modifiers.get("S") in ("local", "") else _NUMBER
    if all(each == _NUMBER for each in sources):
        return _NUMBER
    if action.operation in _PASSED_ON and len(sources) == 1:
        return sources[0]
    if action.operation == "select":
        return sources[0] if sources[0] == sources[1] else _UNKNOWN
    if _UNKNOWN in sources:
        return _UNKNOWN
    return _moved(action.operation, form, sources)


def _moved(operation: str, form: Form, sources: Sequence[str]) -> str:
    """The variable whose address has had numbers added to it; unknown if that is not all."""
    addresses = [place for place, each in enumerate(sources) if each != _NUMBER]
    if len(addresses) != 1:
        return _UNKNOWN
    place = addresses[0]
    how = form.modifiers.get("O")
    adds = operation == "integer" and how in ("add", "sub") and (how == "add" or place == 0)
    # Where bits are known to be zero, compilers add by `or`; kernels swizzle by `xor`.
    adds |= operation == "logic" and how in ("or", "xor")
    adds |= operation in ("multiply_add", "multiply_add_wide", "multiply24_add") and place == 2
    return sources[place] if adds else _UNKNOWN
