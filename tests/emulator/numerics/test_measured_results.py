"""The model and the engine against what an H100 returned, bit for bit; `data` says of what."""

from __future__ import annotations

import numpy as np
import pytest
from tensor_tiles import form_of_kind, fuse_natively, measured, multiply_natively, results_of

from gemmkit.emulator.numerics.model import multiply
from gemmkit.emulator.numerics.rules import Kind

HOPPER = (9, 0)
CASES = [pytest.param(name, kind, id=name) for name, kind in measured()]


def equal_names(data: dict[str, np.ndarray], found: np.ndarray) -> list[str]:
    """The distributions for which all results are equal."""
    same = (found == data["D"]).reshape(len(found), -1).all(axis=1)
    return [str(name) for name in data["distributions"][same]]


def test_every_kind_and_distribution_is_there() -> None:
    kinds = {name: len(results_of(name)["distributions"]) for name, _ in measured()}
    assert len(kinds) == 17
    assert {count for name, count in kinds.items() if "s8" not in name} == {11}


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_model(name: str, kind: Kind) -> None:
    data = results_of(name)
    found = multiply(kind, HOPPER, data["A"], data["B"], data["C"])
    assert equal_names(data, found) == data["distributions"].tolist()


@pytest.mark.parametrize(
    ("name", "kind"),
    # The engine has no wgmma of integers, whose sums are exact anyway.
    [case for case in CASES if case.id != "wgmma_m64n8k32_s8_s32"],
)
def test_engine(name: str, kind: Kind) -> None:
    data = results_of(name)
    found = np.zeros_like(data["D"])
    a, b, c = (data[each] for each in "ABC")
    for index in np.ndindex(found.shape[:2]):
        operands = a[index], b[index], c[index]
        if kind.instruction == "mma":
            found[index] = multiply_natively(form_of_kind(kind, c.shape[-2]), HOPPER, *operands)
        else:
            found[index] = fuse_natively(kind, HOPPER, *operands)
    assert equal_names(data, found) == data["distributions"].tolist()


def test_another_architecture_gives_other_bits() -> None:
    """Which shows that the data can tell the rules apart."""
    data = results_of("mma_m16n8k16_f16_f32")
    kind = Kind("mma", "f16", "f16", "f32", 16)
    found = multiply(kind, (8, 0), data["A"], data["B"], data["C"])
    assert {"normal", "steps", "huge"}.isdisjoint(equal_names(data, found))
