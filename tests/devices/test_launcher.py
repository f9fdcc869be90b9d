"""Launches that lie ready, on a played driver: which grid, cluster and parameters it is given."""

import ctypes
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest

import fake_driver
from gemmkit.devices import context
from gemmkit.devices import driver as launches
from gemmkit.devices.driver import LaunchConfiguration
from gemmkit.devices.launcher import LaunchSequence, PreparedLaunch
from gemmkit.devices.scratch import no_memory
from gemmkit.errors import DeviceError
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import FieldPlace, LaunchPlan, SourceFile, StructPlace

SIGNATURE = ("A", "B", "C", "K", "workspace", "semaphores")
PARAMETERS = ", ".join(f".param .u64 p{each}" for each in range(6))
PLAN = LaunchPlan("k", SourceFile("", "k.cu"), "k", (4, 2, 1), (64, 1, 1), SIGNATURE)
PLACES = {"A": ("a", 0), "B": ("b", 0), "C": ("out", 0)}


def binary(parameters=PARAMETERS, key="one"):
    return Binary(
        entry="k",
        arch="sm_90",
        ptx=f".visible .entry k({parameters})\n{{ ret; }}\n",
        cubin=b"\x7fELF",
        resources=None,
        compiler="",
        key=key,
    )


@pytest.fixture
def driver(monkeypatch):
    return fake_driver.install(monkeypatch.setattr)


@pytest.fixture
def gpu(driver):
    return context.Context(0)


def launched(driver):
    return [seen for (seen,) in driver.named("launch")]


def test_the_structs_lie_as_cuda_h_has_them(monkeypatch):
    from cuda.bindings import driver

    monkeypatch.setattr(launches, "records_dependent_launches", lambda: True)

    theirs = driver.CUlaunchConfig()
    theirs.gridDimX, theirs.gridDimY, theirs.gridDimZ = 6, 4, 2
    theirs.blockDimX, theirs.blockDimY, theirs.blockDimZ = 32, 2, 1
    theirs.sharedMemBytes = 1000
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    value = driver.CUlaunchAttributeValue()
    value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = 3, 2, 1
    attribute.value = value
    flag = driver.CUlaunchAttribute()
    kinds = driver.CUlaunchAttributeID
    flag.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    value = driver.CUlaunchAttributeValue()
    value.programmaticStreamSerializationAllowed = 1
    flag.value = value
    theirs.attrs, theirs.numAttrs = [attribute, flag], 2
    plan = replace(PLAN, grid=(6, 4, 2), block=(32, 2, 1), shared_bytes=1000, cluster=(3, 2, 1))
    plan = replace(plan, dependent=True)
    own = LaunchConfiguration.of(plan)
    end = LaunchConfiguration.attributes.offset
    whole = ctypes.string_at(theirs.getPtr(), end)
    assert ctypes.string_at(ctypes.addressof(own), end) == whole
    read = LaunchConfiguration.from_address(theirs.getPtr())
    assert read.attribute_count == own.attribute_count == 2
    for number in range(2):
        assert bytes(read.attributes[number]) == bytes(own.attributes[number])
    assert LaunchConfiguration.of(PLAN).attribute_count == 0


DEPENDENT = replace(PLAN, shared_bytes=2000, reserved_bytes=100_000, dependent=True)


@pytest.mark.parametrize("cluster", [(1, 1, 1), (2, 1, 1)])
def test_a_dependent_launch_starts_early_after_another_one_in_a_graph(driver, monkeypatch, cluster):
    from cuda.bindings import driver as bindings

    capture, others = 0, 0

    def capturing(stream, status):
        status._obj.value = int(capture > 0)
        return 0

    def information(stream):
        last = 1000 * others + len(launched(driver))
        return fake_driver.OK, int(capture > 0), capture, None, [last]

    monkeypatch.setattr("gemmkit.devices.driver.capture_query", lambda: capturing)
    monkeypatch.setattr(bindings, "cuStreamGetCaptureInfo", information)
    gpu, plan = context.Context(0), replace(DEPENDENT, cluster=cluster)
    launch, ordinary = (
        PreparedLaunch(gpu, replace(plan, dependent=each), binary(), {"K": 7}, PLACES)
        for each in (True, False)
    )

    def early(which=launch):
        which.run((11, 12, 13), 5)
        seen = launched(driver)[-1]
        assert (seen.cluster, seen.shared_bytes) == (cluster, 100_000)
        return seen.dependent

    assert [early(), early()] == [False, False]  # on the stream itself
    capture = 8
    assert [early(), early(), early()] == [False, True, True]
    others += 1  # a kernel of another library
    assert [early(), early()] == [False, True]
    assert [early(ordinary), early()] == [False, False]
    capture = 9
    assert [early(), early()] == [False, True]
    assert driver.named("shared") == [[0x33, 100_000]]


