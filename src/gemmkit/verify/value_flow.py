"""The flow of values in a kernel: what each instruction reads, computes and rounds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemmkit.verify.arithmetic import FORMATS, TENSOR_BLOCK, Format

if TYPE_CHECKING:
    from gemmkit.emulator.ptx.module import Instruction

# PTX's narrow types; a suffix x2 is removed first.
NARROW_TYPES = {
    "tf32": FORMATS["tf32"],
    "f16": FORMATS["float16"],
    "bf16": FORMATS["bfloat16"],
    "e4m3": FORMATS["float8_e4m3"],
    "e5m2": FORMATS["float8_e5m2"],
}
_FLOAT = re.compile(r"b?f(?:16|32|64)(?:x2)?|tf32")
_MATRIX = ("mma", "wmma", "wgmma")
_ARITHMETIC = ("add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt", "ex2", "tanh")
_PRODUCTS = ("mul", "fma", "mad")
_MEMORY = ("shared", "local")
_DIRECTED = frozenset(["rz", "rm", "rp"])


@dataclass(frozen=True, slots=True)
class Operation:
    """One instruction as a flow of values between nodes: registers, `@shared`, `@local`, `@out`.

    `factors` are two lists of nodes that are multiplied with each other; `terms` are nodes that
    are added or passed on. `own` is the type that the result is rounded to, if any; `cut` means by
    directed rounding, such as truncation: to `own` or, if there is none, to fp32 or fp64. `block`
    is the number of steps of k accumulated before a rounding.
    """

    result: tuple[str, ...]
    terms: tuple[str, ...]
    factors: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    own: Format | None = None
    cut: bool = False
    block: int = 1
    computes: bool = False
    operand_type: Format | None = None
    instruction: Instruction | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """All nodes that the instruction reads."""
        left, right = self.factors or ((), ())
        return (*self.terms, *left, *right)


def operation_of(
    instruction: Instruction, *, reloads: bool = False, constants: Collection[str] = ()
) -> Operation | None:
    """An instruction as a flow of values; None if it passes no value on.

    `reloads` says that it loads from the matrix to which results are stored; `constants` are the
    registers that hold one number other than 0.
    """
    words = instruction.opcode.split(".")
    verb, types = words[0], [each.removesuffix("x2") for each in words]
    operands = [nodes_of(each) for each in instruction.operands]
    space = next((each for each in ("shared", "local", "global", "const", "param")
                  if any(word.partition("::")[0] == each for word in words)), "")  # fmt: skip
    if verb in ("bra", "ret", "bar", "barrier", "setp", "call", "membar", "fence") or not operands:
        return None
    if verb in ("st", "stmatrix", "red", "atom") or instruction.opcode.startswith("wmma.store"):
        target = f"@{space}" if space in _MEMORY else "@out"
        values = tuple(node for each in operands[1:] for node in each)
        own = next((NARROW_TYPES[each] for each in types if each in NARROW_TYPES), None)
        if "add" in words and own is not None:
            # The memory itself is one of the terms, so that it is an accumulator.
            return Operation(
                (target,), (*values, target), own=own, computes=True, instruction=instruction
            )
        return Operation((target,), values, instruction=instruction)
    if verb in ("ld", "ldmatrix", "ldu") or instruction.opcode.startswith("wmma.load"):
        source = (f"@{space}",) if space in _MEMORY else ("@out",) if reloads else ()
        return Operation(operands[0], source, instruction=instruction) if operands[0] else None
    if verb == "cp":
        return _bulk_store(instruction, types)
    result, rest = operands[0], operands[1:]
    if verb in _MATRIX and "mma" in instruction.opcode:
        return _matrix_product(instruction, types, result, rest)
    if not result:
        return None
    floating = next((each for each in reversed(types) if _FLOAT.fullmatch(each)), "")
    directed = bool(_DIRECTED & set(words))
    if verb in _ARITHMETIC and floating:
        own = NARROW_TYPES.get(floating)
        cut = directed and (own is not None or not _has_constant(instruction, constants))
        if verb in _PRODUCTS and len(rest) >= 2:
            terms = tuple(node for each in rest[2:] for node in each)
            return Operation(
                result, terms, (rest[0], rest[1]), own, cut, computes=True, instruction=instruction
            )
        terms = tuple(node for each in rest for node in each)
        return Operation(result, terms, own=own, cut=cut, computes=True, instruction=instruction)
    own = None
    cut = False
    if verb == "cvt":
        target = next(
            (each for each in types if each in NARROW_TYPES or _FLOAT.fullmatch(each)), ""
        )
        own, given = NARROW_TYPES.get(target), NARROW_TYPES.get(types[-1])
        if own is not None and given is not None and own.bits >= given.bits:
            own = None
        cut = directed and bool(target)
    terms = tuple(node for each in rest for node in each)
    return Operation(result, terms, own=own, cut=cut, instruction=instruction)


def _bulk_store(instruction: Instruction, types: Sequence[str]) -> Operation | None:
    """A bulk copy or reduction from shared to global memory; None for other copies, which bring
    operands as they are."""
    words = instruction.opcode.split(".")
    if "bulk" not in words or "global" not in words or "prefetch" in words:
        return None
    if words.index("global") > next(
        (at for at, word in enumerate(words) if word.startswith("shared")), 0
    ):
        return None
    own = next((NARROW_TYPES[each] for each in types if each in NARROW_TYPES), None)
    if words[1] == "reduce" and "add" in words and own is not None:
        terms = ("@shared", "@out")
        return Operation(("@out",), terms, own=own, computes=True, instruction=instruction)
    return Operation(("@out",), ("@shared",), instruction=instruction)


def is_zero(operation: Operation, zero: Collection[str]) -> bool:
    """Whether an operation passes on a constant 0, given the nodes that are 0."""
    from gemmkit.emulator.ptx.module import Immediate

    instruction = operation.instruction
    if instruction is None or verb_of(operation) not in ("mov", "cvt"):
        return False
    if operation.sources:
        return set(operation.sources) <= set(zero)
    given = instruction.operands[1:]
    return bool(given) and all(isinstance(each, Immediate) and each.value == 0 for each in given)


def _has_constant(instruction: Instruction, constants: Collection[str]) -> bool:
    """Whether an operand is a number other than 0: so exp and its kin reduce their arguments, which
    rounds in one direction and is part of their own error."""
    from gemmkit.emulator.ptx.module import Immediate

    return any(
        each.value != 0
        if isinstance(each, Immediate)
        else any(node in constants for node in nodes_of(each))
        for each in instruction.operands[1:]
    )


def constants_in(body: Iterable[Instruction]) -> frozenset[str]:
    """The registers that only one instruction writes, a move of a number other than 0."""
    from gemmkit.emulator.ptx.module import Immediate

    written: Counter[str] = Counter()
    found: set[str] = set()
    for each in body:
        if not each.operands or each.opcode.startswith(("st.", "bra", "red.", "setp.")):
            continue
        result = nodes_of(each.operands[0])
        written.update(result)
        if each.opcode.startswith("mov.") and isinstance(each.operands[1], Immediate):
            found.update(result if each.operands[1].value != 0 else ())
    return frozenset(name for name in found if written[name] == 1)


def _matrix_product(
    instruction: Instruction,
    types: Sequence[str],
    result: tuple[str, ...],
    rest: Sequence[tuple[str, ...]],
) -> Operation | None:
    """D = A·B + C on a tensor core. With wgmma, D is C and B is in shared memory, as A is if it is
    not a list of registers."""
    listed = [each for each in types if each in NARROW_TYPES or each in ("f32", "f64")]
    if not listed or "f64" in listed:
        return None
    total = NARROW_TYPES.get(listed[0])
    operand = next((NARROW_TYPES[each] for each in listed[1:] if each in NARROW_TYPES), None)
    if operand is None:
        # wmma names only the types of D and C if A and B are fp16.
        operand = NARROW_TYPES["f16"]
    left: tuple[str, ...] = ("@shared",)
    right, terms = left, result
    if instruction.opcode.startswith("wgmma"):
        left = rest[0] if len(rest[0]) > 1 else left
    else:
        left, right = rest[0], rest[1]
        terms = rest[2] if len(rest) > 2 else ()
    return Operation(
        result,
        terms,
        (left, right),
        total,
        block=TENSOR_BLOCK,
        computes=True,
        operand_type=operand,
        instruction=instruction,
    )


def verb_of(operation: Operation) -> str:
    """The instruction's name, without its modifiers and types."""
    return operation.instruction.opcode.partition(".")[0] if operation.instruction else ""


