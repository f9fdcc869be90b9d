import math
from dataclasses import replace

from gemmkit.epilogue import Epilogue
from gemmkit.gpu import BOARDS
from gemmkit.kernels.catalog import find_kernel
from gemmkit.kernels.plan import TileConfig
from gemmkit.problem import GemmProblem
from gemmkit.tune import space
from gemmkit.tune.space import Allowed, search_space

H100 = BOARDS["h100"]
CUBE = GemmProblem(512, 512, 512)


def test_large_spaces_are_never_multiplied_out():
    kernel = find_kernel("gemm_split_k")
    allowed = Allowed(kernel, H100)
    assert allowed.total > 100_000
    assert 100 < len(allowed.configurations) < allowed.total / 10
    assert all(kernel.rule(config, H100) is None for config in allowed.configurations[:50])


def test_candidates_come_by_estimate_and_the_rest_is_counted():
    allowed = [Allowed(find_kernel(name), H100) for name in ("naive_uncoalesced", "warp_tiled")]
    found = search_space(CUBE, H100, allowed)
    times = [each.estimate_us for each in found.candidates]
    assert times == sorted(times)
    assert times[-1] <= space.WITHIN * times[0]
    assert found.total == sum(each.total for each in allowed)
    assert len(times) + sum(found.left_out.values()) == found.total
    assert {each.kernel.name for each in found.candidates} == {"warp_tiled"}
    everything = search_space(CUBE, H100, allowed, within=math.inf)
    assert space.SLOW not in everything.left_out
    assert len(everything.candidates) == sum(len(each.configurations) for each in allowed)


def test_kernels_that_refuse_the_problem_are_counted():
    problem = GemmProblem.from_shape("512", epilogue=Epilogue(bias=True))
    allowed = [Allowed(find_kernel("naive_uncoalesced"), H100)]
    found = search_space(problem, H100, allowed)
    assert found.candidates == ()
    assert found.left_out[space.OUTSIDE] == allowed[0].total
    assert found.excluded == {"naive_uncoalesced": "'naive_uncoalesced' has no fused epilogue"}
    assert found.nothing_left.endswith("; 'gemm_tiled' and 'gemm_split_k' take it")


def test_a_kernel_that_the_board_does_not_run_says_why():
    board = BOARDS["t4"]
    allowed = [Allowed(find_kernel(name), board) for name in ("warp_tiled", "gemm_skinny")]
    found = search_space(GemmProblem(16, 512, 512), board, allowed)
    assert {each.kernel.name for each in found.candidates} == {"warp_tiled"}
    assert found.excluded == {
        "gemm_skinny": "cp.async needs compute capability 8.0; T4 has 7.5",
    }


def test_what_a_layout_refuses_has_an_example():
    allowed = [Allowed(find_kernel("gemm_tiled"), H100)]
    found = search_space(CUBE.laid_out("nt"), H100, allowed)
    assert found.left_out[space.UNFIT_FOR_PROBLEM] > 0
    assert found.examples[space.UNFIT_FOR_PROBLEM].startswith("gemm_tiled:")
    assert "its stages take" in found.examples[space.UNFIT_FOR_PROBLEM]
    assert not found.excluded


def test_blocks_that_fit_no_sm_are_counted():
    kernel = find_kernel("naive")
    unbound = replace(kernel, rule=lambda config, gpu: None, space={"BM": (32, 64), "BN": (32,)})
    found = search_space(CUBE, H100, [Allowed(unbound, H100)], within=math.inf)
    assert [str(each.config) for each in found.candidates] == ["BM=32,BN=32"]
    assert found.left_out == {space.UNFIT: 1}
    assert found.examples == {space.UNFIT: "naive:BM=64 on H100"}


def test_labels_are_what_command_lines_take():
    kernel = find_kernel("naive")
    candidate = space.Candidate(kernel, TileConfig(BM=8, BN=32), 1.0)
    assert candidate.label == "naive:BM=8,BN=32"
    assert candidate.identity == ("naive", (("BM", 8), ("BN", 32)))


def test_what_is_launched_alike_is_tried_once():
    kernel = find_kernel("naive")

    def launch(problem, config, gpu):
        return kernel.launch(problem, replace(config, BM=8), gpu)

    alike = replace(kernel, launch=launch, space={"BM": (8, 16), "BN": (16, 32)})
    found = search_space(CUBE, H100, [Allowed(alike, H100)], within=math.inf)
    assert sorted(str(each.config) for each in found.candidates) == ["BM=8,BN=16", "BM=8,BN=32"]
    assert found.left_out == {space.SAME: 2}
