"""initcheck: values that were never set and are printed; correct printing has no finding."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizing import run

ARRAYS = {"out": np.zeros(64, np.float32), "count": np.int32(1)}
HOW = {"block": (32, 1, 1)}

USES = {
    "variable": 'float x; if (count > 1) x = out[1]; printf("%f\\n", x);',
    "second of two": 'int x; if (count > 1) x = out[1]; printf("%d %d\\n", count, x);',
    "64 bits": 'long long x; if (count > 1) x = (long long)out[1]; printf("%lld %d\\n", x, 3);',
    "width": "int a[4]; for (int i = 0; i < count; ++i) a[i] = i; "
    'printf("%*d\\n", a[count + 1] & 15, 3);',
    "element": 'int a[4]; for (int i = 0; i < count; ++i) a[i] = i; printf("%d\\n", a[count + 1]);',
}


@pytest.mark.parametrize("name", USES)
def test_printing_is_a_use(name: str) -> None:
    found = run(f"k(float* out, int count) {{ {USES[name]} }}", ARRAYS, **HOW).only
    assert (found.check, found.kind) == ("initcheck", "uninitialized")
    assert "is printed" in found.message
    assert found.count == 32
    line = found.other or found.here
    assert line.line == 1


def test_memory_that_nothing_has_written() -> None:
    source = """k(float* out, int count) {
        float x = out[threadIdx.x];
        printf("%f\\n", x);
    }"""
    found = run(source, ARRAYS, **HOW, unwritten=("out",)).only
    assert "reads byte 0 of 'out'" in found.message
    assert "the value is printed by thread (0, 0, 0)" in found.message
    assert (found.here.line, found.other.line) == (2, 3)
    assert not run(source, ARRAYS, **HOW).findings


def test_shared_memory_is_found_where_it_is_printed() -> None:
    source = """k(float* out, int count) {
        __shared__ float s[32];
        if (threadIdx.x < 16) s[threadIdx.x] = 1;
        __syncthreads();
        printf("%f\\n", s[threadIdx.x]);
    }"""
    found = run(source, ARRAYS, **HOW).only
    assert found.array == "s"
    assert found.count == 16


@pytest.mark.parametrize(
    "body",
    [
        # The padding between an int and a double is not read, nor are arguments that the format
        # does not name.
        'printf("%d %f %d\\n", count, 2.0, 3);',
        'float x; if (count > 1) x = out[1]; printf("%d\\n", count, x);',
        'int x; if (count > 1) x = out[1]; if (count > 1) printf("%d\\n", x);',
        'int x; if (count > 1) x = out[1]; printf("%d\\n", x & 0);',
        'printf("%s %c %p\\n", "text", 65 + count, out);',
        'int a[4]; for (int i = 0; i < 4; ++i) a[i] = i; printf("%d\\n", a[count & 3]);',
        'unsigned char c = count; short s = 7; printf("%hhd %hd %5.2f\\n", c, s, out[0]);',
        'printf("no argument 100%%\\n");',
    ],
)
def test_sound_printing(body: str) -> None:
    outcome = run(f"k(float* out, int count) {{ {body} }}", ARRAYS, **HOW)
    assert not outcome.findings
    assert len(outcome.execution.printed) in (0, 32)
