"""Reads from a kernel's PTX to which narrow types it rounds operands and sums, and how often.

Values are followed from register to register, and through shared and local memory as a whole, from
what is loaded to what is stored in global memory. What a rounding is on a cycle of that flow, an
accumulator's, happens at every step of k; others happen once. Products add up what their factors
went through, sums take the larger one.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from gemmkit.errors import GemmkitError
from gemmkit.problem import Dtype, GemmProblem
from gemmkit.verify.arithmetic import (
    FORMATS,
    FP32,
    TENSOR_BLOCK,
    Arithmetic,
    Format,
    Rounded,
    named_arithmetic,
)

if TYPE_CHECKING:
    from gemmkit.emulator.ptx.module import Instruction, Kernel

# Types of PTX, and what they are called here; an x2 at the end is taken off first.
_TYPES = {
    "tf32": FORMATS["tf32"],
    "f16": FORMATS["float16"],
    "bf16": FORMATS["bfloat16"],
    "e4m3": FORMATS["float8_e4m3"],
    "e5m2": FORMATS["float8_e5m2"],
}
_NARROW = re.compile(r"\.(?:f16|bf16|tf32|e4m3|e5m2)")
_FLOAT = re.compile(r"b?f(?:16|32|64)(?:x2)?|tf32")
_MATRIX = ("mma", "wmma", "wgmma")
_ARITHMETIC = ("add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt", "ex2", "tanh")
_PRODUCTS = ("mul", "fma", "mad")
_MEMORY = ("shared", "local")

# A type, and whether it is cut off: what a value was rounded to, and how often.
_Key = tuple[str, bool]
_Count = Counter[_Key]


@dataclass(frozen=True, slots=True)
class _Operation:
    """One instruction as a flow of values: nodes are registers, `@shared`, `@local` and `@out`.

    `factors` are pairs of lists of nodes that are multiplied with each other, `terms` the nodes
    that are merely passed on. `own` is the type that the result is rounded to, if any.
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
        """All nodes whose values go in."""
        left, right = self.factors or ((), ())
        return (*self.terms, *left, *right)


def arithmetic_for(
    ptx: str,
    entry: str,
    problem: GemmProblem,
    compute_dtype: str = "",
    tolerance: float | None = None,
) -> Arithmetic:
    """The arithmetic that a user names, or else the one that a kernel's instructions have.

    Raises:
        UsageError: as `named_arithmetic`.
    """
    named = named_arithmetic(compute_dtype, tolerance)
    if named is not None:
        return named
    return arithmetic_of(ptx, entry, problem.dtype, problem.result_dtype)


@lru_cache(maxsize=64)
def arithmetic_of(
    ptx: str, entry: str, elements: Dtype = "float32", results: Dtype = "float32"
) -> Arithmetic:
    """The arithmetic in which a kernel computes, by the instructions that its PTX has.

    `elements` is the type of A and B, `results` that of C: one rounding to it, when results are
    stored, is the problem's own and not counted. Where the text cannot be read, the instructions
    alone are looked at, wherever they stand.
    """
    start = ptx.find(f".entry {entry}")
    if not _NARROW.search(ptx, max(start, 0)):
        return FP32
    from gemmkit.emulator.ptx.parser import parse

    try:
        kernel = parse(ptx).kernels[entry]
    except (GemmkitError, KeyError):
        return _by_opcodes(ptx)
    return _Flow(kernel, elements).arithmetic(results)


