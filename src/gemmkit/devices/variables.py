"""`__constant__` and `__device__` variables in a compiled kernel: their symbols, and unset ones."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gemmkit.emulator.ptx.module import Address, Instruction, Operand, Symbol
from gemmkit.errors import GemmkitError, UsageError
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import LaunchPlan
from gemmkit.kernels.ptx import readable_name

_UNSET = re.compile(
    r"^\s*(?:\.(?:visible|weak)\s+)*\.(?P<space>const|global)\s+(?:\.align\s+\d+\s+)?"
    r"(?:\.attribute\([^)]*\)\s+)?\.(?P<type>\w+)\s+(?P<name>[\w$]+)(?:\[(?P<count>\d+)\])?\s*;",
    re.MULTILINE,
)


def find_symbol(name: str, symbols: Iterable[str]) -> str | None:
    """The symbol of a variable by its name in the source, or None if there is none."""
    listed = list(symbols)
    if name in listed:
        return name
    return next((each for each in listed if readable_name(each) == name.split("::")[-1]), None)


def variable_symbols(ptx: str) -> tuple[str, ...]:
    """The symbols of a PTX text's module-scope variables without initial values."""
    return tuple(found["name"] for found in _UNSET.finditer(ptx))


def refuse_unset(binary: Binary, plan: LaunchPlan) -> None:
    """Refuse a kernel that reads a variable that the host was to set, and nobody has.

    Such are `__constant__` variables without an initial value, and `__device__` variables of that
    kind that the kernel itself only reads.

    Raises:
        UsageError: there is one; the text names it, the line that reads it, and how to set it.
    """
    if ".const ." not in binary.ptx and ".global ." not in binary.ptx:
        return
    unset = {found["name"]: found for found in _UNSET.finditer(binary.ptx)}
    given = {find_symbol(name, unset) for name, _ in plan.constants}
    names = [name for name in unset if name not in given]
    if not names:
        return
    readers = _readers(binary, names)
    for name in names:
        if name not in readers:
            continue
        kind = "__constant__" if unset[name]["space"] == "const" else "__device__"
        raise UsageError(
            f"'{readable_name(name)}' ({kind}) was never set, and '{plan.kernel}' reads it at "
            f"{readers[name]}: give --constant {readable_name(name)}=VALUE (in Python "
            f'constants={{"{readable_name(name)}": VALUE}}), as the host code does'
        )


def _readers(binary: Binary, names: Iterable[str]) -> dict[str, str]:
    """For each variable that the kernel reads, and does not write, where it does so first."""
    from gemmkit.emulator.ptx.parser import parse

    try:
        module = parse(binary.ptx)
        body = module.kernels[binary.entry].body
    except (GemmkitError, KeyError):
        return {}
    wanted, found, written = set(names), dict[str, str](), set[str]()
    for instruction in body:
        for name in _symbols(instruction) & wanted:
            found.setdefault(name, instruction.where)
            constant = instruction.opcode.startswith("ld.")
            # A variable whose address is taken may be written by way of that.
            if not constant and not _is_constant(binary.ptx, name):
                written.add(name)
    return {name: where for name, where in found.items() if name not in written}


def _is_constant(ptx: str, name: str) -> bool:
    return any(each["name"] == name and each["space"] == "const" for each in _UNSET.finditer(ptx))


def _symbols(instruction: Instruction) -> set[str]:
    """The names that an instruction has among its operands."""

    def of(operand: Operand | None) -> str:
        if isinstance(operand, Address):
            return of(operand.base)
        return operand.name if isinstance(operand, Symbol) else ""

    return {name for each in instruction.operands if (name := of(each))}
