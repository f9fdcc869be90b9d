"""Derives from a kernel's PTX which narrow types operands and sums are rounded to, and how often.

Values are followed through registers, and through shared and local memory as a whole, from loads to
stores to global memory. A rounding on a cycle of that flow is that of an accumulator and happens at
every step of k; others happen once. The roundings of a product are those of both factors; those of
a sum are the larger ones of its terms.

A kernel may also accumulate in C itself, by ordinary loads and stores. Its code alone does not tell
such updates from reading C once for β, so they count only where a launch was seen to store to each
element several times (see `Updates`): each store then rounds the sum.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from gemmkit.dtypes import ITEM_BYTES, Dtype
from gemmkit.errors import GemmkitError
from gemmkit.problem import GemmProblem
from gemmkit.record import AccessCounts
from gemmkit.verify.arithmetic import (
    FORMATS,
    FP32,
    FP32_FORMAT,
    SPLIT_PRODUCTS,
    SPLIT_ROUNDINGS,
    Arithmetic,
    Rounded,
    named_arithmetic,
)
from gemmkit.verify.splitting import split_operands
from gemmkit.verify.truncation import Truncation, truncation_of, truncation_of_any, widest
from gemmkit.verify.value_flow import (
    NARROW_TYPES,
    Operation,
    components,
    constants_in,
    is_zero,
    operation_of,
    verb_of,
)

if TYPE_CHECKING:
    from gemmkit.emulator.ptx.module import Instruction, Kernel

_NARROW = re.compile(r"\.(?:f16|bf16|tf32|e4m3|e5m2)|\.r[zmp]\.")
_DIRECTED = re.compile(r"\b(?:add|sub|mul|fma|mad|div|rcp|sqrt)\.r[zmp]\.")
# A type and whether it truncates; and how often a value was rounded so.
_Key = tuple[str, bool]
_Count = Counter[_Key]


@dataclass(frozen=True, slots=True)
class Updates:
    """What a launch did to C: the loads from it, by their number in the kernel's code, and the
    stores per element; 0 if these are not the same for all elements."""

    loads: frozenset[int]
    stores: int

    @classmethod
    def of(cls, problem: GemmProblem, accesses: Iterable[AccessCounts]) -> Updates | None:
        """Those of a launch; None where C is not loaded, or stored to no more than once.

        The counters hold the total of the stores alone. If it is a multiple of the elements, each
        element is taken to have the same share.
        """
        to_c = [each for each in accesses if each.space == "global" and each.array == "C"]
        loads = frozenset(each.number for each in to_c if each.kind == "load")
        stored = sum(each.lanes * each.bytes_per_lane for each in to_c if each.kind == "store")
        whole = problem.results * ITEM_BYTES[problem.result_dtype]
        if not loads or not whole or stored <= whole:
            return None
        return cls(loads, 0 if stored % whole else stored // whole)


def arithmetic_for(
    ptx: str,
    entry: str,
    problem: GemmProblem,
    compute_dtype: str = "",
    tolerance: float | None = None,
    accesses: Iterable[AccessCounts] = (),
) -> Arithmetic:
    """The arithmetic that the user names, or else the one that the kernel's instructions imply.

    `accesses` are those of a launch for this problem, if one was counted.

    Raises:
        UsageError: as `named_arithmetic`.
    """
    named = named_arithmetic(compute_dtype, tolerance)
    if named is not None:
        return named
    updates = Updates.of(problem, accesses)
    return arithmetic_of(ptx, entry, problem.dtype, problem.result_dtype, updates)


@lru_cache(maxsize=64)
def arithmetic_of(
    ptx: str,
    entry: str,
    elements: Dtype = "float32",
    results: Dtype = "float32",
    updates: Updates | None = None,
) -> Arithmetic:
    """The arithmetic that a kernel computes in, derived from its PTX.

    `elements` is the type of A and B, `results` that of C: one rounding to it, when results are
    stored, is part of the problem and not counted. `updates` are those of C in a launch. If the
    text cannot be parsed, the opcodes alone are used, wherever they are.
    """
    start = ptx.find(f".entry {entry}")
    if not _NARROW.search(ptx, max(start, 0)):
        return FP32
    from gemmkit.emulator.ptx.parsed import parsed

    try:
        kernel = parsed(ptx, "", entry).kernels[entry]
    except (GemmkitError, KeyError):
        return _by_opcodes(ptx)
    return _Flow(kernel, elements, updates).arithmetic(results)


class _Flow:
    """The flow of values in one kernel."""

    def __init__(self, kernel: Kernel, elements: Dtype, updates: Updates | None) -> None:
        self.elements, self.updates = elements, updates
        self.capability = kernel.capability
        reloads = updates.loads if updates is not None else ()
        constants = constants_in(kernel.body)
        flows = (
            operation_of(each, reloads=number in reloads, constants=constants)
            for number, each in enumerate(kernel.body)
        )
        self.operations = [each for each in flows if each is not None]
        self.edges: defaultdict[str, set[str]] = defaultdict(set)
        for each in self.operations:
            for source in each.sources:
                self.edges[source].update(each.result)
        self.counts: defaultdict[str, _Count] = defaultdict(Counter)
        self.computed: set[str] = set()
        self.steady: dict[_Key, Rounded] = {}
        self.sums: set[str] = set()
        self.seen: dict[tuple[str, str], Instruction] = {}
        # What the sums of each matrix instruction lose.
        self.truncations: list[Truncation] = []
        self.directed: Instruction | None = None
        # Nodes that are 0 whatever the operands are.
        self.zero: set[str] = set()
        # Nodes that reach the result by additions alone, and are not only multiplied on the way.
        self.added: set[str] = set()
        # Whether a tensor core takes an operand that is not rounded before.
        self.raw = False
        # The type of the parts that operands are split into, and the first rounding to it.
        self.split: tuple[str, Instruction] | None = None

    def arithmetic(self, results: Dtype) -> Arithmetic:
        """The roundings of the values that are stored in C, whose type is `results`."""
        reaching = _reaching(self.edges, "@out")
        terms: defaultdict[str, set[str]] = defaultdict(set)
        for each in self.operations:
            for source in each.terms:
                terms[source].update(each.result)
        self.added = _reaching(terms, "@out")
        members = components(self.edges, {each for op in self.operations for each in op.result})
        owner = {node: number for number, nodes in enumerate(members) for node in nodes}
        by_component: defaultdict[int, list[Operation]] = defaultdict(list)
        for operation in self.operations:
            if set(operation.result) & reaching:
                by_component[owner[operation.result[0]]].append(operation)
        # Tarjan's order is reversed: the last component in the flow is the first.
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
        rounded = self._before_storing(self._of_parts(rounded, reaching), results)
        tensor = widest(self.truncations) if self.truncations else None
        if not rounded and tensor is None and self.directed is None:
            return FP32
        return Arithmetic(
            tuple(rounded),
            tensor=tensor,
            sums=tuple(FORMATS[each] for each in sorted(self.sums)),
            directed=self.directed is not None,
            reason=self._reason(),
        )

    def _of_parts(self, rounded: list[Rounded], reaching: set[str]) -> list[Rounded]:
        """The roundings, or those of the products of parts where all operands are split."""
        if self.elements != "float32" or self.raw or self.steady:
            return rounded
        inner = [
            each
            for each in self.operations
            if set(each.result) & reaching and not is_zero(each, self.zero)
        ]
        found = split_operands(inner, self.added)
        if found is None:
            return rounded
        kept, first = found
        cut = any(each.cut for each in rounded)
        for seen in ("results", "operands"):
            self.seen.pop((kept.name, seen), None)
        self.sums.discard(kept.name)
        self.split = kept.name, first
        return [
            Rounded(kept, SPLIT_ROUNDINGS, cut=cut, parts=2),
            Rounded(FP32_FORMAT, block=1, rate=SPLIT_PRODUCTS - 1, cut=bool(self.truncations)),
        ]

    def _before_storing(self, rounded: Sequence[Rounded], results: Dtype) -> list[Rounded]:
        """The roundings without the final one to the type of C."""
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
        if self.split is not None:
            name, first = self.split
            place = f"{first.opcode}, {first.where}"
            words.append(f"operands split into high and low parts in {name} ({place})")
        for (name, what), instruction in self.seen.items():
            words.append(f"{what} rounded to {name} ({instruction.opcode}, {instruction.where})")
        if self.directed is not None:
            how = f"{self.directed.opcode}, {self.directed.where}"
            words.append(f"rounding in one direction ({how})")
        elif not any(what == "sums" for _, what in self.seen):
            kept = min((each.bits for each in self.truncations), default=FP32_FORMAT.bits)
            fewer = "" if kept == FP32_FORMAT.bits else f", with {kept} bits on tensor cores"
            words.append("sums in fp32" + fewer)
        return "; ".join(words)

    def _visit(self, operations: Sequence[Operation], owner: dict[str, int], own: int) -> None:
        """Add up the roundings of the values of one component of the flow."""
        total: _Count = Counter()
        computed = False
        steady: dict[_Key, list[Operation]] = {}
        if all(is_zero(each, self.zero) for each in operations):
            self.zero.update(node for each in operations for node in each.result)
            return
        for each in operations:
            count, on_cycle = self._incoming(each, owner, own)
            computed |= each.computes or any(node in self.computed for node in each.sources)
            if each.own is None and each.cut and self.directed is None:
                self.directed = each.instruction
            if each.own is not None and each.sources and not is_zero(each, self.zero):
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
                is_result = rounds_sums and bool(self.added & set(each.result))
                what = "sums" if on_cycle else "results" if is_result else "operands"
                if each.instruction is not None:
                    self.seen.setdefault((each.own.name, what), each.instruction)
            total |= count
        updates = self._updates(operations, owner, own) if steady else 0
        for key, rounding in steady.items():
            kinds = Counter(verb_of(each) for each in rounding)
            if 0 < max(kinds.values()) <= updates and self.updates is not None:
                total[key] += len(kinds) * self.updates.stores
                continue
            block = min(each.block for each in rounding)
            known = self.steady.get(key, Rounded(FORMATS[key[0]], 0, block, 0, key[1]))
            rate = max(known.rate, len(kinds))
            self.steady[key] = replace(known, block=min(known.block, block), rate=rate)
        for node in {each for operation in operations for each in operation.result}:
            self.counts[node] = total
            if computed:
                self.computed.add(node)

    def _updates(self, operations: Sequence[Operation], owner: dict[str, int], own: int) -> int:
        """The stores of a component that is a cycle by way of C alone; 0 for other components.

        Each pass over such a cycle stores once, so that the stores per element are the passes. With
        atomic operations, or with a cycle in registers as well, passes are not those of the stores.
        """
        if self.updates is None or not self.updates.stores or owner.get("@out") != own:
            return 0
        if any(verb_of(each) in ("red", "atom") for each in operations):
            return 0
        inner = {
            node: {each for each in self.edges[node] if owner.get(each) == own and each != "@out"}
            for node, number in owner.items()
            if number == own and node != "@out"
        }
        if any(node in following for node, following in inner.items()):
            return 0
        if any(len(each) > 1 for each in components(inner, inner)):
            return 0
        return sum(
            each.result == ("@out",) and any(owner.get(node) == own for node in each.sources)
            for each in operations
        )

    def _incoming(
        self, operation: Operation, owner: dict[str, int], own: int
    ) -> tuple[_Count, bool]:
        """The roundings of an operation's inputs, and whether the operation is on a cycle."""

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
                    if operation.instruction is not None:
                        opcode = operation.instruction.opcode
                        self.truncations.append(truncation_of(opcode, self.capability))
                    given = wanted.name == self.elements
                    if not given and not any(name == wanted.name for name, _ in through):
                        # The tensor core, or a shift, takes the upper bits of an fp32 number.
                        through[wanted.name, True] += 1
                        self.raw = True
                        if operation.instruction is not None:
                            key = wanted.name, "operands"
                            self.seen.setdefault(key, operation.instruction)
                product += through
            count |= product
        return count, any(owner.get(node) == own for node in operation.sources)


