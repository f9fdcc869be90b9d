"""Processes large matrices in blocks, and many of them, on all cores; NumPy releases the GIL."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from typing import TypeVar

from gemmkit.cores import usable_cores
from gemmkit.verify.blas_threads import one_blas_thread

Item = TypeVar("Item")
Result = TypeVar("Result")

# Elements per row block: a float64 copy fits a core's share of the cache.
BLOCK_ELEMENTS = 2**20


class _Here(threading.local):
    """Whether this thread is one of those that share work."""

    shares = False


_here = _Here()


def row_blocks(rows: int, columns: int) -> list[slice]:
    """The rows of a matrix, divided into blocks of about a million elements."""
    step = max(1, BLOCK_ELEMENTS // max(columns, 1))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def for_each_row_block(rows: int, columns: int, work: Callable[[slice], object]) -> None:
    """Call `work` for each row block of a rows × columns matrix, in no particular order.

    The blocks depend only on the sizes, not on the number of cores.
    """
    on_all_cores(work, row_blocks(rows, columns))


def on_all_cores(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """The results of `work` for each item, in their order; several items are at work at once.

    Within such work, everything is done one by one, products of NumPy included: there are threads
    enough.
    """
    found: Sequence[Item] = list(items)
    cores = usable_cores()
    if len(found) <= 1 or cores == 1 or _here.shares:
        return [work(each) for each in found]

    def shared(item: Item, context: Context) -> Result:
        _here.shares = True
        return context.run(work, item)

    # NumPy's treatment of floating-point errors belongs to the context.
    contexts = [copy_context() for _ in found]
    threads = min(cores, len(found))
    with one_blas_thread(), ThreadPoolExecutor(max_workers=threads) as executor:
        # `list` re-raises an exception of an item.
        return list(executor.map(shared, found, contexts))


def of_products(work: Callable[[Item], Result], products: Iterable[Item]) -> list[Result]:
    """The same for products of which each has blocks of its own: few products are taken one by one,
    each on all cores, and many at once."""
    found = list(products)
    if 2 * len(found) < usable_cores():
        return [work(each) for each in found]
    return on_all_cores(work, found)
