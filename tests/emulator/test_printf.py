"""printf against the C library's own."""

from __future__ import annotations

import ctypes
import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmkit.emulator.printf import format_printf


def no_strings(address: int) -> str:
    raise AssertionError(f"a string was read at {address:#x}")


def c_printf(template: str, *arguments: int | float) -> str:
    text = ctypes.create_string_buffer(1024)
    passed = [
        ctypes.c_double(each) if isinstance(each, float) else ctypes.c_longlong(each)
        for each in arguments
    ]
    ctypes.CDLL(None).snprintf(text, 1024, template.encode(), *passed)
    return text.value.decode()


needs_c_library = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="compares with glibc"
)
FLAGS = st.sets(st.sampled_from("-+ #0")).map("".join)
WIDTHS = st.sampled_from(["", "1", "7", "12"])
PRECISIONS = st.sampled_from(["", ".", ".0", ".3", ".9"])


@needs_c_library
@pytest.mark.filterwarnings("ignore")
@given(FLAGS, WIDTHS, PRECISIONS, st.sampled_from("dioxXu"), st.integers(-(2**31), 2**31 - 1))
def test_integers(flags: str, width: str, precision: str, kind: str, value: int) -> None:
    template = f"<%{flags}{width}{precision}{kind}>"
    got = format_printf(template, struct.pack("<i", value), no_strings)
    assert got == c_printf(template, value)


@needs_c_library
@given(FLAGS, WIDTHS, PRECISIONS, st.sampled_from("feEgG"), st.floats(-1e9, 1e9))
def test_floats(flags: str, width: str, precision: str, kind: str, value: float) -> None:
    if kind in "gG":  # glibc drops digits of %#.9g where rounding adds one before the point
        flags = flags.replace("#", "")
    template = f"<%{flags}{width}{precision}{kind}>"
    got = format_printf(template, struct.pack("<d", value), no_strings)
    assert got == c_printf(template, value)


def test_arguments_are_aligned_to_their_sizes() -> None:
    buffer = struct.pack("<i4xdc3xiqQ", -3, 2.5, b"x", 7, -1, 0x7F00)
    text = format_printf("%d %.2f %c %*lld %p", buffer, no_strings)
    assert text == "-3 2.50 x      -1 0x7f00"


def test_strings_are_looked_up() -> None:
    strings = {64: "row", 128: "column"}
    buffer = struct.pack("<QQ", 64, 128)
    assert format_printf("%5s|%-8.3s|%%", buffer, strings.__getitem__) == "  row|col     |%"


def test_what_is_no_conversion_stays_and_missing_arguments_are_zero() -> None:
    assert format_printf("100%! %y %d", b"", no_strings) == "100%! %y 0"


@pytest.mark.parametrize(
    ("template", "wanted"),
    [("%hhd", "-1"), ("%hu", "65535"), ("%u", "4294967295"), ("%x", "f" * 8)],
)
def test_short_and_unsigned(template: str, wanted: str) -> None:
    assert format_printf(template, struct.pack("<i", -1), no_strings) == wanted
