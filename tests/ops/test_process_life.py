"""Products in threads, forks, signal handlers and at the end of a process; each ends, and is right.

What needs a process of its own is done by few of them, each with several things at once.
"""

import os
import signal
import subprocess
import sys
import threading
from importlib.util import find_spec

import numpy as np
import pytest

import gemmkit
from emulated_gpu import GpuArray, install
from gemmkit.devices import choose, driver

WORDS = """
import atexit, os, signal, sys, threading, time
import numpy as np
import gemmkit

ONES = np.ones((48, 48), np.float32)

def product():
    assert (gemmkit.matmul(ONES, ONES, device="emulator") == 48).all()

def forever():
    while True:
        product()
"""

# The first product of the process is that of a thread which the main one does not outlive.
LAST = f"""{WORDS}
def last():
    threading.main_thread().join()
    product()
    print("thread", flush=True)
    for _ in range(2):
        threading.Thread(target=forever, daemon=True).start()

def at_exit():
    product()
    big = np.ones((400, 400), np.float32)
    assert (gemmkit.matmul(big, big, device="emulator") == 400).all()
    print("exit", flush=True)

atexit.register(at_exit)
threading.Thread(target=last).start()
"""

# A handler makes the first product, and others in the midst of products; then threads multiply
# while the process forks.
INTERRUPTED = f"""{WORDS}
inside = made = 0

def handler(*_):
    global inside, made
    if inside < 2:
        inside += 1
        product()
        inside -= 1
        made += 1

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
end = time.monotonic() + 0.4
while time.monotonic() < end or made < 5:
    product()
signal.setitimer(signal.ITIMER_REAL, 0)
print("signals", flush=True)
for _ in range(2):
    threading.Thread(target=forever, daemon=True).start()
for _ in range(3):
    time.sleep(0.02)
    child = os.fork()
    if not child:
        signal.alarm(60)
        product()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print("forks", flush=True)
"""

# Children are forked while threads import and compile.
EARLY = f"""{WORDS}
for _ in range(2):
    threading.Thread(target=forever, daemon=True).start()
children = []
for _ in range(4):
    time.sleep(0.05)
    children.append(os.fork())
    if not children[-1]:
        signal.alarm(60)
        product()
        os._exit(0)
for child in children:
    assert os.waitpid(child, 0)[1] == 0
print("fork", flush=True)
"""

posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGALRM")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (LAST, ["thread", "exit"]),
        pytest.param(INTERRUPTED, ["signals", "forks"], marks=posix),
        pytest.param(EARLY, ["fork"], marks=posix),
    ],
)
def test_a_process_ends_well(script, said):
    # Python 3.12 and later warn of forks beside threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script]
    # A forked process cannot use its parent's GPU.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, said, "")


# Python asks the first finder of a module for every module that is not imported yet.
IMPORTS = f"""{WORDS}
from gemmkit import loading

class Finder:
    def find_spec(name, *_):
        frame = sys._getframe()
        while frame is not None and frame.f_code is not loading._import.__code__:
            frame = frame.f_back
        if frame is None:
            print(name)

class Exported:
    def __dlpack__(self, **options):
        return ONES.__dlpack__(**options)

    def __dlpack_device__(self):
        return ONES.__dlpack_device__()

problem = gemmkit.GemmProblem(48, 48, 48)
on = {{"device": "emulator"}}
sys.meta_path.insert(0, Finder)
"""


