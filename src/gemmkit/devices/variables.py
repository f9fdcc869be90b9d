"""`__constant__` and `__device__` variables in a compiled kernel: their symbols, and unset ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gemmkit.emulator.ptx.module import Address, Instruction, Operand, Symbol
from gemmkit.errors import GemmkitError, UsageError
from gemmkit.frontends.ptx import readable_name
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import LaunchPlan
from gemmkit.kernels.variables import PTX_VARIABLE


def find_symbol(name: str, symbols: Iterable[str]) -> str | None:
    """The symbol of a variable by its name in the source, or None if there is none."""
    listed = list(symbols)
    if name in listed:
        return name
    return next((each for each in listed if readable_name(each) == name.split("::")[-1]), None)


def variable_symbols(ptx: str) -> tuple[str, ...]:
    """The symbols of a PTX text's module-scope variables."""
    return tuple(each["name"] for each in PTX_VARIABLE.finditer(ptx))


def refuse_unset(binary: Binary, plan: LaunchPlan) -> None:
    """Refuse a kernel that reads a variable that the host was to set and did not.

    Such are `__constant__` variables without an initial value, and `__device__` variables of that
    kind that the kernel itself only reads.

    Raises:
        UsageError: there is one; the text names it, the line that reads it, and how to set it.
    """
    if ".const ." not in binary.ptx and ".global ." not in binary.ptx:
        return
    declared = PTX_VARIABLE.finditer(binary.ptx)
    unset = {each["name"]: each["space"] for each in declared if each["data"] is None}
    given = {find_symbol(name, unset) for name, _ in plan.constants}
    unset = {name: space for name, space in unset.items() if name not in given}
    for name, where in _readers(binary, unset).items() if unset else ():
        kind = "__constant__" if unset[name] == "const" else "__device__"
        raise UsageError(
            f"'{readable_name(name)}' ({kind}) was never set, and '{plan.kernel}' reads it at "
            f"{where}: give --constant {readable_name(name)}=VALUE (in Python "
            f'constants={{"{readable_name(name)}": VALUE}}), as the host code does'
        )


def _readers(binary: Binary, spaces: Mapping[str, str]) -> dict[str, str]:
    """For each variable that the kernel reads, and does not write, where it does so first.

    `spaces` are the variables that are looked for, with the state space of each.
    """
    from gemmkit.emulator.ptx.parser import parse

    try:
        module = parse(binary.ptx)
        body = module.kernels[binary.entry].body
    except (GemmkitError, KeyError):
        return {}
    found, written = dict[str, str](), set[str]()
    for instruction in body:
        for name in _symbols(instruction) & spaces.keys():
            found.setdefault(name, instruction.where)
            # A variable whose address is taken may be written by way of that.
            if spaces[name] != "const" and not instruction.opcode.startswith("ld."):
                written.add(name)
    return {name: where for name, where in found.items() if name not in written}


def _symbols(instruction: Instruction) -> set[str]:
    """The names that an instruction has among its operands."""

    def of(operand: Operand | None) -> str:
        if isinstance(operand, Address):
            return of(operand.base)
        return operand.name if isinstance(operand, Symbol) else ""

    return {name for each in instruction.operands if (name := of(each))}