class _Flow:
    """The flow of values in one kernel."""

    def __init__(self, kernel: Kernel, elements: Dtype) -> None:
        self.elements = elements
        self.operations = [found for each in kernel.body if (found := _operation(each)) is not None]
        self.edges: defaultdict[str, set[str]] = defaultdict(set)
        for each in self.operations:
            for source in each.sources:
                self.edges[source].update(each.result)
        self.counts: defaultdict[str, _Count] = defaultdict(Counter)
        self.computed: set[str] = set()
        self.steady: dict[_Key, Rounded] = {}
        self.sums: set[str] = set()
        self.seen: dict[tuple[str, str], Instruction] = {}
        self.tensor = False

    def arithmetic(self, results: Dtype) -> Arithmetic:
        """What becomes of the values that are stored in C, which holds numbers of that type."""
        reaching = self._reaching("@out")
        members = _components(self.edges, {each for op in self.operations for each in op.result})
        owner = {node: number for number, nodes in enumerate(members) for node in nodes}
        by_component: defaultdict[int, list[_Operation]] = defaultdict(list)
        for operation in self.operations:
            if set(operation.result) & reaching:
                by_component[owner[operation.result[0]]].append(operation)
        # Tarjan's order has what flows last first.
        for number in reversed(range(len(members))):
            self._visit(by_component[number], owner, number)
        rounded = [
            Rounded(FORMATS[name], times, cut=cut)
            for (name, cut), times in self.counts["@out"].items()
        ]
        for key, steady in self.steady.items():
            found = next((each for each in rounded if (each.format.name, each.cut) == key), None)
            if found is not None:
                rounded.remove(found)
            rounded.append(replace(steady, times=found.times if found else 0))
        rounded = self._before_storing(rounded, results)
        if not rounded and not self.tensor:
            return FP32
        return Arithmetic(
            tuple(rounded),
            tensor=self.tensor,
            sums=tuple(FORMATS[each] for each in sorted(self.sums)),
            reason=self._reason(),
        )

    def _before_storing(self, rounded: Sequence[Rounded], results: Dtype) -> list[Rounded]:
        """The same without the one rounding to the type of C."""
        found = []
        for each in rounded:
            if each.format.name == results and not each.cut and not each.block:
                self.seen.pop((results, "results"), None)
                if each.times == 1:
                    self.sums.discard(results)
                    continue
                each = replace(each, times=each.times - 1)
            found.append(each)
        return found

    def _reason(self) -> str:
        words = []
        for (name, what), instruction in self.seen.items():
            words.append(f"{what} rounded to {name} ({instruction.opcode}, {instruction.where})")
        if not any(what == "sums" for _, what in self.seen):
            words.append("sums in fp32")
        return "; ".join(words)

    def _reaching(self, target: str) -> set[str]:
        """All nodes whose values may get to one."""
        backward: defaultdict[str, set[str]] = defaultdict(set)
        for source, results in self.edges.items():
            for each in results:
                backward[each].add(source)
        found, pending = {target}, [target]
        while pending:
            for each in backward[pending.pop()]:
                if each not in found:
                    found.add(each)
                    pending.append(each)
        return found

    def _visit(self, operations: Sequence[_Operation], owner: dict[str, int], own: int) -> None:
        """What the values of nodes on one cycle, or of one node, went through before."""
        total: _Count = Counter()
        computed = False
        steady: dict[_Key, list[_Operation]] = {}
        for each in operations:
            count, on_cycle = self._incoming(each, owner, own)
            computed |= each.computes or any(node in self.computed for node in each.sources)
            if each.own is not None and each.sources:
                key = each.own.name, each.cut
                rounds_sums = each.computes or on_cycle or any(
                    node in self.computed for node in each.sources
                )  # fmt: skip
                if on_cycle:
                    steady.setdefault(key, []).append(each)
                else:
                    count[key] += 1
                if rounds_sums:
                    self.sums.add(each.own.name)
                what = "sums" if on_cycle else "results" if rounds_sums else "operands"
                if each.instruction is not None:
                    self.seen.setdefault((each.own.name, what), each.instruction)
            total |= count
        for key, rounding in steady.items():
            block = min(each.block for each in rounding)
            kinds = {each.instruction.opcode.partition(".")[0] for each in rounding
                     if each.instruction is not None}  # fmt: skip
            known = self.steady.get(key, Rounded(FORMATS[key[0]], 0, block, 0, key[1]))
            rate = max(known.rate, len(kinds))
            self.steady[key] = replace(known, block=min(known.block, block), rate=rate)
        for node in {each for operation in operations for each in operation.result}:
            self.counts[node] = total
            if computed:
                self.computed.add(node)

    def _incoming(
        self, operation: _Operation, owner: dict[str, int], own: int
    ) -> tuple[_Count, bool]:
        """Roundings of what goes in, and whether it comes round to where it came from."""

        def of(nodes: Iterable[str]) -> _Count:
            most: _Count = Counter()
            for node in nodes:
                if owner.get(node) != own:
                    most |= self.counts[node]
            return most

        count = of(operation.terms)
        if operation.factors is not None:
            product: _Count = Counter()
            for factor in operation.factors:
                through = of(factor)
                wanted = operation.operand_type
                if wanted is not None and factor:
                    self.tensor = True
                    given = wanted.name == self.elements
                    if not given and not any(name == wanted.name for name, _ in through):
                        # Of fp32 numbers the tensor core, or a shift, takes the upper bits.
                        through[wanted.name, True] += 1
                        if operation.instruction is not None:
                            key = wanted.name, "operands"
                            self.seen.setdefault(key, operation.instruction)
                product += through
            count |= product
        return count, any(owner.get(node) == own for node in operation.sources)


