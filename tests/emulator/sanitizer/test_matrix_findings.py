"""Bugs around `ldmatrix`, `stmatrix` and `wmma`: rows out of bounds, unaligned, never written, and
races of a row that other warps access."""

from __future__ import annotations

import pytest
from sanitizing import run

KERNEL = """k(float* out) {
    __shared__ __align__(128) unsigned tile[256];
    __shared__ __align__(128) unsigned other[256];
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    unsigned a[4] = {0, 1, 2, 3}, at = (unsigned)__cvta_generic_to_shared(tile);
    FILL
    SYNC
    unsigned row = ROW;
    USE
    LAST
    out[t] = a[0] + a[1] + a[2] + a[3] + other[t];
}"""
FILL = "for (int i = t; i < 256; i += 64) tile[i] = i, other[i] = 0;"
LOAD = (
    'asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" '
    ': "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(row) : "memory");'
)
PAIR = (
    'asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" '
    ': "=r"(a[0]), "=r"(a[1]) : "r"(row) : "memory");'
)
STORE = (
    'asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" '
    ':: "r"(row), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]) : "memory");'
)
ROW = "at + 16 * lane"
USE_LINE = 9


def kernel(use: str, row: str = ROW, *, fill: str = FILL, sync: str = "__syncthreads();",
           last: str = "") -> str:  # fmt: skip
    words = {"FILL": fill, "SYNC": sync, "ROW": row, "USE": use, "LAST": last}
    text = KERNEL
    for name, value in words.items():
        text = text.replace(name, value, 1)
    return text


def findings(*arguments: str, **others: str) -> tuple[object, ...]:
    return run(kernel(*arguments, **others), arch="sm_90").findings


@pytest.mark.parametrize("use", [LOAD, PAIR])
def test_loads_of_what_was_written_before_a_barrier_are_sound(use: str) -> None:
    assert not findings(use)


def test_stores_of_one_warp_each_are_sound() -> None:
    assert not findings(STORE, "at + 512 * warp + 16 * lane")


def test_only_the_lanes_of_rows_count() -> None:
    """Lanes 16 to 31 of an `.x2` give addresses that nothing reads."""
    assert not findings(PAIR, "lane < 16 ? at + 16 * lane : 0x7ffffff1")


@pytest.mark.parametrize(
    ("use", "what"), [(LOAD, "load of 16 bytes"), (STORE, "store of 16 bytes")]
)
def test_an_unaligned_row(use: str, what: str) -> None:
    found = findings(use, "at + 512 * warp + 16 * lane + (lane == 5 ? 4 : 0)")
    assert {(each.check, each.kind) for each in found} == {("memcheck", "misaligned")}
    assert what in found[0].message
    assert (found[0].here.line, found[0].here.thread[0] % 32) == (USE_LINE, 5)


@pytest.mark.parametrize("use", [LOAD, STORE])
def test_a_row_past_the_end(use: str) -> None:
    """Another variable follows, so that the row is still in the block's shared memory."""
    found = findings(use, "at + 512 * warp + 16 * lane + 16")
    assert [(each.check, each.kind) for each in found] == [("memcheck", "out of bounds")]
    assert "of 'tile'" in found[0].message
    assert found[0].here.thread == (63, 0, 0)


def test_one_element_that_was_never_written() -> None:
    """Half a word is left out, in the row that lane 3 gives."""
    fill = "for (int i = t; i < 512; i += 64) if (i != 29) ((unsigned short*)tile)[i] = i;"
    found = findings(LOAD, fill=fill + " for (int i = t; i < 256; i += 64) other[i] = 0;")
    assert {each.check for each in found} == {"initcheck"}
    assert found[0].array == "tile"
    assert found[0].offset == 2 * 29


def test_elements_that_are_never_used_do_not_matter() -> None:
    """What was never written ends up in registers that nothing reads."""
    fill = "for (int i = t; i < 256; i += 64) { if (i < 64) tile[i] = i; other[i] = 0; }"
    use = LOAD + " a[2] = a[3] = 0;"
    assert not findings(use, fill=fill)


def test_a_load_races_with_the_store_of_another_warp() -> None:
    found = findings(LOAD, sync="")
    kinds = {(each.check, each.kind) for each in found}
    assert ("racecheck", "read after write") in kinds
    lines = {(each.here.line, each.other.line) for each in found if each.other is not None}
    assert (USE_LINE, 6) in lines


def test_a_store_races_with_the_load_of_another_warp() -> None:
    found = findings(STORE, "at + 512 * warp + 16 * lane", last="a[0] = tile[255 - t];")
    assert ("racecheck", "read after write") in {(each.check, each.kind) for each in found}


def test_a_store_over_what_another_warp_still_loads() -> None:
    found = findings(LOAD, last="tile[t] = 0;")
    assert ("racecheck", "write after read") in {(each.check, each.kind) for each in found}


def test_lanes_that_store_different_rows_to_one_place() -> None:
    use = "for (int i = 0; i < 4; ++i) a[i] = lane; " + STORE
    found = findings(use, "at + 512 * warp + 16 * (lane / 2)")
    assert {(each.check, each.kind) for each in found} == {("racecheck", "write after write")}


def test_half_a_warp_at_an_aligned_instruction() -> None:
    found = findings(f"if (lane < 16) {{ {LOAD} }}")
    assert {each.check for each in found} == {"synccheck"}
