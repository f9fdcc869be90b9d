"""The byte cache under damage, pressure, rivals and a folder that cannot be written."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmkit.diskcache import DiskCache, default_cache_directory


def only_entry(cache: DiskCache) -> Path:
    (path,) = cache.directory.glob("*.entry")
    return path


def run_python(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@settings(max_examples=30)
@given(entries=st.dictionaries(st.text(), st.binary(), max_size=8))
def test_returns_what_was_put(entries: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache = DiskCache(Path(folder))
        for key, value in entries.items():
            assert cache.get(key) is None
            cache.put(key, value)
        assert {key: cache.get(key) for key in entries} == entries
        assert len(cache) == len(entries)


def test_put_replaces(cache_dir: Path) -> None:
    cache = DiskCache(cache_dir)
    cache.put("key", b"first")
    cache.put("key", b"second")
    assert cache.get("key") == b"second"
    assert len(cache) == 1


VALUE = b"the value of this entry"


@given(data=st.data())
def test_any_damage_is_a_miss_and_is_repaired(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache = DiskCache(Path(folder))
        cache.put("key", VALUE)
        path = only_entry(cache)
        whole = path.read_bytes()
        kind = data.draw(st.sampled_from(["flip", "cut", "append"]))
        if kind == "flip":
            place = data.draw(st.integers(0, len(whole) - 1))
            change = data.draw(st.integers(1, 255))
            damaged = bytearray(whole)
            damaged[place] ^= change
        elif kind == "cut":
            damaged = bytearray(whole[: data.draw(st.integers(0, len(whole) - 1))])
        else:
            damaged = bytearray(whole + data.draw(st.binary(min_size=1, max_size=40)))
        path.write_bytes(damaged)

        assert cache.get("key") is None
        assert cache.get_or_create("key", lambda: VALUE) == VALUE
        assert path.read_bytes() == whole


def test_an_entry_under_another_name_is_a_miss(cache_dir: Path) -> None:
    cache = DiskCache(cache_dir)
    cache.put("mine", VALUE)
    mine = only_entry(cache)
    cache.put("yours", b"other")
    (yours,) = set(cache_dir.glob("*.entry")) - {mine}
    mine.replace(yours)
    assert cache.get("yours") is None


def test_drops_the_least_recently_used(cache_dir: Path) -> None:
    cache = DiskCache(cache_dir)
    cache.put("a", bytes(1000))
    cache = DiskCache(cache_dir, limit_bytes=3 * cache.size())
    for key in "bc":
        cache.put(key, bytes(1000))
    assert cache.get("a") is not None
    cache.put("d", bytes(1000))
    assert [key for key in "abcd" if cache.get(key) is None] == ["b"]


@given(sizes=st.lists(st.integers(0, 700), max_size=12), limit=st.integers(0, 1500))
def test_never_grows_beyond_its_limit(sizes: list[int], limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache = DiskCache(Path(folder), limit)
        for number, size in enumerate(sizes):
            before = len(cache)
            cache.put(str(number), bytes(size))
            assert cache.size() <= limit
            stored = cache.get(str(number))
            assert stored == bytes(size) or (stored is None and len(cache) == before)


def test_the_folder_is_looked_through_a_few_times_only(cache_dir: Path, monkeypatch) -> None:
    looks = []
    scan = DiskCache._scan
    monkeypatch.setattr(DiskCache, "_scan", lambda cache: (looks.append(1), scan(cache))[1])
    for number in range(100):
        # Each compilation has a cache object of its own.
        DiskCache(cache_dir, limit_bytes=200_000).put(str(number), bytes(1000))
    assert len(looks) < 10


def test_clear_leaves_the_files_of_others(cache_dir: Path) -> None:
    cache = DiskCache(cache_dir, limit_bytes=100)
    cache_dir.mkdir()
    (cache_dir / "notes.txt").write_bytes(bytes(1000))
    cache.put("key", VALUE)
    assert cache.get("key") == VALUE
    cache.clear()
    assert [path.name for path in cache_dir.iterdir()] == ["notes.txt"]


def test_sweeps_what_killed_processes_left(cache_dir: Path) -> None:
    cache_dir.mkdir()
    old, young = cache_dir / "old.partial", cache_dir / "young.partial"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    DiskCache(cache_dir).put("key", VALUE)
    assert not old.exists()
    assert young.exists()


def test_an_unwritable_folder_costs_one_warning_only(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "cache"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        cache = DiskCache(folder)
        DiskCache(tmp_path / "file" / "other").put("key", VALUE)
        assert cache.get_or_create("key", lambda: VALUE) == VALUE
        assert cache.get_or_create("key", lambda: b"again") == b"again"
        cache.put("key", VALUE)
        assert cache.get("key") is None
        assert (cache.size(), len(cache)) == (0, 0)
        cache.clear()
    (warning,) = caught
    assert str(folder.parent) in str(warning.message)
    assert "is not writable" in str(warning.message)


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX resource limits")
def test_a_full_disk_costs_one_warning_and_leaves_no_half_file(cache_dir: Path) -> None:
    script = """