def _operation(instruction: Instruction) -> _Operation | None:
    """An instruction as a flow of values; None if no value goes on from it."""
    words = instruction.opcode.split(".")
    verb, types = words[0], [each.removesuffix("x2") for each in words]
    operands = [_nodes(each) for each in instruction.operands]
    space = next((each for each in ("shared", "local", "global", "const", "param")
                  if any(word.partition("::")[0] == each for word in words)), "")  # fmt: skip
    if verb in ("bra", "ret", "bar", "barrier", "setp", "call", "membar", "fence") or not operands:
        return None
    if verb in ("st", "stmatrix", "red", "atom") or instruction.opcode.startswith("wmma.store"):
        target = f"@{space}" if space in _MEMORY else "@out"
        values = tuple(node for each in operands[1:] for node in each)
        return _Operation((target,), values, instruction=instruction)
    if verb in ("ld", "ldmatrix", "ldu") or instruction.opcode.startswith("wmma.load"):
        source = (f"@{space}",) if space in _MEMORY else ()
        return _Operation(operands[0], source, instruction=instruction) if operands[0] else None
    if verb == "cp":
        return None
    result, rest = operands[0], operands[1:]
    if verb in _MATRIX and "mma" in instruction.opcode:
        return _matrix_product(instruction, types, result, rest)
    if not result:
        return None
    floating = next((each for each in reversed(types) if _FLOAT.fullmatch(each)), "")
    if verb in _ARITHMETIC and floating:
        own = _TYPES.get(floating)
        if verb in _PRODUCTS and len(rest) >= 2:
            terms = tuple(node for each in rest[2:] for node in each)
            return _Operation(
                result, terms, (rest[0], rest[1]), own, computes=True, instruction=instruction
            )
        terms = tuple(node for each in rest for node in each)
        return _Operation(result, terms, own=own, computes=True, instruction=instruction)
    own = None
    cut = False
    if verb == "cvt":
        target = next((each for each in types if each in _TYPES or _FLOAT.fullmatch(each)), "")
        own, given = _TYPES.get(target), _TYPES.get(types[-1])
        if own is not None and given is not None and own.bits >= given.bits:
            own = None
        cut = "rz" in words
    terms = tuple(node for each in rest for node in each)
    return _Operation(result, terms, own=own, cut=cut, instruction=instruction)


def _matrix_product(
    instruction: Instruction,
    types: Sequence[str],
    result: tuple[str, ...],
    rest: Sequence[tuple[str, ...]],
) -> _Operation | None:
    """D = A·B + C on a tensor core; of wgmma, D is C and operands lie in shared memory."""
    listed = [each for each in types if each in _TYPES or each in ("f32", "f64")]
    if not listed or "f64" in listed:
        return None
    total = _TYPES.get(listed[0])
    operand = next((_TYPES[each] for each in listed[1:] if each in _TYPES), None)
    if operand is None:
        # wmma names the types of D and C alone where A and B are fp16.
        operand = _TYPES["f16"]
    left: tuple[str, ...] = ("@shared",)
    right, terms = left, result
    if not instruction.opcode.startswith("wgmma"):
        left, right = rest[0], rest[1]
        terms = rest[2] if len(rest) > 2 else ()
    return _Operation(
        result,
        terms,
        (left, right),
        total,
        block=TENSOR_BLOCK,
        computes=True,
        operand_type=operand,
        instruction=instruction,
    )


def _nodes(operand: object) -> tuple[str, ...]:
    """The registers that an operand reads or writes as values; none for an address."""
    from gemmkit.emulator.ptx.module import Pair, Register, Vector

    if isinstance(operand, Register):
        return () if operand.type == "pred" else (operand.name,)
    if isinstance(operand, Vector):
        return tuple(node for each in operand.elements for node in _nodes(each))
    if isinstance(operand, Pair):
        return _nodes(operand.first) + _nodes(operand.second)
    return ()


def _components(edges: dict[str, set[str]], nodes: Iterable[str]) -> list[list[str]]:
    """Strongly connected components (R. Tarjan, 1972), those that others flow into first."""
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


def _by_opcodes(ptx: str) -> Arithmetic:
    """What the instructions of a text that cannot be read in full may round, at most."""
    operands = {
        _TYPES[name]
        for name in re.findall(
            r"\b(?:cvt|w?g?mma)\.[\w.:]*?\.(tf32|f16|bf16|e4m3|e5m2)(?:x2)?\b", ptx
        )
    }
    sums = {
        _TYPES[name]
        for name in re.findall(r"\b(?:add|fma|mul)\.[\w.]*?\.?(f16|bf16)(?:x2)?\b", ptx)
    } | {_TYPES["f16"] for _ in re.findall(r"\bw?g?mma[\w.:]*\.m\d+n\d+k\d+\.f16\.", ptx)}
    rounded = [Rounded(each, 2, cut=True) for each in operands - sums]
    rounded += [Rounded(each, 2, block=1) for each in sums]
    names = ", ".join(sorted(each.name for each in operands | sums))
    return Arithmetic(
        tuple(rounded),
        tensor="mma" in ptx,
        sums=tuple(sums),
        reason=f"instructions for {names} in its PTX",
    )
