"""What a fork and the end of a process wait for, and imports that nothing disturbs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path

import pytest

import gemmkit
from gemmkit import loading
from gemmkit.native_calls import NativeCalls


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> NativeCalls:
    """Calls that no real fork waits for."""
    monkeypatch.setattr("os.register_at_fork", lambda **_: None)
    monkeypatch.setattr("atexit.register", lambda *_: None)
    return NativeCalls()


def started(work: threading.Thread) -> threading.Thread:
    work.start()
    return work


def test_a_fork_waits_for_the_calls_of_others_and_holds_new_ones_back(calls: NativeCalls) -> None:
    order: list[str] = []
    begun, end = threading.Event(), threading.Event()

    def call() -> None:
        with calls.running(), calls.running():
            begun.set()
            end.wait(30)
            order.append("first call")

    def later() -> None:
        with calls.running():
            order.append("second call")

    threads = [started(threading.Thread(target=call))]
    assert begun.wait(30)
    threading.Timer(0.05, end.set).start()
    # One's own call goes on behind a fork, in a handler for instance.
    with calls.running():
        calls._stop()
        threads.append(started(threading.Thread(target=later)))
        order.append("fork")
        threads[1].join(0.05)
        calls._changed.release()
    for thread in threads:
        thread.join(30)
    assert order == ["first call", "fork", "second call"]


def test_the_end_of_a_process_does_not_wait_for_ever(calls: NativeCalls) -> None:
    begun, end = threading.Event(), threading.Event()

    def call() -> None:
        with calls.running():
            begun.set()
            end.wait(30)

    thread = started(threading.Thread(target=call))
    assert begun.wait(30)
    calls._stop(0.02)
    calls._changed.release()
    end.set()
    thread.join(30)


def test_a_child_forgets_the_calls_of_its_parent(calls: NativeCalls) -> None:
    with calls.running():
        calls._depths[-1] = 1
        calls._changed.acquire()
        calls._begin_child()
        calls._stop()
        calls._changed.release()
    assert not calls._depths


def test_modules_are_imported_by_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    importers: list[threading.Thread] = []
    monkeypatch.setattr(
        loading, "import_module", lambda _: importers.append(threading.current_thread())
    )
    loading.load("gemmkit.no_such_module")
    assert importers
    assert threading.main_thread() not in importers


def test_failures_of_an_import_come_to_the_caller() -> None:
    with pytest.raises(ImportError, match="no_such_module"):
        loading.load("gemmkit.no_such_module")


def test_without_threads_the_caller_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ImportError, match="no_such_module"):
        loading.load("gemmkit.no_such_module")


def package(folder: Path, name: str) -> None:
    """A package and a module that import each other, the package later."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(
        f"import time; time.sleep(0.2); from {name}.part import READY"
    )
    (folder / name / "part.py").write_text(f"import {name}; READY = True")


def test_threads_import_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the package and its module, each thread would hold one's lock and wait for the other's."""
    package(tmp_path, "gemmkit_test_package")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ["gemmkit_test_package", "gemmkit_test_package.part"]
    failures: list[ImportError | RuntimeError] = []

    def work(name: str) -> None:
        try:
            loading.load(name)
        except (ImportError, RuntimeError) as failure:
            failures.append(failure)

    threads = [started(threading.Thread(target=work, args=(name,))) for name in names]
    for thread in threads:
        thread.join(30)
    assert not failures
    assert sys.modules[names[1]].READY
    for name in names:
        del sys.modules[name]


def test_a_module_that_others_import_does_not_wait_for_them_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is half imported when it loads another, and the thread that imports waits for it."""
    (tmp_path / "gemmkit_test_module.py").write_text(
        "import time; time.sleep(0.2); from gemmkit import loading; loading.load('gemmkit.units')"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(loading, "_PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(loading, "_is_loaded", lambda _: False)
    threads = [
        started(threading.Thread(target=work, args=("gemmkit_test_module",), daemon=True))
        for work in (import_module, loading.load)
    ]
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    del sys.modules["gemmkit_test_module"]


def test_a_warning_category_on_pythons_command_line():
    """`python -W` imports gemmkit while `warnings` is being imported."""
    script = "import warnings; print(warnings.filters[0][2].__name__)"
    command = [sys.executable, "-W", "ignore::gemmkit.EmulationWarning", "-c", script]
    # Of what is installed nothing can be imported as early as that.
    environment = {**os.environ, "PYTHONPATH": str(Path(gemmkit.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert (done.stdout.strip(), done.stderr) == ("EmulationWarning", "")


def test_a_module_that_gemmkit_imports_may_use_it_while_it_is_imported(tmp_path):
    """The main thread holds the module's lock, for which another thread would wait for ever."""
    (tmp_path / "platformdirs.py").write_text(
        "import gemmkit\ngemmkit.matmul\nfrom gemmkit.loading import load\nload('platformdirs')\n"
    )
    script = "import platformdirs; print('imported')"
    found = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=found
    )
    assert (done.stdout.strip(), done.stderr) == ("imported", "")