@pytest.mark.parametrize(("version", "attributes"), [(12020, 0), (12030, 1)])
def test_dependent_launches_are_ordinary_where_graphs_cannot_record_them(
    monkeypatch, version, attributes
):
    def answer(place):
        place._obj.value = version
        return 0

    monkeypatch.setattr(launches, "library", lambda: SimpleNamespace(cuDriverGetVersion=answer))
    uncached = launches.records_dependent_launches.__wrapped__
    monkeypatch.setattr(launches, "records_dependent_launches", uncached)
    made = LaunchConfiguration.of(replace(PLAN, dependent=True))
    assert made.attribute_count == attributes


def test_addresses_and_stream_are_those_of_each_run(gpu, driver):
    plan = replace(PLAN, cluster=(2, 1, 1), shared_bytes=60_000)
    launch = PreparedLaunch(gpu, plan, binary(), {"K": 7}, {**PLACES, "B": ("b", 16)})
    for start, stream in ((1000, 3), (5000, 9)):
        launch.run((start, start + 1, start + 2), stream)
        seen = launched(driver)[-1]
        assert seen[:6] == (0x33, (4, 2, 1), (64, 1, 1), (2, 1, 1), 60_000, stream)
        assert seen.words == [start, start + 17, start + 2, 7, 0, 0]
    assert not launch.plain
    assert driver.named("shared") == [[0x33, 60_000]]


def test_a_plain_launch_patches_three_addresses(gpu, driver):
    launch = PreparedLaunch(gpu, PLAN, binary(), {"K": 7}, PLACES)
    assert launch.plain
    launch.run_plain(11, 12, 13, 5)
    (seen,) = launched(driver)
    assert (seen.stream, seen.words) == (5, [11, 12, 13, 7, 0, 0])


def test_fields_of_a_struct_are_patched_where_they_are(gpu, driver):
    fields = (FieldPlace(0, 4, "u32"), FieldPlace(8, 8, "u64", pointer=True))
    struct = StructPlace("S s", 16, 8, fields)
    plan = replace(PLAN, signature=("K", "M", "A", "B"), structs=(None, struct, None))
    parameters = ".param .u32 n, .param .align 8 .b8 s[16], .param .u64 b"
    numbers = {"M": 5, "K": 3, "B": 8}
    launch = PreparedLaunch(gpu, plan, binary(parameters), numbers, {"A": ("a", 0)})
    launch.run((77,), 0)
    assert launched(driver)[0].words == [3, 5, 77, 8]
    crossing = (FieldPlace(0, 4, "u32"), FieldPlace(4, 8, "u64", pointer=True))
    plan = replace(plan, structs=(None, StructPlace("S s", 16, 8, crossing), None))
    with pytest.raises(DeviceError, match=r"the address 'A' at byte 12 .* not aligned to 8"):
        PreparedLaunch(gpu, plan, binary(parameters), numbers, {"A": ("a", 0)})


def test_scratch_memory_is_the_streams_unless_it_is_given(gpu, driver):
    plan = replace(PLAN, workspace_bytes=4096, semaphores=3)
    own = PreparedLaunch(gpu, plan, binary(), {"K": 7}, PLACES)
    for stream in (3, 3, 4):
        own.run((1, 2, 3), stream)
    first, again, other = (seen.words[4:] for seen in launched(driver))
    assert first == again
    assert len({*first, *other, 0}) == 5
    given = PreparedLaunch(
        gpu, plan, binary(), {"K": 7, "workspace": 64, "semaphores": 128}, PLACES
    )
    given.run((1, 2, 3), 3)
    assert launched(driver)[-1].words[4:] == [64, 128]


