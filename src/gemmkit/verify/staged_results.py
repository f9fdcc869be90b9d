"""Keeps results that a kernel stages in shared memory apart from the operands that lie there.

The flow of values knows shared memory as a whole. A kernel that stages its results there on their
way to C would seem to multiply by them, and their rounding to be one of each step of k. In a
product of matrices no sum is a factor: what tensor cores multiply was never computed by them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from gemmkit.verify.value_flow import Operation, verb_of

SHARED, STAGED = "@shared", "@staged"


def with_results_apart(operations: Sequence[Operation]) -> list[Operation]:
    """The operations with results of tensor cores at a node of their own in shared memory.

    Loads and bulk stores from there read both, except of what tensor cores multiply.
    """
    products = [each for each in operations if each.operand_type is not None]
    if not products:
        return list(operations)
    computed = _reached(
        (node for each in products for node in each.result),
        operations,
        lambda each: each.terms if each.operand_type is not None else each.sources,
        lambda each: each.result,
    )
    multiplied = _reached(
        (node for each in products for factor in each.factors or () for node in factor),
        operations,
        lambda each: each.result,
        lambda each: each.sources,
    )
    found = []
    for each in operations:
        if each.result == (SHARED,) and computed & set(each.sources):
            each = replace(each, result=(STAGED,))
        elif each.terms[:1] == (SHARED,) and not multiplied & set(each.result):
            each = replace(each, terms=(SHARED, STAGED, *each.terms[1:]))
        found.append(each)
    return found


def _reached(
    starts: Iterable[str],
    operations: Sequence[Operation],
    sources: Callable[[Operation], Iterable[str]],
    results: Callable[[Operation], Iterable[str]],
) -> set[str]:
    """The nodes to which values go from `starts`, other than through memory."""
    edges: defaultdict[str, set[str]] = defaultdict(set)
    for each in operations:
        if verb_of(each) in ("st", "stmatrix", "ld", "ldmatrix"):
            continue
        for source in sources(each):
            edges[source].update(results(each))
    found = {node for node in starts if not node.startswith("@")}
    pending = [*found]
    while pending:
        for node in edges[pending.pop()]:
            if node not in found and not node.startswith("@"):
                found.add(node)
                pending.append(node)
    return found
