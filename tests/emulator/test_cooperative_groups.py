"""Uses of `cooperative_groups` in kernels, against their definition, without findings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gemmkit.emulator import DeviceMemory, LaunchRequest, load
from gemmkit.errors import UnsupportedInstruction
from gemmkit.jit.compiler import compile_source
from gemmkit.kernels.plan import SourceFile

HEAD = """#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;
"""
START = """extern "C" __global__ void {name}(int* out) {{
  const int x = threadIdx.x;
  auto block = cg::this_thread_block();
  auto warp = cg::tiled_partition<32>(block);
"""
THREADS = 64
# The lanes of each warp that are not multiples of 3.
SOME = [[x for x in range(w, w + 32) if x % 3] for w in (0, 32)]


@pytest.fixture(scope="module")
def ptx(tmp_path_factory) -> str:
    """All kernels in one text: CUDA's headers take two seconds to compile."""
    bodies = [*(body for body, *_ in CASES.values()), *REFUSED]
    kernels = [START.format(name=f"k{n}") + body + "\n}\n" for n, body in enumerate(bodies)]
    folder = str(tmp_path_factory.mktemp("source"))
    source = SourceFile(HEAD + "".join(kernels), "k.cu", "cuda", (folder,), ())
    return compile_source(source, "k0", "sm_86", assemble=False).ptx


def launch(ptx: str, number: int) -> np.ndarray:
    """`out` after a launch of 64 threads; the sanitizers find nothing."""
    memory = DeviceMemory()
    out = memory.allocate(4 * THREADS)
    memory.view(out.address, 4 * THREADS)[:] = 0
    parameters = int(out.address).to_bytes(8, "little")
    request = LaunchRequest((1, 1, 1), (THREADS, 1, 1), parameters, 0)
    found = load(ptx, f"k{number}", sanitize=True).run(request, memory, sanitize=True)
    assert not found.findings
    return memory.view(out.address, 4 * THREADS).view(np.int32).copy()


def among(groups: list[list[int]], value: Callable[[list[int], int], int]) -> list[int]:
    """`value` of each group and rank in it, by thread; 0 for threads in no group."""
    wanted = [0] * THREADS
    for group in groups:
        for place, thread in enumerate(group):
            wanted[thread] = value(group, place)
    return wanted


COALESCED = "if (x % 3) {{ auto g = cg::coalesced_threads(); out[x] = {}; }}"
FIFTHS = [[x for x in range(w, w + 32) if x % 5 == r] for w in (0, 32) for r in range(5)]
THIRDS = [[x for x in range(w, w + 32) if (x % 3 == 0) == r] for w in (0, 32) for r in (0, 1)]
TILES = [list(range(t, t + 8)) for t in range(0, 64, 8)]

CASES = {
    "shfl": (COALESCED.format("g.shfl(x, 3)"), SOME, lambda g, i: g[3]),
    "shfl_down": (
        COALESCED.format("g.shfl_down(x, 2)"),
        SOME,
        lambda g, i: g[i + 2] if i + 2 < len(g) else g[i],
    ),
    "shfl_up": (
        COALESCED.format("g.shfl_up(x, 2)"), SOME, lambda g, i: g[i - 2] if i > 1 else g[i]
    ),
    "rank and votes": (
        COALESCED.format("g.thread_rank() + 100 * g.size() + (g.any(x == 4) ? 10000 : 0)"),
        SOME,
        lambda g, i: i + 100 * len(g) + 10000 * (4 in g),
    ),
    "reduce": (
        COALESCED.format("cg::reduce(g, x, cg::plus<int>())"), SOME, lambda g, i: sum(g)
    ),
    "scan": (COALESCED.format("cg::exclusive_scan(g, x)"), SOME, lambda g, i: sum(g[:i])),
    "labeled_partition": (
        "auto g = cg::labeled_partition(warp, x % 5); out[x] = g.shfl(x, 1) + 100 * g.thread_rank()"
        " + 10000 * cg::reduce(g, x, cg::greater<int>());",
        FIFTHS,
        lambda g, i: g[1] + 100 * i + 10000 * max(g),
    ),
    "binary_partition": (
        "auto g = cg::binary_partition(warp, x % 3 == 0); out[x] = g.shfl(x, 0) + 100 * g.size();",
        THIRDS,
        lambda g, i: g[0] + 100 * len(g),
    ),
    "tile": (
        "auto g = cg::tiled_partition<8>(warp); out[x] = g.shfl_xor(x, 3) + 100 * cg::reduce(g, x, "
        "cg::plus<int>()) + 100000 * g.meta_group_rank() + 1000000 * g.meta_group_size();",
        TILES,
        lambda g, i: g[i ^ 3] + 100 * sum(g) + 100000 * (g[0] % 32 // 8) + 4000000,
    ),
    "tile of a size known late": (
        "auto g = cg::tiled_partition(block, 8); g.sync(); out[x] = g.thread_rank() + g.size();",
        TILES,
        lambda g, i: i + 8,
    ),
    "aggregated atomics": (
        "if (x % 3) { auto g = cg::coalesced_threads(); int first; if (g.thread_rank() == 0) "
        "first = atomicAdd(out, g.size()); first = g.shfl(first, 0); "
        "out[1 + first + g.thread_rank()] = 1; }",
        [list(range(sum(map(len, SOME)) + 1))],
        lambda g, i: 1 if i else len(g) - 1,
    ),
}  # fmt: skip


REFUSED = {
    "__shared__ cg::block_tile_memory<64> m; auto t = cg::tiled_partition<64>("
    "cg::this_thread_block(m)); out[x] = cg::reduce(t, x, cg::plus<int>());": (
        "groups of more than 32 threads"
    ),
    "cg::this_grid().sync();": "grid-wide synchronization",
}


@pytest.mark.parametrize(("number", "name"), [*enumerate(CASES)], ids=list(CASES))
@pytest.mark.sample(3)
def test_groups(number: int, name: str, ptx: str) -> None:
    _, groups, value = CASES[name]
    assert launch(ptx, number).tolist() == among(groups, value)


@pytest.mark.parametrize(("number", "words"), [*enumerate(REFUSED.values(), len(CASES))])
def test_what_is_refused_by_name(number: int, words: str, ptx: str) -> None:
    with pytest.raises(UnsupportedInstruction, match=words):
        launch(ptx, number)
