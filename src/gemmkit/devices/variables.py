"""`__constant__` and `__device__` variables in a compiled kernel: their symbols, and unset ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

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
    unset = _unset(binary.ptx)
    given = {find_symbol(name, unset) for name, _ in plan.constants}
    if not unset.keys() - given:
        return
    for name, where in _readers(binary.ptx, binary.entry).items():
        if name in given:
            continue
        kind = "__constant__" if unset[name] == "const" else "__device__"
        raise UsageError(
            f"'{readable_name(name)}' ({kind}) was never set, and '{plan.kernel}' reads it at "
            f"{where}: give --constant {readable_name(name)}=VALUE (in Python "
            f'constants={{"{readable_name(name)}": VALUE}}), as the host code does'
        )


@lru_cache(maxsize=64)
def _unset(ptx: str) -> Mapping[str, str]:
    """The state spaces of the variables without initial value that a PTX text uses, by name.

    Static members of classes are declared in every text and hardly ever used: without them most
    texts need not be parsed.
    """
    declared = [each for each in PTX_VARIABLE.finditer(ptx) if each["data"] is None]
    return {
        each["name"]: each["space"]
        for each in declared
        if ptx.find(each["name"]) < each.start("name") or ptx.find(each["name"], each.end()) >= 0
    }


@lru_cache(maxsize=64)
def _readers(ptx: str, entry: str) -> Mapping[str, str]:
    """For each variable of `_unset` that a kernel reads, and does not write, where it does so
    first."""
    from gemmkit.emulator.ptx.parser import parse

    try:
        body = parse(ptx).kernels[entry].body
    except (GemmkitError, KeyError):
        return {}
    spaces = _unset(ptx)
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