def nodes_of(operand: object) -> tuple[str, ...]:
    """The registers that an operand reads or writes as values; an address has none."""
    from gemmkit.emulator.ptx.module import Pair, Register, Vector

    if isinstance(operand, Register):
        return () if operand.type == "pred" else (operand.name,)
    if isinstance(operand, Vector):
        return tuple(node for each in operand.elements for node in nodes_of(each))
    if isinstance(operand, Pair):
        return nodes_of(operand.first) + nodes_of(operand.second)
    return ()


def components(edges: dict[str, set[str]], nodes: Iterable[str]) -> list[list[str]]:
    """Strongly connected components (R. Tarjan, 1972), each before those that flow into it."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []
    for root in nodes:
        if root in order:
            continue
        pending = [(root, iter(sorted(edges.get(root, ()))))]
        order[root] = low[root] = len(order)
        stack.append(root)
        on_stack.add(root)
        while pending:
            node, successors = pending[-1]
            following = next(successors, None)
            if following is None:
                pending.pop()
                if pending:
                    above = pending[-1][0]
                    low[above] = min(low[above], low[node])
                if low[node] == order[node]:
                    component = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.append(member)
                        if member == node:
                            break
                    found.append(component)
            elif following not in order:
                order[following] = low[following] = len(order)
                stack.append(following)
                on_stack.add(following)
                pending.append((following, iter(sorted(edges.get(following, ())))))
            elif following in on_stack:
                low[node] = min(low[node], order[following])
    return found