import pathlib, resource, signal, sys
from gemmkit.diskcache import DiskCache
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
cache = DiskCache(pathlib.Path(sys.argv[1]))
cache.put("small", b"fits")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
print(len(cache.get_or_create("large", lambda: bytes(5000))))
"""
    child = run_python(script, str(cache_dir))
    output, errors = child.communicate()
    assert (child.returncode, output) == (0, "5000\n")
    assert errors.count("RuntimeWarning") == 1
    assert [path.suffix for path in cache_dir.iterdir()] == [".entry"]
    assert DiskCache(cache_dir).get("small") == b"fits"


def test_a_failure_passes_through_and_the_next_try_works(cache_dir: Path) -> None:
    cache = DiskCache(cache_dir)

    def fail() -> bytes:
        raise LookupError("no value")

    with pytest.raises(LookupError):
        cache.get_or_create("key", fail)
    assert list(cache_dir.iterdir()) == []
    assert cache.get_or_create("key", lambda: VALUE) == VALUE


def test_of_many_threads_one_makes_the_value(cache_dir: Path) -> None:
    cache = DiskCache(cache_dir)
    made = []
    start = threading.Barrier(8)

    def make() -> bytes:
        made.append(threading.get_ident())
        time.sleep(0.05)
        return VALUE

    def ask(_: int) -> bytes:
        start.wait()
        return cache.get_or_create("key", make)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == [VALUE] * 8
    assert len(made) == 1


def test_of_many_processes_one_makes_the_value(cache_dir: Path, tmp_path: Path) -> None:
    script = """
import os, pathlib, sys, time
from gemmkit.diskcache import DiskCache
def make():
    with open(sys.argv[2], "a") as made:
        made.write("made\\n")
    time.sleep(0.3)
    return b"value"
print("ready", flush=True)
sys.stdin.readline()
print(DiskCache(pathlib.Path(sys.argv[1])).get_or_create("key", make))
"""
    made = tmp_path / "made"
    children = [run_python(script, str(cache_dir), str(made)) for _ in range(4)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    answers = []
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    for child in children:
        output, errors = child.communicate()
        assert errors == ""
        answers.append(output)
    assert answers == ["b'value'\n"] * 4
    assert made.read_text() == "made\n"


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_a_process_killed_while_it_makes_does_not_block_the_next(cache_dir: Path) -> None:
    script = """
import pathlib, sys, time
from gemmkit.diskcache import DiskCache
def make():
    print("making", flush=True)
    time.sleep(60)
DiskCache(pathlib.Path(sys.argv[1])).get_or_create("key", make)
"""
    child = run_python(script, str(cache_dir))
    assert child.stdout is not None
    assert child.stdout.readline() == "making\n"
    child.kill()
    child.communicate()
    assert DiskCache(cache_dir).get_or_create("key", lambda: VALUE) == VALUE


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGINT"])
def test_a_process_stopped_at_any_moment_leaves_whole_entries(
    cache_dir: Path, signal_name: str
) -> None:
    script = """
import itertools, pathlib, signal, sys
from gemmkit.diskcache import DiskCache
# A shell's background jobs inherit that it is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
cache = DiskCache(pathlib.Path(sys.argv[1]))
print("ready", flush=True)
for number in itertools.count():
    cache.put(str(number % 5), bytes([number % 256]) * 1_000_000)
"""
    for _ in range(4):
        child = run_python(script, str(cache_dir))
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(random.uniform(0.01, 0.1))
        child.send_signal(getattr(signal, signal_name))
        child.communicate()
        assert child.returncode != 0
        cache = DiskCache(cache_dir)
        values = [cache.get(key) for key in "01234"]
        assert all(len(value) == 1_000_000 for value in values if value is not None)
        assert len([value for value in values if value is not None]) == len(cache)
        if signal_name == "SIGINT":
            assert list(cache_dir.glob("*.partial")) == []


class Interrupt:
    """A profile function that raises KeyboardInterrupt at the `point`-th of the points at which
    Python handles signals: a function begins or returns, or C code has returned."""

    def __init__(self, point: int) -> None:
        self.left = point

    def __call__(self, _frame: FrameType, event: str, _argument: object) -> None:
        self.left -= event != "c_call"
        if self.left == 0:
            sys.setprofile(None)
            raise KeyboardInterrupt


def is_interrupted(point: int, function: Callable[[], object]) -> bool:
    """Call a function; whether that was interrupted, which it is not if it has fewer points."""
    before = sys.getprofile()
    try:
        sys.setprofile(Interrupt(point))
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(before)
    return False


# A file whose opening is interrupted at its end is closed by the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_an_interrupt_at_any_point_leaves_no_lock_and_no_temporary_file(cache_dir: Path) -> None:
    cache, locks = DiskCache(cache_dir), list[Path]()

    def make() -> bytes:
        locks.extend(cache_dir.glob("*.lock"))
        return VALUE

    stored = Counter[bool]()
    for point in itertools.count(1):
        interrupted = is_interrupted(point, lambda: cache.get_or_create("key", lambda: VALUE))
        assert {path.suffix for path in cache_dir.glob("*")} <= {".entry"}, point
        stored[cache.get("key") == VALUE] += 1
        # The lock is neither held nor believed to be: it is taken again.
        cache.clear()
        locks.clear()
        assert cache.get_or_create("key", make) == VALUE
        assert len(locks) == 1, point
        cache.clear()
        if not interrupted:
            break
    # Points before the entry appears, and after.
    assert min(stored[False], stored[True]) > 20


@pytest.mark.skipif(sys.platform != "linux", reason="the folder of the XDG standard")
def test_the_default_folder_is_the_platform_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache_directory("binaries") == Path("/somewhere/gemmkit/binaries")


def test_a_signal_handler_may_ask_for_what_its_thread_is_making(cache_dir: Path) -> None:
    cache = DiskCache(cache_dir)

    def make() -> bytes:
        # As a handler would that runs in here: waiting for the lock would take two minutes.
        assert cache.get_or_create("key", lambda: b"the handler's") == b"the handler's"
        return b"mine"

    assert cache.get_or_create("key", make) == b"mine"
    assert cache.get("key") == b"mine"
