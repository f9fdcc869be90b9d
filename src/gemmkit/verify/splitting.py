"""Recognizes operands that a kernel splits into parts of a narrower type, such as bf16x3.

The high part of x is x rounded to the narrower type, the low part is x − high(x), rounded to it
again; the product of two operands is then that of their parts, without that of both low parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from gemmkit.verify.arithmetic import Format
from gemmkit.verify.value_flow import Operation, nodes_of, verb_of

if TYPE_CHECKING:
    from gemmkit.emulator.ptx.module import Instruction

_LOADS = ("ld", "ldu", "ldmatrix", "wmma")


def split_operands(
    operations: Sequence[Operation], results: Collection[str]
) -> tuple[Format, Instruction] | None:
    """The type of the parts and the first rounding to it; None unless all operands are split.

    `operations` are those whose values reach the result, `results` the nodes that are added to it
    or stored, and not only multiplied on the way. Every rounding to a narrower type must be that of
    a value that is split or of a low part: an operand that is rounded alone has the error of that
    rounding, and so has a result.
    """
    definitions: defaultdict[str, list[Operation]] = defaultdict(list)
    for each in operations:
        for node in each.result:
            definitions[node].append(each)
    whole: set[str] = set()
    low: set[str] = set()
    for each in operations:
        found = _split_by(each, definitions)
        if found is not None:
            whole.add(found)
            low.update(each.result)
    # A low part may be scaled, so that it does not underflow.
    low |= {
        node
        for each in operations
        if verb_of(each) == "mul" and len(each.sources) == 1 and each.sources[0] in low
        for node in each.result
    }
    roundings = [each for each in operations if each.own is not None and each.sources]
    formats = {each.own for each in roundings}
    if not whole or len(formats) != 1:
        return None
    for each in roundings:
        if verb_of(each) != "cvt" or set(each.result) & set(results):
            return None
        if not set(each.sources) <= whole | low:
            return None
    kept, first = roundings[0].own, roundings[0].instruction
    return (kept, first) if kept is not None and first is not None else None


def _split_by(operation: Operation, definitions: dict[str, list[Operation]]) -> str | None:
    """The value x, if the operation is x − high(x)."""
    instruction = operation.instruction
    if instruction is None or verb_of(operation) not in ("sub", "add"):
        return None
    first, *rest = (nodes_of(each) for each in instruction.operands[1:])
    if len(first) != 1 or len(rest) != 1 or len(rest[0]) != 1:
        return None
    pairs = [(first[0], rest[0][0])]
    if verb_of(operation) == "add":
        pairs.append((rest[0][0], first[0]))
    for whole, high in pairs:
        verbs, rounds = _path(high, whole, definitions)
        if rounds and ("neg" in verbs) == (verb_of(operation) == "add"):
            return whole
    return None


def _path(node: str, origin: str, definitions: dict[str, list[Operation]]) -> tuple[set[str], bool]:
    """The instructions that lead from `origin` to a node, computing nothing; whether they round."""
    verbs: set[str] = set()
    seen = {node}
    pending = [node]
    narrow = reached = False
    while pending:
        for each in definitions.get(pending.pop(), ()):
            verb = verb_of(each)
            if each.computes or verb in _LOADS:
                continue
            verbs.add(verb)
            narrow |= each.own is not None
            reached |= origin in each.sources
            new = set(each.sources) - seen - {origin}
            seen |= new
            pending += new
    return verbs, narrow and reached
