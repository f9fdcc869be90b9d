"""Values out of JSON, MessagePack and builtins, by several threads at once as well."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from gemmkit.decoding import from_builtins, from_json, from_msgpack
from gemmkit.record import Record


class Inner(msgspec.Struct, frozen=True):
    number: int


class Outer(msgspec.Struct, frozen=True):
    inner: Inner


def test_values_come_back() -> None:
    value = Outer(Inner(3))
    assert from_json(msgspec.json.encode(value), Outer) == value
    assert from_msgpack(msgspec.msgpack.encode(value), Outer) == value
    assert from_builtins(msgspec.to_builtins(value), Outer) == value
    for wrong in (b"{}", b"{"):
        with pytest.raises(msgspec.DecodeError):
            from_json(wrong, Outer)
    with pytest.raises(msgspec.DecodeError):
        from_msgpack(b"\x80", Outer)
    with pytest.raises(msgspec.ValidationError):
        from_builtins({"inner": 1}, Outer)


# Types that contain the same third one, seen for the first time by several threads.
THREADS = """
import sys, threading
import msgspec
from gemmkit.decoding import from_builtins, from_json

sys.setswitchinterval(1e-6)
fields = [(f"field{number}", int | str | None, None) for number in range(60)]
for _ in range(100):
    inner = msgspec.defstruct("Inner", fields)
    kinds = [msgspec.defstruct("Outer", [("inner", tuple[inner, ...])]) for _ in range(2)]
    ready = threading.Barrier(4)

    def decode(number):
        ready.wait()
        if number < 2:
            from_json('{"inner": [{"field1": 1}]}', kinds[number % 2])
        else:
            from_builtins({"inner": [{"field1": 1}]}, kinds[number % 2])

    threads = [threading.Thread(target=decode, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_may_decode_a_type_for_the_first_time_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_records_from_before_precisions_are_of_ieee(make_record):
    record = make_record()
    text = record.to_json()
    assert '"precision":"ieee"' in text
    assert Record.from_json(text.replace(',"precision":"ieee"', "")) == record
    lower = msgspec.structs.replace(record.problem, precision="tf32")
    again = Record.from_json(msgspec.structs.replace(record, problem=lower).to_json())
    assert again.problem.types == "fp32 (precision tf32)"
