"""Tensor copies: their effect on engine and oracle against a plain model, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from tensor_runs import Case, loaded, random_case, run, stored

RANKS = (1, 2, 3, 4, 5)


def cases(seed: int, rank: int, count: int, **options: bool) -> list[Case]:
    rng = np.random.default_rng((seed, rank))
    return [random_case(rng, rank, **options) for _ in range(count)]


@pytest.mark.parametrize("rank", RANKS)
def test_loads(rank: int) -> None:
    for number, case in enumerate(cases(1, rank, 40)):
        tile, storage, tally = run(case, "engine", seed=number % 3)
        assert np.array_equal(tile, loaded(case)), case
        assert np.array_equal(storage, case.storage)
        if number < 8:
            again, _, counts = run(case, "oracle")
            assert np.array_equal(again, tile), case
            assert np.array_equal(counts.executed, tally.executed)


@pytest.mark.parametrize("rank", RANKS)
def test_stores(rank: int) -> None:
    for number, case in enumerate(cases(2, rank, 30)):
        tile, storage, tally = run(case, "engine", stores=True, seed=number % 3)
        assert np.array_equal(storage, stored(case)), case
        assert np.array_equal(tile, case.tile)
        if number < 8:
            _, again, counts = run(case, "oracle", stores=True)
            assert np.array_equal(again, storage), case
            assert np.array_equal(counts.executed, tally.executed)


@pytest.mark.parametrize("operation", ["add", "min", "max", "xor"])
def test_reductions_of_integers(operation: str) -> None:
    for rank in (1, 2, 3):
        for number, case in enumerate(cases(3, rank, 8, integers=True)):
            _, storage, _ = run(case, "engine", stores=True, reduction=operation)
            assert np.array_equal(storage, stored(case, operation)), case
            if number < 3:
                _, again, _ = run(case, "oracle", stores=True, reduction=operation)
                assert np.array_equal(again, storage), case
