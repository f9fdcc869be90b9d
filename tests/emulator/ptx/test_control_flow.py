"""Basic blocks, and immediate post-dominators against their definition on random graphs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gemmkit.emulator.ptx.cfg import ControlFlow
from gemmkit.emulator.ptx.parser import parse


def flow_of(body: str) -> ControlFlow:
    text = f".entry k() {{ .reg .pred %p<4>; .reg .b32 %r<4>;\n{body}\n}}"
    return ControlFlow.of(parse(text).kernels["k"])


def test_an_if_and_a_loop() -> None:
    flow = flow_of(
        """
        mov.u32 %r1, 0;
        @%p1 bra ELSE;
        mov.u32 %r2, 1;
        bra LOOP;
        ELSE:
        mov.u32 %r2, 2;
        LOOP:
        add.u32 %r1, %r1, 1;
        bar.sync 0;
        @!%p2 bra LOOP;
        @%p3 exit;
        ret;
        """
    )
    spans = [(block.start, block.end, block.successors) for block in flow.blocks]
    assert spans == [
        (0, 2, (2, 1)),
        (2, 4, (3,)),
        (4, 5, (3,)),
        (5, 7, (4,)),
        (7, 8, (3, 5)),
        (8, 9, (7, 6)),
        (9, 10, (7,)),
    ]
    assert flow.reconvergence == (3, 3, 3, 4, 5, 7, 7)


def test_an_endless_loop_reconverges_at_the_exit() -> None:
    flow = flow_of("A: @%p1 bra B; bra A; B: bra B;")
    assert flow.reconvergence == (3, 3, 3)


def test_a_trap_changes_no_reconvergence() -> None:
    """As of a poll that gives up after some time: lanes beside it meet after the loop."""
    flow = flow_of("@%p1 bra C; A: @%p2 bra B; trap; B: @%p3 bra A; C: bar.sync 0;")
    assert [block.successors for block in flow.blocks] == [(4, 1), (3, 2), (), (1, 4), (5,)]
    assert flow.reconvergence == (4, 3, 5, 4, 5)


def test_an_empty_kernel_has_no_blocks() -> None:
    assert flow_of("").blocks == ()


@st.composite
def branches(draw: st.DrawFn) -> list[tuple[int, bool] | None]:
    """For each block: its branch target and whether it is guarded, or None to fall through."""
    count = draw(st.integers(1, 9))
    target = st.tuples(st.integers(0, count), st.booleans())
    return draw(st.lists(st.none() | target, min_size=count, max_size=count))


@given(branches())
def test_post_dominators_by_their_definition(jumps: list[tuple[int, bool] | None]) -> None:
    lines = []
    for number, jump in enumerate(jumps):
        lines.append(f"L{number}: mov.u32 %r1, {number};")
        if jump is not None:
            lines.append(f"{'@%p1 ' if jump[1] else ''}bra L{jump[0]};")
    lines.append(f"L{len(jumps)}: ret;")
    flow = flow_of("\n".join(lines))
    exit_block = len(flow.blocks)
    edges = {number: set(block.successors) for number, block in enumerate(flow.blocks)}
    edges[exit_block] = set()

    def reaches_exit(start: int, without: int | None) -> bool:
        seen, work = set(), [start]
        while work:
            node = work.pop()
            if node == exit_block and without != exit_block:
                return True
            if node != without and node not in seen:
                seen.add(node)
                work += edges[node]
        return False

    for block in range(exit_block):
        if not reaches_exit(block, None):
            assert flow.reconvergence[block] == exit_block
            continue
        # Every path from `block` to the exit passes through these; the nearest is on all paths of
        # the others.
        passed = [
            other
            for other in range(exit_block + 1)
            if other != block and (other == exit_block or not reaches_exit(block, other))
        ]
        nearest = [
            one
            for one in passed
            if all(other in (one, exit_block) or not reaches_exit(one, other) for other in passed)
        ]
        assert flow.reconvergence[block] in nearest
        assert len(nearest) == 1