@pytest.mark.parametrize(
    "call",
    [
        "gemmkit.matmul(ONES, ONES, epilogue='gelu', **on)",
        "gemmkit.matmul(Exported(), Exported(), **on)",
        "gemmkit.grouped_matmul([ONES, ONES[:4]], [ONES, ONES], **on)",
        "gemmkit.nn.linear(ONES, ONES, **on)",
        "gemmkit.open_device('emulator')",
        "gemmkit.choose(problem, gemmkit.find_board('h100'))",
    ],
)
@pytest.mark.sample(3)
def test_everything_is_imported_by_load(call, tmp_path):
    """A fork waits for those imports, and no signal handler sees their modules half initialized."""
    environment = {**os.environ}
    if "gelu" in call:
        # Nothing is compiled yet.
        environment["XDG_CACHE_HOME"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", f"{IMPORTS}{call}"],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [], "")


@posix
def test_a_handler_that_interrupts_a_launch_leaves_its_addresses(monkeypatch):
    gpu, _ = install(monkeypatch)
    interrupts = []

    def launch(*arguments):
        if interrupts:
            interrupts.pop()
            signal.raise_signal(signal.SIGALRM)
        return gpu.launch(*arguments)

    monkeypatch.setattr(driver, "launcher", lambda: launch)
    a, b, c = (GpuArray.of(np.full((4, 4), value, np.float32)) for value in (1, 2, 3))
    gemmkit.matmul(a, b)
    inner = []
    before = signal.signal(signal.SIGALRM, lambda *_: inner.append(gemmkit.matmul(b, c)))
    interrupts += ["before the first launch", "in the handler's own"]
    try:
        result = gemmkit.matmul(a, b)
    finally:
        signal.signal(signal.SIGALRM, before)
    np.testing.assert_array_equal(result.values, np.full((4, 4), 8))
    assert [each.values.tolist() for each in inner] == [np.full((4, 4), 24).tolist()] * 2


def refuse(_):
    raise RuntimeError("can't create new thread at interpreter shutdown")


def test_products_need_no_further_thread(monkeypatch):
    a = np.ones((200, 200), np.float32)
    gemmkit.matmul(a, a, device="emulator")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    np.testing.assert_array_equal(gemmkit.matmul(a, a, device="emulator"), a * 200)


def test_the_driver_is_asked_without_a_thread_if_need_be(monkeypatch):
    monkeypatch.setattr(choose, "_ask_driver", lambda: "the driver finds no GPU")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert choose.gpu_problem() == "the driver finds no GPU"


def test_many_threads_at_once():
    a = np.arange(64, dtype=np.float32).reshape(8, 8)
    wrong = []

    def work(factor):
        for _ in range(10):
            result = gemmkit.matmul(a, a, alpha=factor, device="emulator")
            wrong.extend([factor] * (not np.array_equal(result, factor * (a @ a))))

    threads = [threading.Thread(target=work, args=(factor,)) for factor in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# In a thread of its own as well: how servers run them.
SUBINTERPRETER = """
import sys, threading
from importlib import import_module
import numpy as np
import gemmkit

try:
    interpreters = import_module("_interpreters")
except ImportError:
    interpreters = import_module("_xxsubinterpreters")
run = getattr(interpreters, "exec", None) or interpreters.run_string
ones = np.ones((4, 4), np.float32)

TRIES = '''
import sys
for statement in ("import gemmkit", "from gemmkit.ops.matmul import matmul", "import gemmkit.nn"):
    try:
        exec(statement)
    except ImportError as error:
        assert "only in the main interpreter of a process" in str(error), error
    else:
        raise SystemExit(statement)
assert "numpy" not in sys.modules
'''

def use():
    interpreter = interpreters.create()
    failure = run(interpreter, TRIES)
    assert failure is None, failure
    interpreters.destroy(interpreter)

if len(sys.argv) > 1:
    assert (gemmkit.matmul(ones, ones, device="emulator") == 4).all()
use()
thread = threading.Thread(target=use)
thread.start()
thread.join()
assert (gemmkit.matmul(ones, ones, device="emulator") == 4).all()
print("ended")
"""


@pytest.mark.parametrize("used", [[], ["before"]])
def test_subinterpreters_are_refused(used):
    if not any(find_spec(name) for name in ("_interpreters", "_xxsubinterpreters")):
        pytest.skip("this Python has no subinterpreters")
    command = [sys.executable, "-c", SUBINTERPRETER, *used]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")
