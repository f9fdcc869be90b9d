"""Groups of sizes that are alike share a choice, so that a routed mixture is soon chosen for."""

from __future__ import annotations

import numpy as np
import pytest

from gemmkit.dispatch.alike import ChoicesAlike, GroupsClass
from gemmkit.dispatch.choose import Dispatcher
from gemmkit.gpu import find_board
from gemmkit.groups import Groups
from gemmkit.problem import GemmProblem
from gemmkit.trials import changes

H100 = find_board("h100")


def routed(seed, experts=64, tokens=4096, **rest):
    m = np.random.default_rng(seed).multinomial(tokens, [1 / experts] * experts)
    return GemmProblem.of_groups(Groups.of(m, 1408, 2048), dtype="bfloat16", **rest)


class Counted(Dispatcher):
    """Counts the choices that it is asked for."""

    asked = 0

    def choose(self, problem):
        self.asked += 1
        return super().choose(problem)


@pytest.fixture
def own():
    return Counted(H100, None)


def test_a_routed_mixture_is_soon_chosen_for(own):
    alike = ChoicesAlike(own)
    found = [alike.choose(routed(seed)) for seed in range(60)]
    assert own.asked <= 6
    assert {each.kernel.name for each in found} == {"grouped_wgmma"}
    changes.note()
    asked = own.asked
    alike.choose(routed(0))
    assert own.asked == asked + 1


def test_products_that_are_all_equal_have_choices_of_their_own(own):
    alike = ChoicesAlike(own)
    for count in (100, 101):
        alike.choose(GemmProblem.of_groups([(32, 32, 32)] * count))
    assert own.asked == 2
    assert GroupsClass.of(GemmProblem(8, 8, 8)) is None
    assert GroupsClass.of(GemmProblem.of_groups([])) is None


@pytest.mark.parametrize(
    "other",
    [
        {"alpha": 0.5},
        {"epilogue": "relu"},
        {"transb": True},
        {"out_dtype": "float32"},
        {"alignment": 8},
        {"tokens": 8192},
        {"experts": 16},
    ],
    ids=str,
)
def test_what_estimates_depend_on_sets_classes_apart(other):
    assert GroupsClass.of(routed(0)) != GroupsClass.of(routed(0, **other))


def test_rows_that_no_vector_divides_set_classes_apart():
    padded, odd = (GemmProblem.of_groups([(5, 64, k), (9, 64, k)]) for k in (256, 257))
    assert GroupsClass.of(padded).sizes == GroupsClass.of(odd).sizes
    assert GroupsClass.of(padded) != GroupsClass.of(odd)
