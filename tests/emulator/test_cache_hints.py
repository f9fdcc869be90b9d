"""Cache policies, priorities and prefetches: accepted, without effect on results and accesses."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from launching import ENGINE, Executor, Outcome, kernel_ptx, launch

from gemmkit.errors import UnsupportedInstruction

HINT = ".L2::cache_hint"
POLICIES = (
    "createpolicy.fractional.L2::evict_first.b64 %policy;",
    "createpolicy.fractional.L2::evict_last.b64 %policy, 1.0;",
    "createpolicy.fractional.L2::evict_normal.L2::evict_first.b64 %policy, 0.25;",
    "createpolicy.fractional.L2::evict_unchanged.L2::evict_unchanged.b64 %policy, %f9;",
    "createpolicy.range.L2::evict_last.L2::evict_first.b64 %policy, [%rd0], 4096, 8192;",
    "createpolicy.range.global.L2::evict_first.b64 %policy, [%rd0], %r9, %r9;",
    "createpolicy.cvt.L2.b64 %policy, %rd0;",
)
# Far from any allocation, and in the middle of a word.
BESIDES = (
    "prefetch.global.L1 [%at];",
    "prefetch.global.L2 [%rd0+-8192];",
    "prefetch.global.L2 [1];",
    "prefetch.global.L2::evict_last [%rd0+4095];",
    "prefetch.global.L2::evict_normal [%rd0+1048576];",
    "@%p1 prefetch.L2 [%rd0];",
    "prefetch.local.L1 [%rd0];",
    "prefetchu.L1 [%rd0+123456789];",
    "applypriority.global.L2::evict_normal [%rd0], 128;",
    "applypriority.L2::evict_normal [%rd1], 128;",
)
L1 = ("", ".L1::evict_normal", ".L1::evict_unchanged", ".L1::evict_first", ".L1::evict_last")
L1 += (".L1::no_allocate",)
AHEAD = ("", ".L2::64B", ".L2::128B", ".L2::256B")

# Two words per lane at %mine, in shared memory at %own; values in %f1 to %f4 and %r1.
Writer = Callable[[random.Random, bool], str]


def access(opcode: str, kind: str, operands: str, *, sized: bool = False) -> Writer:
    """Formats an access in its plain form or with hints: the opcode is `opcode` + `kind`."""

    def text(rng: random.Random, hinted: bool) -> str:
        if not hinted:
            return f"{opcode}{kind} {operands};"
        policy = rng.random() < 0.7
        words = rng.choice(L1) if opcode.startswith(("ld", "st")) else ""
        words += HINT if policy else ""
        words += rng.choice(AHEAD) if sized else ""
        return f"{opcode}{words}{kind} {operands}{', %policy' if policy else ''};"

    return text


ACCESSES = (
    access("ld.global", ".f32", "%f1, [%mine]", sized=True),
    access("ld", ".v2.f32", "{%f2, %f3}, [%mine]", sized=True),
    access("ld.global.nc", ".v4.u32", "{%r1, %r2, _, %r3}, [%rd1+16]", sized=True),
    access("@!%p1 ld.relaxed.gpu.global", ".u32", "%r1, [%mine]"),
    access("st.global", ".f32", "[%mine+4], %f1"),
    access("@%p1 st.global", ".v2.b32", "[%mine], {%r1, %r2}"),
    access("red.global.add", ".f32", "[%mine], %f2"),
    access("red.gpu.global.min", ".u32", "[%mine+4], %r1"),
    access("atom.global.add", ".u32", "%r3, [%mine], %r2"),
    access("atom.exch", ".b32", "%r1, [%mine+4], %r3"),
    access("cp.async.cg.shared.global", "", "[%own], [%rd1], 16", sized=True),
    access("cp.async.ca.shared.global", "", "[%own], [%rd1+8], 8, %r8", sized=True),
    access("@%p1 cp.async.cg.shared::cta.global", "", "[%own], [%rd1], 16, %r8", sized=True),
)


def body(seed: int, hinted: bool) -> str:
    """A program of 24 accesses in random order; with hints there are other lines between them."""
    choices, hints = random.Random(seed), random.Random(seed + 1)
    lines = [
        "mul.wide.u32 %mine, %tid, 8; add.s64 %mine, %mine, %rd0;",
        "shl.b32 %own, %tid, 4; add.u32 %own, %own, room;",
        "and.b32 %r8, %tid, 1; setp.eq.u32 %p1, %r8, 0; and.b32 %r8, %tid, 8;",
        "mov.u32 %r9, 8192; mov.f32 %f9, 0.5;",
        "ld.global.v2.u32 {%r1, %r2}, [%mine]; mov.u32 %r3, %tid;",
        "mov.b32 %f1, %r1; mov.b32 %f2, %r2; mov.f32 %f3, 0.0;",
        "st.shared.v4.f32 [%own], {%f1, %f2, %f3, %f1};",
    ]
    for number in range(24):
        if hinted and number % 8 == 0:
            lines.append(hints.choice(POLICIES))
        if hinted:
            lines.append(hints.choice(BESIDES))
        lines.append(choices.choice(ACCESSES)(hints, hinted))
    lines += [
        "cp.async.wait_all;",
        "ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%own];",
        "xor.b32 %r1, %r1, %r4; xor.b32 %r2, %r2, %r5; xor.b32 %r3, %r3, %r6;",
        "red.global.add.u32 [%mine], %r1; red.global.add.u32 [%mine+4], %r2;",
        "mov.b32 %r5, %f3; xor.b32 %r3, %r3, %r5; red.global.xor.b32 [%mine], %r3;",
    ]
    return "\n".join(lines)


def outcome(executor: Executor, seed: int, hinted: bool) -> Outcome:
    declarations = ".reg .b64 %policy, %mine; .reg .b32 %own; .shared .align 16 .b8 room[512];"
    text = kernel_ptx(body(seed, hinted), pointers=2, declarations=declarations)
    rng = np.random.default_rng(seed)
    given = [rng.standard_normal(words).astype(np.float32) for words in (64, 16)]
    return launch(executor, text, *given)


def accesses(run: Outcome) -> dict[str, float]:
    """All metrics of accesses, and the number of instructions that made them."""
    made = tuple(f"ptx__inst_executed_op_{each}.sum" for each in ("load", "store", "atomic"))
    return {
        name: value
        for name, value in run.metrics.items()
        if name in made or not name.startswith(("ptx__inst", "ptx__thread"))
    }


@pytest.mark.parametrize("seed", range(6))
def test_hints_change_neither_results_nor_accesses(executor: Executor, seed: int) -> None:
    plain, hinted = (outcome(executor, seed, hints) for hints in (False, True))
    assert hinted.arrays[0].tobytes() == plain.arrays[0].tobytes()
    assert accesses(hinted) == accesses(plain)
    assert hinted.metrics["ptx__inst_executed_op_cache.sum"] > 0


def test_a_prefetch_is_no_load(executor: Executor) -> None:
    lines = "\n".join(("prefetch.global.L1 [%at];", "prefetch.global.L2 [%at];"))
    metrics = launch(executor, kernel_ptx(lines), np.zeros(32, np.float32)).metrics
    counted = {name for name, value in metrics.items() if value and "ld" in name.split("_")[-1]}
    assert not counted
    assert metrics["l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"] == 0
    assert metrics["ptx__inst_executed_op_cache.sum"] == 2


@pytest.mark.parametrize("policy", POLICIES)
def test_every_kind_of_policy(executor: Executor, policy: str) -> None:
    lines = f"""mov.u32 %r9, 8192; mov.f32 %f9, 0.5;
        {policy}
        ld.global{HINT}.f32 %f1, [%at], %policy;
        add.f32 %f1, %f1, %f1;
        st.global{HINT}.f32 [%at], %f1, %policy;"""
    given = np.arange(32, dtype=np.float32)
    text = kernel_ptx(lines, declarations=".reg .b64 %policy;")
    assert launch(executor, text, given).arrays[0].tolist() == (2 * given).tolist()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "discard.global.L2 [%rd0], 128;",
            "does not support 'discard.global.L2': it leaves memory",
        ),
        ("prefetch.global.L3 [%rd0];", "does not support 'prefetch.global.L3'"),
        ("prefetch.local.tensormap [%rd0];", "does not support 'prefetch.local.tensormap'"),
        (f"ld.shared{HINT}.f32 %f1, [%r1], %rd3;", f"does not support 'ld.shared{HINT}.f32'"),
        (
            f"atom.global.cas{HINT}.b32 %r1, [%rd0], %r2, %r3, %rd3;",
            "does not support 'atom.global.c",
        ),
        ("createpolicy.fractional.L2::evict_some.b64 %rd3;", "does not support 'createpolicy.frac"),
        (f"ld.global{HINT}.f32 %f1, [%rd0];", "does not take these operands"),
        (f"ld.global{HINT}.f32 %f1, [%rd0], %r3;", "does not take these operands"),
        ("ld.global.f32 %f1, [%rd0], %rd3;", "does not take these operands"),
        (
            f"cp.async.cg.shared.global{HINT} [%r1], [%rd0], 16, %r2;",
            "does not take these operands",
        ),
        ("cp.async.cg.shared.global [%r1], [%rd0], 16, %rd3;", "does not take these operands"),
        ("applypriority.global.L2::evict_normal [%rd0], 64;", "does not take these operands"),
    ],
)
def test_refusals_are_one_sentence(line: str, message: str) -> None:
    with pytest.raises(UnsupportedInstruction) as caught:
        launch(ENGINE, kernel_ptx(line), np.zeros(32, np.float32))
    assert message in str(caught.value)
    assert "kernel.cu:1" in str(caught.value)
    assert "\n" not in str(caught.value)
