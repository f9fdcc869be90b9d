"""`in_order`: an opcode of a memory access with its modifiers in the order of the PTX ISA.

ptxas accepts the semantic, the scope and the state space in any order, and older code writes
`ld.global.acquire.gpu.b32` for `ld.acquire.gpu.global.b32`.
"""

from __future__ import annotations

_ACCESSES = frozenset(["ld", "st", "atom", "red"])
_SEMANTICS = frozenset(["volatile", "relaxed", "acquire", "release", "acq_rel"])
_SCOPES = frozenset(["cta", "cluster", "gpu", "sys"])
_SPACES = frozenset(["global", "shared", "shared::cta", "shared::cluster"])
# The default, which is mostly left out.
_WEAK = "weak"


def in_order(opcode: str) -> str:
    """The opcode with its semantic, then its scope, then its state space first; as it is if it has
    neither a semantic nor `.weak`."""
    name, *words = opcode.split(".")
    if name not in _ACCESSES or (_SEMANTICS | {_WEAK}).isdisjoint(words):
        return opcode
    first = [word for kind in (_SEMANTICS, _SCOPES, _SPACES) for word in words if word in kind]
    rest = [word for word in words if word not in first and word != _WEAK]
    return ".".join([name, *first, *rest])
