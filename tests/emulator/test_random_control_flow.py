"""Random graphs of branches: engine and oracle diverge and reconverge the same lanes."""

from __future__ import annotations

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from launching import ENGINE, ORACLE, kernel_ptx, launch

STEPS = 40


@st.composite
def graphs(draw: st.DrawFn) -> str:
    """Blocks that mix a lane's state and branch on its bits, anywhere; a lane ends after STEPS."""
    count = draw(st.integers(2, 8))
    targets = [f"B{n}" for n in range(count)] + ["END"]
    lines = []
    for number in range(count):
        lines += [
            f"B{number}:",
            f"mad.lo.u32 %r1, %r1, 1664525, {1013904223 + number};",
            "add.u32 %r2, %r2, 1;",
            f"setp.ge.u32 %p1, %r2, {STEPS};",
            "@%p1 bra END;",
        ]
        for _ in range(draw(st.integers(0, 2))):
            bit = draw(st.integers(20, 31))
            lines += [
                f"shr.u32 %r3, %r1, {bit};",
                "and.b32 %r3, %r3, 1;",
                "setp.ne.u32 %p2, %r3, 0;",
            ]
            sign = draw(st.sampled_from(["", "!"]))
            what = draw(st.sampled_from(["bra", "bra", "bra", "xor", "exit"]))
            if what == "bra":
                lines.append(f"@{sign}%p2 bra {draw(st.sampled_from(targets))};")
            elif what == "xor":
                lines.append(f"@{sign}%p2 xor.b32 %r1, %r1, 0x55555555;")
            else:
                lines += [f"@{sign}%p2 st.global.u32 [%at], %r1;", f"@{sign}%p2 exit;"]
        if draw(st.integers(0, 2)) == 0:
            lines.append(f"bra {draw(st.sampled_from(targets))};")
    return "\n".join(lines)


@settings(max_examples=40, phases=[Phase.explicit, Phase.generate])
@given(graphs(), st.integers(0, 2**32 - 1), st.sampled_from([32, 50, 64]))
def test_engine_and_oracle_agree(body: str, seed: int, threads: int) -> None:
    text = kernel_ptx(f"""
        ld.global.u32 %r1, [%at];
        mov.u32 %r2, 0;
        {body}
        END:
        xor.b32 %r1, %r1, %r2;
        st.global.u32 [%at], %r1;
    """)
    # Few different states, so that lanes stay together for a while.
    states = np.random.default_rng(seed).integers(0, 5, 64).astype(np.uint32) * np.uint32(seed | 1)
    engine, oracle = (launch(each, text, states, block=threads) for each in (ENGINE, ORACLE))
    assert np.array_equal(engine.arrays[0], oracle.arrays[0])
    assert engine.tally.differences(oracle.tally) == {}
