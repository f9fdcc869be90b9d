"""Small PTX programs with known results and counts, on every executor."""

from __future__ import annotations

import numpy as np
import pytest
from launching import Executor, kernel_ptx, launch

from gemmkit.emulator.isa.semantics import evaluate
from gemmkit.emulator.isa.table import form_of

LANES = np.arange(32, dtype=np.uint32)


def lanes_program(executor: Executor, body: str, **options: object) -> np.ndarray:
    """32 lanes; `%r1` starts as the lane's input word and its final value is the result."""
    text = kernel_ptx(f"ld.global.u32 %r1, [%at];\n{body}\nst.global.u32 [%at], %r1;", **options)
    given = (LANES * np.uint32(0x9E3779B1)) >> np.uint32(7)
    return launch(executor, text, given).arrays[0]


INPUT = (LANES * np.uint32(0x9E3779B1)) >> np.uint32(7)


class TestDataFlow:
    def test_special_registers(self, executor: Executor) -> None:
        body = """
            mov.u32 %r1, %ctaid.x;
            mov.u32 %r2, %ntid.x;
            mov.u32 %r3, %ntid.y;
            mov.u32 %r4, %tid.y;
            mad.lo.u32 %r5, %r4, %r2, %tid;
            mul.lo.u32 %r6, %r2, %r3;
            mad.lo.u32 %r7, %r1, %r6, %r5;
            mov.u32 %r8, %nctaid.x;
            mov.u32 %r9, %ctaid.y;
            mul.lo.u32 %r10, %r8, %r6;
            mad.lo.u32 %r7, %r9, %r10, %r7;
            mov.u32 %r11, %laneid;
            mov.u32 %r12, %warpid;
            mad.lo.u32 %r12, %r12, 1000, %r11;
            mul.wide.u32 %rd4, %r7, 4;
            add.s64 %rd4, %rd4, %rd0;
            st.global.u32 [%rd4], %r12;
        """
        block, grid = (16, 3, 1), (2, 2, 1)  # a block of one and a half warps
        out = launch(executor, kernel_ptx(body), np.zeros(192, np.uint32), grid=grid, block=block)
        thread = np.tile(np.arange(48), 4)
        assert np.array_equal(out.arrays[0], thread // 32 * 1000 + thread % 32)

    def test_lane_masks(self, executor: Executor) -> None:
        for name, relation in {
            "eq": np.equal,
            "lt": np.less,
            "le": np.less_equal,
            "gt": np.greater,
            "ge": np.greater_equal,
        }.items():
            got = lanes_program(executor, f"mov.u32 %r1, %lanemask_{name};")
            wanted = [sum(1 << j for j in range(32) if relation(j, lane)) for lane in range(32)]
            assert got.tolist() == wanted

    def test_packing_and_unpacking(self, executor: Executor) -> None:
        body = """
            mov.b64 %rd4, {%r1, %tid};
            mov.b64 {%r2, %r3}, %rd4;
            mov.b32 {%h1, %h2}, %r2;
            mov.b32 %r4, {%h2, %h1};
            add.u32 %r1, %r4, %r3;
        """
        wanted = ((INPUT << np.uint32(16)) | (INPUT >> np.uint32(16))) + LANES
        assert np.array_equal(lanes_program(executor, body), wanted)

    def test_carry_chain(self, executor: Executor) -> None:
        body = """
            add.cc.u32 %r2, %r1, 0xFFFFFFFF;
            addc.u32 %r1, 7, 0;
        """
        assert lanes_program(executor, body).tolist() == [7] + [8] * 31

    def test_guards_keep_old_values(self, executor: Executor) -> None:
        body = """
            setp.lt.u32 %p1, %tid, 10;
            @%p1 mov.u32 %r1, 5;
            @!%p1 add.u32 %r1, %r1, 1;
        """
        assert np.array_equal(lanes_program(executor, body), np.where(LANES < 10, 5, INPUT + 1))

    def test_pairs_and_sinks(self, executor: Executor) -> None:
        body = """
            setp.lt.u32 %p1|%p2, %tid, 10;
            selp.u32 %r2, 1, 0, %p1;
            selp.u32 %r3, 2, 0, %p2;
            add.u32 %r1, %r2, %r3;
            mov.b64 %rd4, {%r1, %r1};
            mov.b64 {_, %r1}, %rd4;
        """
        assert np.array_equal(lanes_program(executor, body), np.where(LANES < 10, 1, 2))

    def test_a_result_may_go_to_the_guard(self, executor: Executor) -> None:
        """Guard and operands are read before any of the results is written."""
        body = """
            setp.lt.u32 %p1, %tid, 10;
            setp.ge.u32 %p2, %tid, 0;
            @!%p1 setp.ge.or.u32 %p1|%p2, %tid, 20, %p1;
            selp.u32 %r2, 1, 0, %p1;
            selp.u32 %r3, 2, 0, %p2;
            add.u32 %r1, %r2, %r3;
        """
        wanted = np.select([LANES < 10, LANES < 20], [3, 2], 1)
        assert np.array_equal(lanes_program(executor, body), wanted)

    def test_a_result_may_go_to_an_operand(self, executor: Executor) -> None:
        body = """
            mul.wide.u32 %rd3, %tid, 16;
            add.s64 %rd3, %rd3, %rd0;
            ld.global.v2.u64 {%rd3, %rd4}, [%rd3];
            mov.b64 {%r1, %r2}, %rd4;
            mov.b64 %rd4, {%r2, %r1};
            mov.b64 {%r2, %r1}, %rd4;
            mad.lo.u32 %r2, %r1, %r2, %r2;
            st.global.u32 [%at], %r2;
        """
        pairs = np.arange(128, dtype=np.uint32).reshape(32, 4)
        (out,) = launch(executor, kernel_ptx(body), pairs).arrays
        wanted = pairs[:, 2] * pairs[:, 3] + pairs[:, 3]
        assert np.array_equal(out.ravel()[:32], wanted)

    def test_narrow_loads_extend_and_narrow_stores_cut(self, executor: Executor) -> None:
        body = """
            cvt.u64.u32 %rd3, %tid;
            add.s64 %rd3, %rd3, %rd0;
            ld.global.s8 %r2, [%rd3];
            ld.global.u8 %r3, [%rd3];
            add.u32 %r4, %r2, %r3;
            st.global.u32 [%at+32], %r4;
            st.global.u8 [%rd3], %r4;
        """
        data = np.zeros(40 * 4, np.uint8)
        data[:32] = np.arange(120, 152)
        (out,) = launch(executor, kernel_ptx(body), data).arrays
        wide = data[:32].view(np.int8).astype(np.int64) + data[:32]
        assert np.array_equal(out[32:].view(np.int32)[:32], wide)
        assert np.array_equal(out[:32], wide.astype(np.uint8))

    def test_vectors(self, executor: Executor) -> None:
        body = """
            mul.wide.u32 %rd3, %tid, 16;
            add.s64 %rd3, %rd3, %rd0;
            ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd3];
            st.global.v2.u32 [%rd3+8], {%r2, %r1};
        """
        data = np.arange(128, dtype=np.uint32)
        (out,) = launch(executor, kernel_ptx(body), data).arrays
        wanted = data.reshape(32, 4)[:, [0, 1, 1, 0]]
        assert np.array_equal(out.reshape(32, 4), wanted)

    def test_constants_and_global_variables(self, executor: Executor) -> None:
        outside = """
            .const .align 4 .u32 table[4] = {10, 20, 30, 0x28};
            .global .align 8 .b8 text[8] = {1, 2, 3, 4, 5, 6, 7, 8};
        """
        body = """
            and.b32 %r2, %tid, 3;
            mul.wide.u32 %rd4, %r2, 4;
            mov.u64 %rd5, table;
            add.s64 %rd5, %rd5, %rd4;
            ld.const.u32 %r3, [%rd5];
            ld.const.u32 %r4, [table+12];
            ld.global.u32 %r5, [text+4];
            add.u32 %r1, %r3, %r4;
            add.u32 %r1, %r1, %r5;
        """
        table = np.array([10, 20, 30, 40], np.uint32)
        wanted = table[LANES & 3] + np.uint32(40 + 0x08070605)
        assert np.array_equal(lanes_program(executor, body, outside=outside), wanted)


class TestDivergence:
    def test_both_sides_reconverge(self, executor: Executor) -> None:
        body = """
            setp.lt.u32 %p1, %tid, 10;
            @%p1 bra LOW;
            add.u32 %r1, %r1, 100;
            bra MEET;
            LOW:
            add.u32 %r1, %r1, 1;
            MEET:
            xor.b32 %r1, %r1, 0xFF;
            st.global.u32 [%at], %r1;
        """
        out = launch(executor, kernel_ptx("ld.global.u32 %r1, [%at];\n" + body), INPUT)
        wanted = (INPUT + np.where(LANES < 10, 1, 100).astype(np.uint32)) ^ np.uint32(0xFF)
        assert np.array_equal(out.arrays[0], wanted)
        assert out.count("divergent", "bra") == 1
        assert out.count("executed", "add.u32") == 2
        assert out.count("lanes", "add.u32") == 32
        assert (out.count("executed", "xor.b32"), out.count("lanes", "xor.b32")) == (1, 32)

    def test_a_branch_that_all_lanes_take_is_not_divergent(self, executor: Executor) -> None:
        body = """
            setp.lt.u32 %p1, %tid, 32;
            @%p1 bra END;
            mov.u32 %r1, 7;
            st.global.u32 [%at], %r1;
            END:
        """
        out = launch(executor, kernel_ptx(body), INPUT)
        assert np.array_equal(out.arrays[0], INPUT)
        assert out.count("divergent", "bra") == 0
        assert out.count("executed", "st.global.u32") == 0

    def test_loops_of_different_lengths(self, executor: Executor) -> None:
        """Lane n adds 1 + 2 + ... + n + 1; in each iteration but the last one lane diverges."""
        body = """
            mov.u32 %r1, 0;
            mov.u32 %r2, 0;
            LOOP:
            add.u32 %r2, %r2, 1;
            add.u32 %r1, %r1, %r2;
            setp.le.u32 %p1, %r2, %tid;
            @%p1 bra LOOP;
            st.global.u32 [%at], %r1;
        """
        out = launch(executor, kernel_ptx(body), INPUT)
        assert np.array_equal(out.arrays[0], (LANES + 1) * (LANES + 2) // 2)
        assert out.count("divergent", "bra") == 31
        assert out.count("executed", "setp.le.u32") == 32
        assert out.count("lanes", "setp.le.u32") == 32 * 33 // 2
        assert out.count("executed", "st.global.u32") == 1

    def test_nested_loops_and_breaks(self, executor: Executor) -> None:
        """Collatz steps with an inner loop that divides, and a limit that leaves both."""
        body = """
            add.u32 %r1, %tid, 1;
            mov.u32 %r2, 0;
            OUTER:
            setp.eq.u32 %p1, %r1, 1;
            @%p1 bra DONE;
            HALVE:
            and.b32 %r3, %r1, 1;
            setp.ne.u32 %p2, %r3, 0;
            @%p2 bra ODD;
            shr.u32 %r1, %r1, 1;
            add.u32 %r2, %r2, 1;
            setp.gt.u32 %p3, %r2, 20;
            @%p3 bra DONE;
            setp.ne.u32 %p4, %r1, 1;
            @%p4 bra HALVE;
            bra OUTER;
            ODD:
            mad.lo.u32 %r1, %r1, 3, 1;
            add.u32 %r2, %r2, 1;
            bra OUTER;
            DONE:
            st.global.u32 [%at], %r2;
        """

        def steps(n: int) -> int:
            count = 0
            while n != 1:
                count += 1
                if n % 2:
                    n = 3 * n + 1
                else:
                    n //= 2
                    if count > 20:
                        break
            return count

        out = launch(executor, kernel_ptx(body), INPUT)
        assert out.arrays[0].tolist() == [steps(n + 1) for n in range(32)]

    def test_lanes_that_exit_early_are_gone(self, executor: Executor) -> None:
        body = """
            setp.lt.u32 %p1, %tid, 10;
            @%p1 bra LOW;
            mov.u32 %r1, 1;
            st.global.u32 [%at], %r1;
            ret;
            LOW:
            setp.lt.u32 %p2, %tid, 5;
            @%p2 exit;
            activemask.b32 %r1;
            st.global.u32 [%at], %r1;
        """
        out = launch(executor, kernel_ptx(body), INPUT)
        low = np.where(LANES < 5, INPUT, 0b1111100000)
        assert np.array_equal(out.arrays[0], np.where(LANES < 10, low, 1))

    def test_a_guarded_instruction_executes_without_a_request(self, executor: Executor) -> None:
        body = """
            setp.gt.u32 %p1, %tid, 99;
            @%p1 ld.global.u32 %r1, [%rd0+1000000];
            @%p1 st.shared.u32 [1000000], %r1;
        """
        out = launch(executor, kernel_ptx(body), INPUT, block=64)
        for opcode in ("ld.global.u32", "st.shared.u32"):
            assert out.count("executed", opcode) == 2
            assert out.count("lanes", opcode) == 0
            assert out.count("requests", opcode) == 0


class TestBlocks:
    def test_shared_memory_and_barriers(self, executor: Executor) -> None:
        body = """
            mov.u32 %r2, tile;
            shl.b32 %r3, %tid, 2;
            add.u32 %r4, %r2, %r3;
            ld.global.u32 %r1, [%at];
            st.shared.u32 [%r4], %r1;
            bar.sync 0;
            sub.u32 %r5, 508, %r3;
            add.u32 %r5, %r5, %r2;
            ld.shared.u32 %r1, [%r5];
            st.global.u32 [%at], %r1;
        """
        text = kernel_ptx(body, declarations=".shared .align 4 .b8 tile[512];")
        given = np.arange(128, dtype=np.uint32)
        assert np.array_equal(launch(executor, text, given, block=128).arrays[0], given[::-1])

    def test_dynamic_shared_memory_starts_after_the_static(self, executor: Executor) -> None:
        outside = ".extern .shared .align 16 .b8 dynamic[];"
        body = """
            st.shared.u32 [static_part], 7;
            mov.u32 %r1, dynamic;
            mad.lo.u32 %r2, %tid, 4, %r1;
            st.shared.u32 [%r2+60], %tid;
            ld.shared.u32 %r3, [%r2+60];
            add.u32 %r1, %r1, %r3;
            st.global.u32 [%at], %r1;
        """
        text = kernel_ptx(
            body, outside=outside, declarations=".shared .align 4 .b8 static_part[20];"
        )
        out = launch(executor, text, INPUT, shared_bytes=60 + 128)
        assert np.array_equal(out.arrays[0], LANES + 32)

    def test_shared_memory_is_zero_in_every_block(self, executor: Executor) -> None:
        body = """
            ld.shared.u32 %r1, [cell];
            add.u32 %r2, %r1, 1;
            st.shared.u32 [cell], %r2;
            mov.u32 %r3, %ctaid.x;
            mul.wide.u32 %rd3, %r3, 4;
            add.s64 %rd3, %rd3, %rd0;
            st.global.u32 [%rd3], %r2;
        """
        text = kernel_ptx(body, declarations=".shared .align 4 .u32 cell;")
        out = launch(executor, text, np.zeros(5, np.uint32), grid=5, block=1)
        assert out.arrays[0].tolist() == [1] * 5

    def test_ended_warps_count_as_arrived(self, executor: Executor) -> None:
        body = """
            setp.lt.u32 %p1, %tid, 32;
            @%p1 exit;
            bar.sync 0;
            st.global.u32 [%at], %tid;
        """
        out = launch(executor, kernel_ptx(body), np.zeros(96, np.uint32), block=96)
        assert out.arrays[0].tolist() == [0] * 32 + list(range(32, 96))

    def test_named_barriers_with_a_count(self, executor: Executor) -> None:
        """Warp 0 only arrives; warp 1 waits for it; warp 2 does not participate."""
        body = """
            mov.u32 %r9, cell;
            setp.lt.u32 %p1, %tid, 32;
            setp.ge.u32 %p2, %tid, 64;
            @%p2 bra END;
            @%p1 bra FIRST;
            bar.sync 3, 64;
            ld.shared.u32 %r1, [%r9];
            st.global.u32 [%at], %r1;
            bra END;
            FIRST:
            mov.u32 %r2, 77;
            st.shared.u32 [%r9], %r2;
            bar.arrive 3, 64;
            END:
        """
        text = kernel_ptx(body, declarations=".shared .align 4 .u32 cell;")
        out = launch(executor, text, np.zeros(96, np.uint32), block=96)
        assert out.arrays[0].tolist() == [0] * 32 + [77] * 32 + [0] * 32

    def test_barriers_in_loops_are_used_again(self, executor: Executor) -> None:
        """In each iteration every warp passes its word to the next one, around the block."""
        body = """
            mov.u32 %r9, cells;
            shr.u32 %r2, %tid, 5;
            mad.lo.u32 %r3, %r2, 4, %r9;
            add.u32 %r4, %r2, 1;
            and.b32 %r4, %r4, 3;
            mad.lo.u32 %r4, %r4, 4, %r9;
            mov.u32 %r1, %r2;
            mov.u32 %r5, 0;
            LOOP:
            st.shared.u32 [%r4], %r1;
            bar.sync 0;
            ld.shared.u32 %r1, [%r3];
            bar.sync 0;
            add.u32 %r5, %r5, 1;
            setp.lt.u32 %p1, %r5, 6;
            @%p1 bra LOOP;
            st.global.u32 [%at], %r1;
        """
        text = kernel_ptx(body, declarations=".shared .align 4 .b8 cells[16];")
        out = launch(executor, text, np.zeros(128, np.uint32), block=128)
        assert np.array_equal(out.arrays[0], (np.arange(128) // 32 - 6) % 4)


class TestCopyAsync:
    def test_copies_zero_fills_and_counts_what_is_read(self, executor: Executor) -> None:
        """Lanes 0-9 read 16 bytes, 10-19 four of 16, others nothing, from no valid address."""
        body = """
            mov.u32 %r9, tile;
            mad.lo.u32 %r2, %tid, 16, %r9;
            mul.wide.u32 %rd3, %tid, 16;
            add.s64 %rd3, %rd3, %rd0;
            setp.lt.u32 %p1, %tid, 10;
            setp.lt.u32 %p2, %tid, 20;
            selp.u32 %r3, 4, 0, %p2;
            selp.u32 %r3, 16, %r3, %p1;
            selp.b64 %rd3, %rd3, 3, %p2;
            st.shared.v4.u32 [%r2], {%tid, %tid, %tid, %tid};
            cp.async.cg.shared.global [%r2], [%rd3], 16, %r3;
            cp.async.commit_group;
            cp.async.wait_group 0;
            ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r2];
            mul.wide.u32 %rd4, %tid, 16;
            add.s64 %rd4, %rd4, %rd1;
            st.global.v4.u32 [%rd4], {%r4, %r5, %r6, %r7};
        """
        text = kernel_ptx(body, pointers=2, declarations=".shared .align 16 .b8 tile[512];")
        data = np.arange(1, 129, dtype=np.uint32).reshape(32, 4)
        out = launch(executor, text, data, np.ones_like(data))
        wanted = np.where((LANES < 10)[:, None], data, 0)
        wanted[10:20, 0] = data[10:20, 0]
        assert np.array_equal(out.arrays[1], wanted)
        opcode = "cp.async.cg.shared.global"
        assert out.count("requests", opcode) == 1
        assert out.count("sectors", opcode) == 10
        assert out.count("data_bytes", opcode) == 10 * 16 + 10 * 4

    @pytest.mark.parametrize("negated", [False, True])
    def test_an_ignored_source_is_not_read(self, executor: Executor, negated: bool) -> None:
        """Lanes 0-10 read 16 bytes; the others ignore their source, an invalid address."""
        body = f"""
            mov.u32 %r9, tile;
            mad.lo.u32 %r2, %tid, 16, %r9;
            mul.wide.u32 %rd3, %tid, 16;
            add.s64 %rd3, %rd3, %rd0;
            setp.{"lt" if negated else "ge"}.u32 %p1, %tid, 11;
            setp.lt.u32 %p2, %tid, 11;
            selp.b64 %rd3, %rd3, 3, %p2;
            st.shared.v4.u32 [%r2], {{%tid, %tid, %tid, %tid}};
            cp.async.cg.shared.global [%r2], [%rd3], 16, {"!" if negated else ""}%p1;
            cp.async.wait_all;
            ld.shared.v4.u32 {{%r4, %r5, %r6, %r7}}, [%r2];
            mul.wide.u32 %rd4, %tid, 16;
            add.s64 %rd4, %rd4, %rd1;
            st.global.v4.u32 [%rd4], {{%r4, %r5, %r6, %r7}};
        """
        text = kernel_ptx(body, pointers=2, declarations=".shared .align 16 .b8 tile[512];")
        data = np.arange(1, 129, dtype=np.uint32).reshape(32, 4)
        out = launch(executor, text, data, np.ones_like(data))
        assert np.array_equal(out.arrays[1], np.where((LANES < 11)[:, None], data, 0))
        opcode = "cp.async.cg.shared.global"
        assert out.count("requests", opcode) == 1
        assert out.count("sectors", opcode) == 6
        assert out.count("data_bytes", opcode) == 11 * 16

    @pytest.mark.parametrize("limit", [0, 1])
    def test_a_source_ignored_by_all_lanes_or_none(self, executor: Executor, limit: int) -> None:
        body = f"""
            mov.u32 %r9, tile;
            ld.global.u32 %r3, [%rd0];
            setp.lt.u32 %p1, %r3, {limit};
            cp.async.ca.shared.global [%r9], [%rd0], 4, %p1;
            cp.async.wait_all;
            ld.shared.u32 %r4, [%r9];
            st.global.u32 [%rd1], %r4;
        """
        text = kernel_ptx(body, pointers=2, declarations=".shared .align 16 .b8 tile[16];")
        out = launch(executor, text, np.zeros(1, np.uint32), np.ones(1, np.uint32))
        assert out.arrays[1].tolist() == [0]
        opcode = "cp.async.ca.shared.global"
        assert out.count("requests", opcode) == 1 - limit
        assert out.count("data_bytes", opcode) == (1 - limit) * 32 * 4

    def test_nothing_to_read_is_no_request(self, executor: Executor) -> None:
        body = """
            mov.u32 %r9, tile;
            mov.u32 %r3, 0;
            cp.async.ca.shared.global [%r9], [%rd0], 4, %r3;
            cp.async.wait_all;
        """
        text = kernel_ptx(body, declarations=".shared .align 16 .b8 tile[16];")
        out = launch(executor, text, INPUT)
        assert out.count("executed", "cp.async.ca.shared.global") == 1
        assert out.count("requests", "cp.async.ca.shared.global") == 0


class TestAddresses:
    def test_generic_addresses_reach_every_space(self, executor: Executor) -> None:
        body = """
            mov.u64 %rd4, cell;
            cvta.shared.u64 %rd4, %rd4;
            mov.u64 %rd5, own;
            cvta.local.u64 %rd5, %rd5;
            add.u32 %r1, %tid, 5;
            st.u32 [%rd5+4], %r1;
            ld.local.u32 %r2, [own+4];
            st.u32 [%rd4], %r2;
            ld.shared.u32 %r3, [cell];
            ld.u32 %r4, [%at];
            isspacep.shared %p1, %rd4;
            isspacep.local %p2, %rd5;
            isspacep.global %p3, %at;
            isspacep.shared %p4, %at;
            selp.u32 %r5, 1000, 0, %p1;
            selp.u32 %r6, 2000, 0, %p2;
            selp.u32 %r7, 4000, 0, %p3;
            selp.u32 %r8, 8000, 0, %p4;
            add.u32 %r5, %r5, %r6;
            add.u32 %r5, %r5, %r7;
            add.u32 %r5, %r5, %r8;
            add.u32 %r5, %r5, %r2;
            add.u32 %r5, %r5, %r3;
            add.u32 %r5, %r5, %r4;
            st.u32 [%at], %r5;
        """
        declarations = ".shared .align 4 .u32 cell; .local .align 8 .b8 own[16];"
        out = launch(executor, kernel_ptx(body, declarations=declarations), INPUT)
        assert np.array_equal(out.arrays[0], INPUT + LANES + 5 + 36 + 7000)

    def test_local_memory_is_private_and_counted_interleaved(self, executor: Executor) -> None:
        body = """
            mov.u64 %rd3, own;
            and.b32 %r2, %tid, 3;
            mul.wide.u32 %rd4, %r2, 4;
            add.s64 %rd4, %rd4, %rd3;
            st.local.u32 [own], %tid;
            st.local.u32 [own+4], %tid;
            st.local.u32 [own+8], %tid;
            st.local.u32 [own+12], %tid;
            ld.local.u32 %r1, [%rd4];
            st.global.u32 [%at], %r1;
        """
        text = kernel_ptx(body, declarations=".local .align 16 .b8 own[16];")
        out = launch(executor, text, INPUT)
        assert np.array_equal(out.arrays[0], LANES)
        assert out.count("requests", "st.local.u32") == 4
        assert out.count("sectors", "st.local.u32") == 16
        assert out.count("sectors", "ld.local.u32") == 16

    @pytest.mark.parametrize(("stride", "sectors"), [(0, 1), (1, 4), (2, 8), (8, 32), (32, 32)])
    def test_global_sectors(self, executor: Executor, stride: int, sectors: int) -> None:
        body = f"""
            mul.wide.u32 %rd3, %tid, {4 * stride};
            add.s64 %rd3, %rd3, %rd0;
            ld.global.f32 %f1, [%rd3];
        """
        out = launch(executor, kernel_ptx(body), np.zeros(1024, np.float32))
        assert out.metrics["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] == sectors
        assert out.metrics["ptx__data_bytes_mem_global_op_ld.sum"] == 128

    @pytest.mark.parametrize(
        ("stride", "wavefronts"), [(0, 1), (4, 1), (8, 2), (128, 32), (132, 1)]
    )
    def test_shared_wavefronts(self, executor: Executor, stride: int, wavefronts: int) -> None:
        body = f"""
            mov.u32 %r2, tile;
            mad.lo.u32 %r2, %tid, {stride}, %r2;
            st.shared.u32 [%r2], %tid;
            ld.shared.u32 %r3, [%r2];
        """
        text = kernel_ptx(body, declarations=".shared .align 4 .b8 tile[8192];")
        metrics = launch(executor, text, INPUT).metrics
        for op in ("ld", "st"):
            unit = f"mem_shared_op_{op}.sum"
            assert metrics[f"l1tex__data_pipe_lsu_wavefronts_{unit}"] == wavefronts
            conflicts = metrics[f"l1tex__data_bank_conflicts_pipe_lsu_{unit}"]
            assert conflicts == wavefronts - 1


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_all_numbers_of_8_bits_in_16(executor: Executor, kind: str) -> None:
    """Two neighbors of all 256 in each thread."""
    body = f"""
        ld.global.u32 %r1, [%at];
        cvt.u16.u32 %h1, %r1;
        cvt.rn.f16x2.{kind}x2 %r1, %h1;
        st.global.u32 [%at], %r1;
    """
    given = np.arange(256, dtype=np.uint32) * 0x101 + 1 & 0xFFFF
    form = form_of(f"cvt.rn.f16x2.{kind}x2")
    assert form is not None
    (wanted,) = evaluate(form, (given.astype(np.uint16),))
    got = launch(executor, kernel_ptx(body), given, block=(256, 1, 1)).arrays[0]
    assert np.array_equal(got, wanted)


@pytest.mark.parametrize("kind", ["u32", "s32"])
@pytest.mark.parametrize("modifier", ["", ".shiftamt"])
def test_the_highest_bit(executor: Executor, kind: str, modifier: str) -> None:
    one = np.uint32(1) << LANES
    given = np.concatenate([one, ~one, one - np.uint32(1), -one.view(np.int32).view(np.uint32)])
    body = f"ld.global.u32 %r1, [%at]; bfind{modifier}.{kind} %r1, %r1; st.global.u32 [%at], %r1;"
    got = launch(executor, kernel_ptx(body), given, block=(len(given), 1, 1)).arrays[0]
    values = [int(word) for word in (given.view(np.int32) if kind == "s32" else given)]
    places = [(~each if each < 0 else each).bit_length() - 1 for each in values]
    if modifier:
        places = [31 - place if place >= 0 else place for place in places]
    assert got.view(np.int32).tolist() == places
