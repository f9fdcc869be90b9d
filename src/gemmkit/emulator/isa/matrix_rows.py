"""Rows of the instruction table: matrices that a warp moves, and `wmma`.

The number of registers of each fragment is that of the PTX manual ("Matrix fragments for WMMA").
"""

from __future__ import annotations

Row = tuple[str, str, str, str]

_SPACE = "S:,.global,.shared,.shared::cta"
_LAYOUT = "L:row,col"
_ANY_SHAPE = "G:m16n16k16,m32n8k16,m8n32k16"
# Registers of A and of B by shape, for types that take as few as they can.
_BF16 = {"m16n16k16": (4, 4), "m32n8k16": (8, 2), "m8n32k16": (2, 8)}
_INT8 = {"m16n16k16": (2, 2), "m32n8k16": (4, 1), "m8n32k16": (1, 4)}


def _list(count: int, kind: str) -> str:
    return f"v{count}{kind}" if count > 1 else kind


def _loads(fragment: str, shape: str, kind: str, registers: str) -> Row:
    pattern = f"wmma.load.{{F:{fragment}}}.sync.aligned.{{{_LAYOUT}}}.{{{shape}}}{{{_SPACE}}}"
    return f"{pattern}.{{T:{kind}}}", "load", f"={registers} [{{S}}] ?u32", "load"


def _stores(shape: str, kind: str, registers: str) -> Row:
    pattern = f"wmma.store.{{F:d}}.sync.aligned.{{{_LAYOUT}}}.{{{shape}}}{{{_SPACE}}}"
    return f"{pattern}.{{T:{kind}}}", "store", f"[{{S}}] {registers} ?u32", "store"


def _products(shape: str, kinds: str, d: str, a: str, b: str, c: str) -> Row:
    pattern = f"wmma.mma.sync.aligned.{{A:row,col}}.{{B:row,col}}.{{{shape}}}"
    return f"{pattern}{kinds}", "multiply_fragments", f"={d} {a} {b} {c}", "tensor"


_ACCUMULATORS = {"f16": "v4b32", "f32": "v8f32"}

MATRIX_ROWS: tuple[Row, ...] = (
    *(
        row
        for count in (1, 2, 4)
        for row in (
            (f"ldmatrix.sync.aligned.{{G:m8n8}}.{{N:x{count}}}{{R:,.trans}}."
             "{S:shared,shared::cta}.{T:b16}",
             "load", f"={_list(count, 'b32')} [{{S}}]", "load"),
            (f"stmatrix.sync.aligned.{{G:m8n8}}.{{N:x{count}}}{{R:,.trans}}."
             "{S:shared,shared::cta}.{T:b16}",
             "store", f"[{{S}}] {_list(count, 'b32')}", "store"),
        )
    ),
    ("movmatrix.sync.aligned.m8n8.trans.b16", "transpose_matrix", "=b32 b32", "warp"),
    _loads("a,b", _ANY_SHAPE, "f16", "v8b32"),
    *(
        _loads(fragment, f"G:{shape}", kinds, _list(counts[index], "b32"))
        for kinds, table in (("bf16", _BF16), ("s8,u8", _INT8))
        for shape, counts in table.items()
        for index, fragment in enumerate("ab")
    ),
    _loads("a,b", "G:m16n16k8", "tf32", "v4b32"),
    _loads("a,b", "G:m8n8k4", "f64", "f64"),
    *(
        row
        for shape, kinds, registers in (
            (_ANY_SHAPE, "f16", "v4b32"),
            (_ANY_SHAPE, "f32", "v8f32"),
            (_ANY_SHAPE, "s32", "v8s32"),
            ("G:m16n16k8", "f32", "v8f32"),
            ("G:m8n8k4", "f64", "v2f64"),
        )
        for row in (_loads("c", shape, kinds, registers), _stores(shape, kinds, registers))
    ),
    *(
        _products(_ANY_SHAPE, f".{{D:{d}}}.{{C:{c}}}{{T:}}", _ACCUMULATORS[d], "v8b32", "v8b32",
                  _ACCUMULATORS[c])
        for d in ("f16", "f32")
        for c in ("f16", "f32")
    ),
    *(
        _products(f"G:{shape}", ".f32.{T:bf16}.bf16.f32", "v8f32", _list(a, "b32"),
                  _list(b, "b32"), "v8f32")
        for shape, (a, b) in _BF16.items()
    ),
    *(
        _products(f"G:{shape}", f".s32.{{T:{kind}}}.{kind}.s32{{A2:,.satfinite}}", "v8s32",
                  _list(a, "b32"), _list(b, "b32"), "v8s32")
        for shape, (a, b) in _INT8.items()
        for kind in ("s8", "u8")
    ),
    _products("G:m16n16k8", ".f32.{T:tf32}.tf32.f32", "v8f32", "v4b32", "v4b32", "v8f32"),
    _products("G:m8n8k4", "{,.rn}.f64.{T:f64}.f64.f64", "v2f64", "f64", "f64", "v2f64"),
)  # fmt: skip
