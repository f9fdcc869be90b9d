"""Host time of calls over ranks that are like an earlier one, with no GPU and no other rank.

    python benchmarks/distributed_host.py [--rows 16] [--rounds 40] [--calls 500] [--profile CASE]

One process has a group of two ranks by PyTorch's "fake" backend, whose operations do nothing. Its
tensors are on the CPU, gemmkit takes them for an H100's, and launches are empty functions, so that
what is left is what Python and PyTorch do for a call. It prints microseconds a call, the least of
the rounds, beside those of the same operation of the group by `torch.distributed` with an empty
`torch.mm`. With `--profile`, the functions of one case are listed.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import gemmkit
from gemmkit import distributed
from gemmkit.devices.launcher import PreparedLaunch
from gemmkit.distributed.process_group import GroupCommunicator
from gemmkit.distributed.team import team_of
from gemmkit.gpu import BOARDS
from gemmkit.ops import product, repeated
from gemmkit.ops.libraries import torch as library
from gemmkit.ops.prepared import Prepared
from gemmkit.ops.warm import LIBRARIES

RANKS = 2
COLUMN = {"placements": ("S(0)", "S(1)"), "placement": "S(1)", "strategy": "collective"}
ROW = {"placements": ("S(1)", "S(0)"), "placement": "S(0)", "strategy": "collective"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rows", type=int, default=16, help="of the whole A")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=500, help="calls of each in a round")
    parser.add_argument("--profile", metavar="CASE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    stand_in()
    found = cases(arguments.rows)
    if arguments.profile is not None:
        profile(found[arguments.profile], 20 * arguments.calls)
    else:
        for name, least in host_times(found, arguments.rounds, arguments.calls).items():
            print(f"{name:48} {least:6.2f} µs")
    dist.destroy_process_group()


def stand_in() -> None:
    """Have tensors on the CPU taken for a GPU's, and launches and agreements for made."""
    GroupCommunicator.agree = lambda self, facts: [facts] * self.size  # type: ignore[method-assign]
    # Two ranks of one process would be refused.
    import gemmkit.distributed.team as teams

    teams.check_alike = lambda _: None
    team_of(None, torch.device("cpu")).board = BOARDS["h100"]

    class Launch(PreparedLaunch):
        """One that the driver is not asked for."""

        def __init__(self) -> None:
            pass

        def run(self, addresses: Any, stream: int, scratch: Any = None) -> None:
            pass

        def run_plain(self, a: int, b: int, out: int, stream: int) -> None:
            pass

    launch = Launch()
    LIBRARIES[torch.Tensor] = library  # type: ignore[assignment]
    library.current_stream = lambda _: 0

    def prepared(call: Any) -> Prepared:
        shape = call.a.shape[0], call.b.shape[1]
        plain = launch if call.bias is None and call.scale_a is None else None
        return Prepared(launch, 0, shape, None, (), plain=plain, near=(0, 0, 0, 0))

    def cold(call: Any, key: Any) -> Any:
        found = prepared(call)
        product._ready.calls.keep(key, found)
        return call.out if call.out is not None else call.a.new_empty(found.shape)

    product._cold, repeated.prepared_call = cold, prepared


def cases(rows: int) -> Mapping[str, Callable[[], Any]]:
    """Calls by name: each is of this rank's parts, of n = k = 1024."""
    own, n, k = rows // RANKS, 1024, 1024
    a, b = torch.zeros(own, k, dtype=torch.bfloat16), torch.zeros(k, n // RANKS).bfloat16()
    bias = torch.zeros(n // RANKS).bfloat16()
    left, right = torch.zeros(rows, k // RANKS).bfloat16(), torch.zeros(k // RANKS, n).bfloat16()
    small_a, small_b = a.to(torch.float8_e4m3fn), b.T.contiguous().T.to(torch.float8_e4m3fn)
    one, lines, columns = torch.ones(1, 1), torch.ones(own, 1), torch.ones(1, n // RANKS)
    out = torch.zeros(rows, n // RANKS).bfloat16()

    def by_torch() -> Any:
        whole = a.new_empty(rows, k)
        dist.all_gather_into_tensor(whole, a)
        return a.new_empty(rows, n // RANKS)

    def by_torch_sums() -> Any:
        sums, made = left.new_empty(rows, n), left.new_empty(own, n)
        dist.reduce_scatter_tensor(made, sums)
        return made

    whole = torch.zeros(rows, k).bfloat16()
    product = distributed.matmul

    return {
        "torch: all_gather_into_tensor, new tensors": by_torch,
        "gemmkit.matmul alone": lambda: gemmkit.matmul(whole, b),
        "column": lambda: product(a, b, **COLUMN),
        "column, out": lambda: product(a, b, out=out, **COLUMN),
        "column, bias": lambda: product(a, b, bias=bias, **COLUMN),
        "column, scales of tensors": lambda: product(
            small_a, small_b, scale_a=one, scale_b=one, **COLUMN
        ),
        "column, scales of rows": lambda: product(
            small_a, small_b, scale_a=lines, scale_b=columns, **COLUMN
        ),
        "torch: reduce_scatter_tensor, new tensors": by_torch_sums,
        "row": lambda: product(left, right, **ROW),
    }


def host_times(
    found: Mapping[str, Callable[[], Any]], rounds: int, calls: int
) -> Mapping[str, float]:
    """The least microseconds of a call, of rounds in which all come in turn."""
    least = dict.fromkeys(found, float("inf"))
    for _ in range(rounds):
        for name, work in found.items():
            work()
            begin = time.perf_counter()
            for _ in range(calls):
                work()
            least[name] = min(least[name], (time.perf_counter() - begin) / calls * 1e6)
    return least


def profile(work: Callable[[], Any], calls: int) -> None:
    """List what a case's time goes to."""
    for _ in range(3):
        work()
    watched = cProfile.Profile()
    watched.enable()
    for _ in range(calls):
        work()
    watched.disable()
    pstats.Stats(watched).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
