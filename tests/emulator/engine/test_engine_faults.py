"""No access leaves the memory that a kernel was given, and the error names the array that was
meant."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import Executor, kernel_ptx, launch

from gemmkit.emulator import DeviceMemory, LaunchRequest, Program, load
from gemmkit.errors import DeviceError

OPCODES = {
    "ld.global.u8": 1,
    "ld.global.f32": 4,
    "ld.global.v2.f32": 8,
    "ld.global.v4.f32": 16,
    "ld.global.f64": 8,
    "ld.f32": 4,
    "st.global.u16": 2,
    "st.global.f32": 4,
    "st.global.v4.f32": 16,
    "st.f32": 4,
    "red.global.add.u32": 4,
    "cp.async.cg.shared.global": 16,
    "cp.async.ca.shared.global": 4,
}


def access(opcode: str) -> str:
    registers = {"v2": "{%f1, %f2}", "v4": "{%f1, %f2, %f3, %f4}"}
    width = next((name for name in registers if name in opcode), None)
    operand = registers.get(
        width or "",
        {"u8": "%r1", "u16": "%h1", "u32": "%r1", "f64": "%fd1"}.get(
            opcode.rsplit(".", 1)[1], "%f1"
        ),
    )
    if opcode.startswith("cp.async"):
        return f"{opcode} [0], [%rd9], {OPCODES[opcode]};"
    if opcode.startswith("ld"):
        return f"{opcode} {operand}, [%rd9];"
    return f"{opcode} [%rd9], {operand};"


# Lane i accesses the i-th of 32 addresses, if the i-th bit of a mask is set.
def scattered(opcode: str) -> str:
    return kernel_ptx(
        f"""
        mul.wide.u32 %rd8, %tid, 8;
        add.s64 %rd8, %rd8, %rd0;
        ld.global.u64 %rd9, [%rd8];
        setp.ne.u64 %p1, %rd9, -1;
        @%p1 {access(opcode)}
        """,
        declarations=".shared .align 16 .b8 tile[16];",
    )


@pytest.fixture(scope="module")
def programs() -> dict[str, Program]:
    return {opcode: load(scattered(opcode), "k") for opcode in OPCODES}


def run(program: Program, memory: DeviceMemory, *pointers: int, block: int = 32) -> None:
    packed = np.array(pointers, np.uint64).tobytes()
    program.run(LaunchRequest((1, 1, 1), (block, 1, 1), packed), memory)


class Place:
    """Two arrays, their addresses, and a table of addresses for the lanes."""

    def __init__(self) -> None:
        self.memory = DeviceMemory()
        self.table = self.memory.allocate(256, "table")
        self.first = self.memory.allocate(1000, "first")
        self.second = self.memory.allocate(64, "second")

    def point(self, addresses: list[int]) -> None:
        words = np.array([each % 2**64 for each in addresses], np.uint64)
        self.memory.view(self.table.address, 256)[:] = words.view(np.uint8)

    def legal(self, address: int, size: int) -> bool:
        pieces = (self.table, self.first, self.second)
        return address % size == 0 and any(
            each.address <= address and address + size <= each.address + each.nbytes
            for each in pieces
        )


offsets = st.one_of(
    st.integers(-24, 1024),
    st.sampled_from([2**63, 2**64 - 4, -(2**40), 2**40, 2**31, 2**32, 2**47]),
)


@settings(max_examples=150)
@given(
    st.sampled_from(list(OPCODES)),
    st.lists(st.tuples(st.sampled_from(["first", "second", "none"]), offsets), max_size=32),
    st.booleans(),
)
def test_any_address(
    programs: dict[str, Program], opcode: str, lanes: list[tuple[str, int]], aligned: bool
) -> None:
    """An access is performed or refused; the process and the engine survive."""
    place, size = Place(), OPCODES[opcode]
    addresses = [-1] * 32
    for lane, (base, offset) in enumerate(lanes):
        start = {"first": place.first.address, "second": place.second.address, "none": 0}[base]
        address = (start + offset) % 2**64
        addresses[lane] = address // size * size if aligned else address
    active = [each % 2**64 for each in addresses if each % 2**64 != 2**64 - 1]
    place.point(addresses)
    if all(place.legal(each, size) for each in active):
        run(programs[opcode], place.memory, place.table.address)
        return
    with pytest.raises(DeviceError, match=r"out of bounds|misaligned"):
        run(programs[opcode], place.memory, place.table.address)


def test_lanes_may_reach_into_several_arrays(programs: dict[str, Program]) -> None:
    place = Place()
    starts = [place.first.address, place.second.address + 60]
    place.point([starts[lane % 2] for lane in range(32)])
    for _ in range(2):
        run(programs["ld.global.f32"], place.memory, place.table.address)


@pytest.mark.parametrize(
    ("base", "offset", "words"),
    [
        ("first", 1000, r"load of 4 bytes out of bounds, 0 bytes past the end of"
                        r" 'first' \(1000 bytes\)"),
        ("first", -4, r"4 bytes before 'first' \(1000 bytes\)"),
        ("second", 62, r"misaligned load of 4 bytes, byte 62 of 'second' \(64 bytes\)"),
    ],
)  # fmt: skip
def test_the_message_names_the_array(
    programs: dict[str, Program], base: str, offset: int, words: str
) -> None:
    place = Place()
    address = getattr(place, base).address + offset
    place.point([-1] * 5 + [address] + [-1] * 26)
    with pytest.raises(DeviceError, match=words) as caught:
        run(programs["ld.global.f32"], place.memory, place.table.address)
    text = str(caught.value)
    assert text.startswith("kernel 'k': ")
    assert text.endswith("by 'ld.global.f32' at kernel.cu:5, thread (5, 0, 0) of block (0, 0, 0)")


def test_the_message_names_the_kernel_as_the_source_does(executor: Executor) -> None:
    ptx = kernel_ptx("ld.global.f32 %f1, [%rd0+1];").replace("entry k", "entry _Z4gemmILi8EEvPf")
    assert "_Z4gemm" in ptx
    with pytest.raises(DeviceError, match=r"^kernel 'gemm': misaligned|^kernel 'gemm': .*align"):
        launch(executor, ptx, np.zeros(4, np.float32), block=1)


def test_memory_that_was_freed_is_out_of_bounds(programs: dict[str, Program]) -> None:
    place = Place()
    place.point([place.first.address] * 32)
    run(programs["ld.global.f32"], place.memory, place.table.address)
    place.memory.free(place.first)
    with pytest.raises(DeviceError, match="out of bounds"):
        run(programs["ld.global.f32"], place.memory, place.table.address)


def test_a_null_pointer_is_refused_at_once() -> None:
    """Even in a loop that would not end."""
    program = load(kernel_ptx("AGAIN: ld.global.u32 %r1, [%at];\nbra AGAIN;"), "k")
    with pytest.raises(DeviceError, match=r"out of bounds at 0x0, where no memory is allocated"):
        run(program, DeviceMemory(), 0)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("ld.shared.u32 %r1, [tile+64];", r"at 0x40 in 64 bytes of shared memory"),
        ("mov.u32 %r2, -4; st.shared.u32 [%r2], %r1;", r"at 0xfffffffc in 64 bytes of shared"),
        ("cp.async.cg.shared.global [tile+56], [%rd0], 16;", r"misaligned cp.async of 16 bytes at"),
        ("cp.async.ca.shared.global [tile+64], [%rd0], 4;", r"cp.async of 4 bytes.*shared"),
        ("ld.local.u32 %r1, [own+12];", r"at 0xc in 12 bytes of local memory"),
        ("atom.shared.add.u32 %r1, [tile+4096], 1;", r"atomic operation of 4 bytes.*shared"),
        ("atom.global.add.noftz.f16 %h1, [%rd0+128], %h2;", r"atomic operation of 2 bytes"),
    ],
)
def test_other_spaces_say_their_size(body: str, words: str) -> None:
    declarations = ".shared .align 16 .b8 tile[64]; .local .align 4 .b8 own[12];"
    program = load(kernel_ptx(f"mov.b16 %h2, 0;\n{body}", declarations=declarations), "k")
    memory = DeviceMemory()
    with pytest.raises(DeviceError, match=words):
        run(program, memory, memory.allocate(128).address)


def test_the_engine_goes_on_after_a_fault(programs: dict[str, Program]) -> None:
    place = Place()
    place.point([0] * 32)
    with pytest.raises(DeviceError):
        run(programs["st.global.f32"], place.memory, place.table.address)
    place.point([place.first.address] * 32)
    run(programs["st.global.f32"], place.memory, place.table.address)


def test_nothing_past_a_ragged_end_is_accessed() -> None:
    """Vectors are read past the last lane's word, but never written there."""
    memory = DeviceMemory()
    pieces = [memory.allocate(4 * count) for count in (1, 7, 33)]
    program = load(kernel_ptx("ld.global.u32 %r1, [%at];\nst.global.u32 [%at], %tid;"), "k")
    for piece, count in zip(pieces, (1, 7, 33), strict=True):
        around = memory._allocations[piece.address][1].base
        around[...] = 0xAB
        run(program, memory, piece.address, block=count)
        inside = memory.view(piece.address, 4 * count)
        assert inside.view(np.uint32).tolist() == [*range(count)]
        inside[:] = 0xAB
        assert (around == 0xAB).all()


def test_division_never_traps() -> None:
    text = kernel_ptx(
        """
        ld.global.u32 %r1, [%at];
        mov.u32 %r2, -1;
        div.s32 %r3, %r1, %r2;
        mov.u32 %r4, 0;
        rem.s32 %r5, %r1, %r4;
        div.u32 %r6, %r1, %r4;
        add.u32 %r3, %r3, %r5;
        add.u32 %r3, %r3, %r6;
        st.global.u32 [%at], %r3;
        """
    )
    memory = DeviceMemory()
    piece = memory.allocate(128)
    memory.view(piece.address, 128).view(np.uint32)[:] = 1 << 31
    run(load(text, "k"), memory, piece.address)
    assert (memory.view(piece.address, 128).view(np.uint32) == (1 << 31) - 2).all()
