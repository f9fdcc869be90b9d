"""PTX's fundamental types."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PtxType:
    """A type with PTX's name. `kind`: pred, bits, unsigned, signed, float, bfloat or packed."""

    name: str
    bits: int
    kind: str

    @property
    def bytes(self) -> int:
        """Size in memory."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        """An IEEE binary16, 32 or 64 number."""
        return self.kind == "float"

    @property
    def is_signed(self) -> bool:
        """A two's complement integer."""
        return self.kind == "signed"


TYPES = {
    each.name: each
    for each in (
        PtxType("pred", 1, "pred"),
        *(PtxType(f"b{bits}", bits, "bits") for bits in (8, 16, 32, 64, 128)),
        *(PtxType(f"u{bits}", bits, "unsigned") for bits in (8, 16, 32, 64)),
        *(PtxType(f"s{bits}", bits, "signed") for bits in (8, 16, 32, 64)),
        *(PtxType(f"f{bits}", bits, "float") for bits in (16, 32, 64)),
        PtxType("bf16", 16, "bfloat"),
        PtxType("tf32", 32, "bits"),
        PtxType("f16x2", 32, "packed"),
        PtxType("bf16x2", 32, "packed"),
    )
}

_WIDER = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}


def widened(name: str) -> str:
    """The integer type of twice the width."""
    return _WIDER[name]
