"""Groups as libraries take them: one product after the other, or as a batch if all are equal."""

from __future__ import annotations

from dataclasses import replace

from gemmkit.bench.baseline import Arguments
from gemmkit.kernels.group_table import product_addresses
from gemmkit.problem import GemmProblem
from gemmkit.storage import GroupLayout, placements

# What records call the ways of a library to groups: one call of its routine for groups, of that for
# batches, or a call for each product.
GROUPED, BATCHED, EACH = "grouped", "batched", "each"


def single_products(problem: GemmProblem, bound: Arguments) -> list[tuple[GemmProblem, Arguments]]:
    """Each product of groups that has a result, with the arguments for it by itself.

    A problem without groups is returned as it is.
    """
    if problem.groups is None:
        return [(problem, bound)]
    addresses = {name: at.tolist() for name, at in product_addresses(problem, bound).items()}
    # Many products have few shapes.
    products: dict[tuple[int, ...], GemmProblem] = {}
    found: list[tuple[GemmProblem, Arguments]] = []
    for number, sizes in enumerate(map(tuple, problem.groups.table.T.tolist())):
        if sizes not in products:
            products[sizes] = problem.product(number)
        if sizes[0] and sizes[1]:
            own = {name: at[number] for name, at in addresses.items()}
            found.append((products[sizes], {**bound, **own}))
    return found


def as_strided_batch(problem: GemmProblem) -> GemmProblem | None:
    """The strided batch of the same matrices, where all products of groups are equal.

    None for others, and where an epilogue has operands of its own for each product.
    """
    groups, epilogue = problem.groups, problem.epilogue
    if groups is None or groups.count < 2 or epilogue.bias or epilogue.takes_matrices:
        return None
    if (groups.table != groups.table[:, :1]).any():
        return None
    starts = (
        place.starts if isinstance(place := placements(problem)[name], GroupLayout) else (0, 0)
        for name in "abc"
    )
    a, b, c = (each[1] - each[0] for each in starts)
    return replace(problem.product(0), batch=groups.count, stride_a=a, stride_b=b, stride_c=c)
