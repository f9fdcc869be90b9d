"""The table of rules: what each architecture has, and on what its rules rest."""

from __future__ import annotations

import numpy as np
import pytest

from gemmkit.emulator.numerics.model import multiply
from gemmkit.emulator.numerics.rules import Kind, Rules, capability_of, kinds_of, rules_of
from gemmkit.errors import UnsupportedInstruction
from gemmkit.gpu import CAPABILITIES


def test_targets() -> None:
    targets = ("sm_75", "sm_90a", "sm_100f", "sm_121a", "", "compute_90")
    assert [capability_of(each) for each in targets] == [
        (7, 5), (9, 0), (10, 0), (12, 1), (0, 0), (0, 0)
    ]  # fmt: skip


def test_only_hopper_was_measured() -> None:
    for capability in CAPABILITIES:
        evidence = {
            rules.evidence for _, rules in kinds_of("mma", capability) if rules.method != "integer"
        }
        assert evidence == ({"measured", "parts"} if capability == (9, 0) else {"published"})


@pytest.mark.parametrize(
    ("kind", "capability", "words"),
    [
        (Kind("mma", "e4m3", "e5m2", "f32", 32), (8, 6), "needs compute capability 8.9 or later"),
        (Kind("mma", "bf16", "bf16", "f32", 16), (7, 5), "needs compute capability 8.0 or later"),
        (Kind("mma", "f16", "f16", "f32", 8), (7, 0), "needs compute capability 7.5 or later"),
        (Kind("mma", "f16", "f16", "f32", 16), (6, 1), "has no tensor cores"),
        (Kind("wgmma", "f16", "f16", "f32", 16), (10, 0), "an instruction of Hopper"),
    ],
)
def test_what_an_architecture_lacks(kind: Kind, capability: tuple[int, int], words: str) -> None:
    with pytest.raises(UnsupportedInstruction, match=words):
        rules_of(kind, capability)


def test_fp8_by_architecture() -> None:
    kinds = [Kind(name, "e4m3", "e4m3", "f32", 32) for name in ("mma", "wgmma")]
    assert rules_of(kinds[0], (8, 9)) == Rules("fused", "published", 13, 13, 16)
    assert rules_of(kinds[0], (9, 0)) == Rules("widened", "measured", 25, 23, 16)
    assert rules_of(kinds[1], (9, 0)) == Rules("fused", "measured", 13, 13, 32)
    assert rules_of(kinds[0], (10, 0)).method == "widened"
    assert rules_of(kinds[0], (12, 1)) == Rules("fused", "published", 25, 23, 32)


@pytest.mark.parametrize(("capability", "halved"), [((8, 0), True), ((9, 0), False)])
def test_the_deepest_instruction_of_ampere_is_two(
    capability: tuple[int, int], halved: bool
) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(shape).astype(np.float16).view(np.uint16)
            for shape in ((64, 16), (16, 64)))  # fmt: skip
    deep, shallow = (Kind("mma", "f16", "f16", "f32", depth) for depth in (16, 8))
    total = np.zeros((64, 64), np.uint32)
    whole = multiply(deep, capability, a, b, total)
    for steps in (slice(8), slice(8, 16)):
        total = multiply(shallow, capability, a[:, steps], b[steps], total)
    assert np.array_equal(whole, total) == halved


def test_volta_adds_four_products_at_once() -> None:
    """1 + 2**-24 + 2**-24: each is lost there, and Turing keeps their sum."""
    one, tiny = (int(np.float16(each).view(np.uint16)) for each in (1.0, 2.0**-12))
    a, b = np.full((1, 16), tiny, np.uint16), np.full((16, 1), tiny, np.uint16)
    a[0, 0] = b[0, 0] = one
    a[0, 3:] = 0
    found = [
        multiply(Kind("wmma", "f16", "f16", "f32", 16), each, a, b, np.zeros((1, 1), np.uint32))
        for each in ((7, 0), (7, 5))
    ]
    assert [float(each.view(np.float32)[0, 0]) for each in found] == [1, 1 + 2.0**-23]
