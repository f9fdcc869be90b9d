"""Launches on the engine: threads, memory of blocks and modules, bad requests."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from launching import ENGINE, kernel_ptx, launch

from gemmkit.emulator import DeviceMemory, LaunchRequest, Program, load
from gemmkit.errors import DeviceError

# Each block sums its lanes' squares in shared memory by atomics, and adds that to one global sum;
# lanes leave a loop one after the other, so that they diverge at every iteration.
SUMS = kernel_ptx(
    """
    mov.u32 %r1, 0;
    mov.u32 %r2, 0;
    AGAIN: add.u32 %r1, %r1, %tid;
    add.u32 %r2, %r2, 1;
    setp.lt.u32 %p1, %r2, %tid;
    @%p1 bra AGAIN;
    atom.shared.add.u32 %r3, [total], %r1;
    bar.sync 0;
    ld.shared.u32 %r4, [total];
    setp.eq.u32 %p2, %tid, 0;
    @%p2 red.global.add.u32 [%rd0], %r4;
    """,
    declarations=".shared .align 4 .b8 total[4];",
)


def allocated(array: np.ndarray, memory: DeviceMemory, name: str = "") -> int:
    piece = memory.allocate(array.nbytes, name)
    memory.view(piece.address, piece.nbytes)[:] = array.view(np.uint8).reshape(-1)
    return piece.address


def request(*pointers: int, grid: int = 1, block: int = 32, shared: int = 0) -> LaunchRequest:
    packed = np.array(pointers, np.uint64).tobytes()
    return LaunchRequest((grid, 1, 1), (block, 1, 1), packed, shared)


@pytest.fixture(scope="module")
def sums() -> Program:
    return load(SUMS, "k")


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_any_number_of_threads_gives_the_same(sums: Program, threads: int) -> None:
    results = []
    for count in (1, threads):
        memory = DeviceMemory()
        at = allocated(np.zeros(1, np.uint32), memory)
        execution = sums.run(request(at, grid=57, block=70), memory, threads=count)
        results.append((memory.view(at, 4).view(np.uint32)[0], execution.tally))
    lanes = [max(lane, 1) * lane for lane in range(70)]
    assert results[0][0] == results[1][0] == 57 * sum(lanes)
    assert results[0][1].differences(results[1][1]) == {}


def test_one_program_runs_in_several_python_threads(sums: Program) -> None:
    outcomes: list[int] = []

    def run() -> None:
        memory = DeviceMemory()
        at = allocated(np.zeros(1, np.uint32), memory)
        sums.run(request(at, grid=40, block=64), memory, threads=2)
        outcomes.append(int(memory.view(at, 4).view(np.uint32)[0]))

    running = [threading.Thread(target=run) for _ in range(4)]
    for each in running:
        each.start()
    for each in running:
        each.join()
    assert outcomes == [40 * sum(max(lane, 1) * lane for lane in range(64))] * 4


def test_an_empty_grid_runs_nothing(sums: Program) -> None:
    execution = sums.run(request(0, grid=0), DeviceMemory())
    assert execution.tally.executed.sum() == 0
    assert execution.seconds == 0.0


def test_progress_goes_up_to_the_end(sums: Program) -> None:
    memory, seen = DeviceMemory(), list[float]()
    at = allocated(np.zeros(1, np.uint32), memory)
    sums.run(request(at, grid=500, block=256), memory, threads=2, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (request(0, block=1025), r"1 to 1024"),
        (request(0, block=0), r"1 to 1024"),
        (request(0, grid=-1), r"a grid of \(-1, 1, 1\)"),
        (LaunchRequest((1, 70000, 1), (1, 1, 1), bytes(8)), r"at most"),
        (LaunchRequest((1, 1, 1), (1, 1, 1), b""), r"takes 8 bytes of parameters, not 0"),
    ],
)
def test_a_bad_request_is_refused(sums: Program, asked: LaunchRequest, reason: str) -> None:
    with pytest.raises(DeviceError, match=reason):
        sums.run(asked, DeviceMemory())


def test_an_unknown_entry_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"no kernel 'other'; it has: k"):
        load(SUMS, "other")


def test_shared_memory_is_new_in_every_block() -> None:
    body = """
        add.u32 %r2, %tid, %tid;
        mov.u32 %r3, %dynamic_smem_size;
        mov.u32 %r4, %total_smem_size;
        shl.b32 %r1, %tid, 2;
        ld.shared.u32 %r5, [%r1+64];
        st.shared.u32 [%r1+64], %r4;
        setp.ne.u32 %p1, %r5, 0;
        @%p1 trap;
        setp.eq.u32 %p1, %tid, 0;
        @%p1 st.global.u32 [%rd0], %r3;
        @%p1 st.global.u32 [%rd0+4], %r4;
    """
    text = kernel_ptx(
        body,
        declarations=".shared .align 4 .b8 tile[64];",
        outside=".extern .shared .align 16 .b8 more[];",
    )
    found = launch(ENGINE, text, np.zeros(2, np.uint32), grid=9, shared_bytes=160).arrays[0]
    assert found.tolist() == [160, 224]


def test_local_memory_belongs_to_one_thread() -> None:
    body = """
        st.local.u32 [own+8], %tid;
        cvta.local.u64 %rd2, 0;
        ld.u32 %r1, [%rd2+8];
        ld.local.u32 %r2, [own+4];
        add.u32 %r1, %r1, %r2;
        st.global.u32 [%at], %r1;
    """
    text = kernel_ptx(body, declarations=".local .align 4 .b8 own[12];")
    found = launch(ENGINE, text, np.zeros(96, np.uint32), block=96).arrays[0]
    assert found.tolist() == list(range(96))


def test_module_variables_keep_their_values() -> None:
    text = kernel_ptx(
        "atom.global.add.u32 %r1, [counter], 1;\nst.global.u32 [%at], %r1;",
        outside=".global .align 4 .u32 counter = 5;",
    )
    program = load(text, "k")
    found = []
    for memory, launches in ((DeviceMemory(), 3), (DeviceMemory(), 1)):
        at = allocated(np.zeros(1, np.uint32), memory)
        for _ in range(launches):
            program.run(request(at, block=1), memory)
            found.append(int(memory.view(at, 4).view(np.uint32)[0]))
    assert found == [5, 6, 7, 5]


def test_printed_lines_come_in_the_order_of_blocks() -> None:
    text = kernel_ptx(
        """
        mov.u32 %r1, %ctaid.x;
        st.local.u32 [own], %r1;
        st.local.u32 [own+4], %tid;
        cvta.global.u64 %rd3, format;
        cvta.local.u64 %rd4, own;
        { .param .b64 a; .param .b64 b; .param .b32 result;
        st.param.b64 [a], %rd3; st.param.b64 [b], %rd4;
        call.uni (result), vprintf, (a, b); }
        """,
        declarations=".local .align 8 .b8 own[8];",
        outside=".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n"
        ".global .align 1 .b8 format[7] = {37, 117, 47, 37, 117, 10, 0};",
    )
    execution = launch(ENGINE, text, np.zeros(1, np.uint32), grid=40, block=2).execution
    assert execution.printed == tuple(f"{block}/{tid}" for block in range(40) for tid in range(2))


# Launches that are not counted, and use workers again.


def test_execute_writes_what_run_does_and_later_launches_are_their_own() -> None:
    program = load(SUMS, "k")
    for grid in (1, 7, 64, 3):
        results = []
        for way in (program.run, program.execute):
            memory = DeviceMemory()
            at = allocated(np.zeros(1, np.uint32), memory)
            way(request(at, grid=grid), memory)
            results.append(int(memory.view(at, 4).view(np.uint32)[0]))
        assert results[0] == results[1] > 0


def test_a_used_worker_does_not_reach_memory_that_was_freed() -> None:
    program = load(kernel_ptx("st.global.u32 [%at], %tid;"), "k")
    memory = DeviceMemory()
    piece = memory.allocate(128)
    packed = request(piece.address)
    program.execute(packed, memory)
    memory.free(piece)
    for _ in range(2):
        with pytest.raises(DeviceError, match="no memory is allocated"):
            program.execute(packed, memory)


def test_after_a_failure_the_next_launch_begins_anew() -> None:
    program = load(SUMS, "k")
    memory = DeviceMemory()
    at = allocated(np.zeros(1, np.uint32), memory)
    expected = DeviceMemory()
    there = allocated(np.zeros(1, np.uint32), expected)
    program.execute(request(there, grid=5), expected)
    with pytest.raises(DeviceError, match=r"out of bounds|no memory"):
        program.execute(request(64, grid=5), memory)
    program.execute(request(at, grid=5), memory)
    assert memory.view(at, 4).tolist() == expected.view(there, 4).tolist()