def _reaching(edges: Mapping[str, Collection[str]], target: str) -> set[str]:
    """All nodes whose values may reach `target`."""
    backward: defaultdict[str, set[str]] = defaultdict(set)
    for source, results in edges.items():
        for each in results:
            backward[each].add(source)
    found, pending = {target}, [target]
    while pending:
        for each in backward[pending.pop()]:
            if each not in found:
                found.add(each)
                pending.append(each)
    return found


def _by_opcodes(ptx: str) -> Arithmetic:
    """An upper bound on the roundings, from the opcodes of a text that cannot be parsed."""
    operands = {
        NARROW_TYPES[name]
        for name in re.findall(
            r"\b(?:cvt|w?g?mma)\.[\w.:]*?\.(tf32|f16|bf16|e4m3|e5m2)(?:x2)?\b", ptx
        )
    }
    sums = {
        NARROW_TYPES[name]
        for name in re.findall(r"\b(?:add|fma|mul)\.[\w.]*?\.?(f16|bf16)(?:x2)?\b", ptx)
    } | {NARROW_TYPES["f16"] for _ in re.findall(r"\bw?g?mma[\w.:]*\.m\d+n\d+k\d+\.f16\.", ptx)}
    rounded = [Rounded(each, 2, cut=True) for each in operands - sums]
    rounded += [Rounded(each, 2, block=1) for each in sums]
    names = ", ".join(sorted(each.name for each in operands | sums)) or "directed rounding"
    return Arithmetic(
        tuple(rounded),
        tensor=truncation_of_any(each.name for each in operands) if "mma" in ptx else None,
        sums=tuple(sums),
        directed=_DIRECTED.search(ptx) is not None,
        reason=f"instructions for {names} in its PTX",
    )