@pytest.mark.parametrize("error", [201, 400])
def test_a_thread_without_this_context_launches_in_it(gpu, driver, error):
    launch = PreparedLaunch(gpu, PLAN, binary(), {"K": 7}, PLACES)
    driver.errors.append(error)
    launch.run((1, 2, 3), 5)
    assert [seen.words[:3] for seen in launched(driver)] == [[1, 2, 3]] * 2
    assert len(driver.named("current")) == (error == 201)
    driver.errors += [1, error]
    with pytest.raises(DeviceError, match=r"'k' failed: .*CUDA_ERROR_INVALID_VALUE"):
        launch.run((1, 2, 3), 5)


# --- several kernels ----------------------------------------------------------------------------


def sequence(gpu, *needs, temporary=no_memory):
    return LaunchSequence(
        gpu,
        [
            PreparedLaunch(
                *(gpu, replace(PLAN, workspace_bytes=nbytes, semaphores=count), binary()),
                *({"K": place}, PLACES),
            )
            for place, (nbytes, count) in enumerate(needs)
        ],
        temporary,
    )


def test_kernels_of_one_launch_share_their_scratch_memory(gpu, driver):
    sequence(gpu, (100, 0), (0, 0), (100_000, 8)).run((1, 2, 3), 5)
    seen = launched(driver)
    assert [each.words[3] for each in seen] == [0, 1, 2]
    assert {each.stream for each in seen} == {5}
    first, without, last = (each.words[4:] for each in seen)
    assert first == last
    assert 0 not in first
    assert without == [0, 0]
    assert sorted(nbytes for _, nbytes, *_ in driver.named("allocate")) == [32, 100_000]


def test_kernels_that_are_captured_share_memory_of_their_graph(gpu, driver, monkeypatch):
    from cuda.bindings import driver as bindings

    def capturing(stream, status):
        status._obj.value = 1
        return 0

    graphs = iter((12, 12, 13))
    monkeypatch.setattr("gemmkit.devices.driver.capture_query", lambda: capturing)
    monkeypatch.setattr(
        bindings,
        "cuStreamGetCaptureInfo",
        lambda stream: (fake_driver.OK, 1, next(graphs), None, []),
    )
    asked = []

    def temporary(nbytes, ordinal):
        asked.append((nbytes, ordinal))
        return object(), 1000 * len(asked)

    launch = sequence(gpu, (100, 3), (300, 0), temporary=temporary)
    for _ in range(3):
        launch.run((1, 2, 3), 5)
    assert asked == [(300, 0)] * 3
    seen = [each.words[4:] for each in launched(driver)]
    assert [workspace for workspace, _ in seen] == [1000, 1000, 2000, 2000, 3000, 3000]
    # Semaphores belong to a capture.
    first, second, third = (semaphores for _, semaphores in seen[::2])
    assert first == second != third


def test_kernels_without_scratch_memory_hold_nothing(gpu, driver):
    sequence(gpu, (0, 0), (0, 0)).run((1, 2, 3), 5)
    sequence(gpu).run((1, 2, 3), 5)
    assert [each.words for each in launched(driver)] == [[1, 2, 3, k, 0, 0] for k in (0, 1)]
    assert not driver.named("allocate")


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs SIGALRM")
def test_a_handlers_launches_leave_the_workspace_to_the_kernels_that_it_interrupts(
    gpu, driver, monkeypatch
):
    single = PreparedLaunch(gpu, replace(PLAN, workspace_bytes=64), binary(), {"K": 9}, PLACES)
    other, launch = sequence(gpu, (64, 0), (64, 0)), sequence(gpu, (64, 0), (64, 0))
    interrupts = [signal.SIGALRM]
    original = LaunchSequence.run

    def handler(*_):
        single.run((4, 5, 6), 5)
        original(other, (7, 8, 9), 5)

    own_run = PreparedLaunch.run

    def run(self, *given):
        own_run(self, *given)
        if interrupts:
            signal.raise_signal(interrupts.pop())

    monkeypatch.setattr(PreparedLaunch, "run", run)
    before = signal.signal(signal.SIGALRM, handler)
    try:
        launch.run((1, 2, 3), 5)
    finally:
        signal.signal(signal.SIGALRM, before)
    spaces = {}
    for seen in launched(driver):
        spaces.setdefault(seen.words[0], []).append(seen.words[4])
    assert {start: len(found) for start, found in spaces.items()} == {1: 2, 4: 1, 7: 2}
    # Each launch has one workspace, of its own.
    assert all(len(set(found)) == 1 for found in spaces.values())
    assert len({found[0] for found in spaces.values()}) == 3
