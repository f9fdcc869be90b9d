"""What cuBLASLt is told of a problem and its epilogue, and how its algorithms are named."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from gemmkit.bench import cublas_peer
from gemmkit.bench.cublas_lt import configuration
from gemmkit.bench.cublas_peer import CublasBaseline
from gemmkit.epilogue import Epilogue
from gemmkit.errors import UnsupportedProblem
from gemmkit.problem import GemmProblem


class Names:
    """An enumeration whose members are their own names."""

    def __getattr__(self, name):
        return name

    def __getitem__(self, name):
        return name


class Lt:
    """cuBLASLt: descriptors are numbers, and what they are told is kept by name."""

    Epilogue = MatmulDescAttribute = MatrixLayoutAttribute = MatmulPreferenceAttribute = Names()
    ReductionScheme = SimpleNamespace(COMPUTE_TYPE=2)

    class cuBLASLtError(Exception):  # noqa: N801 - the name it has
        pass

    def __init__(self):
        self.layouts, self.told, self.preferences, self.calls = {}, {}, {}, []
        self.Epilogue = {"DEFAULT": 0, "BIAS": 1, "GELU_AUX_BIAS": 2, "RELU_BIAS": 3}

    def matmul_desc_create(self, compute, scale):
        return 1000

    def matrix_layout_create(self, kind, rows, columns, ld):
        self.layouts[len(self.layouts)] = (kind, rows, columns, ld)
        return len(self.layouts) - 1

    def matmul_desc_set_attribute(self, operation, attribute, address, size):
        self.told[attribute] = self._number(address, size)

    def matrix_layout_set_attribute(self, layout, attribute, address, size):
        self.told[layout, attribute] = self._number(address, size)

    def matmul_preference_create(self):
        return 2000

    def matmul_preference_set_attribute(self, preference, attribute, address, size):
        self.preferences[attribute] = self._number(address, size)

    def matmul_preference_destroy(self, preference):
        pass

    def MatmulHeuristicResult(self, count):
        states = [SimpleNamespace(ptr=100 + number, state=number == 1) for number in range(count)]

        class Results(list):
            ptr = 0

        return Results(states)

    def matmul_algo_get_heuristic(self, *arguments):
        self.asked = arguments[2:6]
        ctypes.cast(arguments[-1], ctypes.POINTER(ctypes.c_int32))[0] = 3

    def matmul(self, *arguments):
        self.calls.append(arguments)

    @staticmethod
    def _number(address, size):
        return int.from_bytes(ctypes.string_at(address, size), "little")


@pytest.fixture
def lt(monkeypatch):
    bindings = ModuleType("nvmath.bindings")
    bindings.cublas = SimpleNamespace(
        ComputeType=Names(),
        Operation=SimpleNamespace(N=0, T=1),
        Math=SimpleNamespace(DISALLOW_REDUCED_PRECISION_REDUCTION=16),
        create=lambda: 1,
        set_math_mode=lambda handle, mode: None,
        get_version=lambda _: 130400,
    )
    bindings.cublasLt = Lt()
    bindings.cublasLt.create = lambda: 2
    monkeypatch.setitem(sys.modules, "nvmath", ModuleType("nvmath"))
    monkeypatch.setitem(sys.modules, "nvmath.bindings", bindings)
    monkeypatch.setattr(cublas_peer, "configuration", lambda _lt, algorithm: f"tile {algorithm}")
    return bindings.cublasLt


BOUND = {"A": 10, "B": 20, "C": 30, "bias": 40, "residual": 50, "auxiliary": 60}
NUMBERS = {"alpha": 1.0, "beta": 0.0}


def device():
    return SimpleNamespace(empty=lambda _: SimpleNamespace(address=9))


def test_a_residual_is_added_as_c(lt):
    epilogue = Epilogue("column", residual=True)
    problem = GemmProblem(3, 4, 5, ldc=6, epilogue=epilogue, dtype="float16")
    bound = BOUND | NUMBERS
    name, way = next(iter(CublasBaseline(device()).candidates(problem, [bound]).items()))
    assert name == "cuBLAS 13.4.0 (cublasLtMatmul, BIAS, heuristic 1 of 2: tile 100)"
    assert way.stored == ()
    way.works[0](SimpleNamespace(handle=77))
    (call,) = lt.calls
    # D is C's memory of 6 elements a row, what is added that of the residual with its own.
    addend, of_addend, c, of_c = call[8:12]
    assert (addend, c) == (50, 30)
    assert (lt.layouts[of_addend], lt.layouts[of_c]) == ((2, 4, 3, 8), (2, 4, 3, 6))
    beta = ctypes.cast(call[7], ctypes.POINTER(ctypes.c_float))[0]
    assert beta == 1.0
    assert (lt.told["EPILOGUE"], lt.told["BIAS_POINTER"]) == (1, 40)
    # Parts of k are added up in fp32 where C is narrower.
    assert lt.preferences["REDUCTION_SCHEME_MASK"] == 2


def test_each_set_of_buffers_has_its_auxiliary_output(lt):
    problem = GemmProblem(3, 4, 5, epilogue=Epilogue("column", "gelu_tanh", auxiliary=True))
    bounds = [BOUND | NUMBERS | {"auxiliary": 60 + number} for number in range(2)]
    seen = []
    lt.matmul_desc_set_attribute = lambda operation, attribute, address, size: seen.append(
        (attribute, lt._number(address, size))
    )
    found = CublasBaseline(device()).candidates(problem, bounds)
    assert [name.rpartition(",")[2] for name in found] == [
        " heuristic 1 of 2: tile 100)",
        " heuristic 2 of 2: tile 102)",
    ]
    assert [value for name, value in seen if name == "EPILOGUE_AUX_POINTER"] == [60, 61]
    assert ("EPILOGUE_AUX_LD", 4) in seen
    assert "REDUCTION_SCHEME_MASK" not in lt.preferences


def test_what_it_refuses_to_fuse_is_left(lt, monkeypatch):
    class Torch:
        def __init__(self, device):
            pass

        def rest(self, problem, arguments, done):
            return [lambda stream: None for _ in arguments]

    def ask(*arguments):
        if "EPILOGUE_AUX_POINTER" in lt.told or arguments[4] != arguments[5]:
            lt.told.clear()
            raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")
        ctypes.cast(arguments[-1], ctypes.POINTER(ctypes.c_int32))[0] = count

    count = 1
    lt.matmul_algo_get_heuristic = ask
    monkeypatch.setattr(cublas_peer, "TorchBaseline", Torch)
    for epilogue, name, stored in (
        (Epilogue("column", "gelu_tanh", auxiliary=True), "BIAS", ("bias",)),
        (Epilogue("column", residual=True), "BIAS", ("bias",)),
    ):
        problem = GemmProblem(3, 4, 5, epilogue=epilogue)
        ((found, way),) = CublasBaseline(device()).candidates(problem, [BOUND | NUMBERS]).items()
        assert f"(cublasLtMatmul, {name}, heuristic 1 of 1" in found
        assert found.endswith("), then PyTorch's kernels")
        assert way.stored == stored
    count = 0
    with pytest.raises(UnsupportedProblem, match="no algorithm for 3x4x5"):
        CublasBaseline(device()).candidates(
            GemmProblem(3, 4, 5, epilogue=Epilogue("column", "relu")), [BOUND | NUMBERS]
        )
    lt.matmul_algo_get_heuristic = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        CublasBaseline(device()).candidates(GemmProblem(3, 4, 5), [BOUND | NUMBERS])


def test_what_it_does_not_take_is_left_out_of_a_comparison(lt):
    def refuse(*_):
        raise lt.cuBLASLtError(
            "not supported (CUBLAS_STATUS_NOT_SUPPORTED). You can set LOG_LEVEL=5"
        )

    lt.matmul_algo_get_heuristic = refuse
    with pytest.raises(UnsupportedProblem, match=r"3x4x5: not supported \(CUBLAS_STATUS.*\)$"):
        CublasBaseline(device()).candidates(GemmProblem(3, 4, 5), [BOUND | NUMBERS])


def test_what_is_left_runs_after_each_candidate(lt, monkeypatch):
    ran = []

    class Torch:
        def __init__(self, device):
            pass

        def rest(self, problem, arguments, done):
            assert done == ("product", "bias")
            return [lambda stream: ran.append("rest") for _ in arguments]

    monkeypatch.setattr(cublas_peer, "TorchBaseline", Torch)
    problem = GemmProblem(3, 4, 5, epilogue=Epilogue("column", "silu", scale=2.0))
    found = CublasBaseline(device()).candidates(problem, [BOUND | NUMBERS])
    assert all(name.endswith("), then PyTorch's kernels") for name in found)
    assert {way.stored for way in found.values()} == {("bias", "activation")}
    for way in found.values():
        way.works[0](SimpleNamespace(handle=77))
    assert len(lt.calls) == len(ran) == 2

    def absent(device):
        raise ImportError("no torch")

    monkeypatch.setattr(cublas_peer, "TorchBaseline", absent)
    with pytest.raises(UnsupportedProblem, match=r"cannot fuse bias\+silu\+scale=2.0"):
        CublasBaseline(device()).candidates(problem, [BOUND | NUMBERS])


def test_algorithms_are_told_by_tile_stages_cluster_and_split():
    values = {"TILE_ID": 20, "STAGES_ID": 7, "CLUSTER_SHAPE_ID": 3, "SPLITK_NUM": 4}

    def kind(name, number):
        member = SimpleNamespace(name=name, __int__=None)

        class Kind:
            def __iter__(self):
                return iter([number])

            def __call__(self, _):
                return member

        return Kind()

    def get(algorithm, attribute, address, size, written):
        assert (algorithm, size) == (100, 4)
        ctypes.cast(address, ctypes.POINTER(ctypes.c_uint32))[0] = values[attribute]

    lt = SimpleNamespace(
        MatmulAlgoConfigAttribute=Names(),
        MatmulTile=kind("TILE_128x128", 20),
        MatmulStages=kind("STAGES_64x3", 7),
        # One that this version of the bindings does not know.
        ClusterShape=kind("SHAPE_2x1x1", 99),
        get_matmul_algo_config_attribute_dtype=lambda _: np.uint32,
        matmul_algo_config_get_attribute=get,
    )
    assert configuration(lt, 100) == "tile 128x128, stages 64x3, cluster 3, split-K 4"


def test_operands_of_8_bits_come_with_their_scales(lt):
    problem = GemmProblem(
        *(32, 48, 256), transb=True, dtype="float8_e4m3", out_dtype="bfloat16", scales="blocks"
    )
    bound = BOUND | NUMBERS | {"scale_a": 70, "scale_b": 80}
    found = CublasBaseline(device()).candidates(problem, [bound])
    # Those of cublasGemmEx have no such types.
    assert all("cublasLtMatmul" in name for name in found)
    assert (lt.layouts[0], lt.layouts[1]) == ((28, 256, 48, 256), (28, 256, 32, 256))
    # cuBLAS's A is B.
    assert (lt.told["A_SCALE_MODE"], lt.told["A_SCALE_POINTER"]) == (5, 80)
    assert (lt.told["B_SCALE_MODE"], lt.told["B_SCALE_POINTER"]) == (4, 70)
    assert lt.told["FAST_ACCUM"] == 0
    lt.told.clear()
    plain = replace(problem, scales="", precision="fast")
    CublasBaseline(device()).candidates(plain, [bound])
    assert lt.told["FAST_ACCUM"] == 1
    assert "A_SCALE_MODE" not in lt.told
    with pytest.raises(UnsupportedProblem, match="along k alone: layout NT"):
        CublasBaseline(device()).candidates(replace(problem, transb=False, ldb=0), [bound])


def test_results_of_8_bits_have_a_scale_and_a_c_of_16(lt):
    problem = GemmProblem(
        *(32, 48, 256),
        transb=True,
        dtype="float8_e4m3",
        out_dtype="float8_e5m2",
        epilogue="scale_result",
    )
    bound = BOUND | NUMBERS | {"scale_result": 70}
    found = CublasBaseline(device()).candidates(problem, [bound])
    assert lt.told["D_SCALE_POINTER"] == 70
    assert [lt.layouts[place] for place in lt.asked[2:]] == [(14, 48, 32, 48), (29, 48, 32, 48)]
    next(iter(found.values())).works[0](SimpleNamespace(handle=5))
    # C is read nowhere, and has no address.
    c, layout_c, d, layout_d = lt.calls[-1][8:12]
    assert (c, layout_c, d, layout_d) == (0, lt.asked[2], 30, lt.asked[3])
    for changes in ({"epilogue": "bias"}, {"epilogue": "silu"}, {"dtype": "bfloat16"}):
        with pytest.raises(UnsupportedProblem, match="cuBLAS has no results of float8_e5m2 of"):
            CublasBaseline(device()).candidates(replace(problem, **changes), [bound])
