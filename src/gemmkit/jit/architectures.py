"""Which architecture code needs, by what a compiler for another one says of it."""

from __future__ import annotations

import re

from gemmkit.gpu import first_board

# ptxas names a newer architecture where there is one that also has all later ones' features.
_REQUIRES = re.compile(
    r"(?:Feature|Modifier|Instruction) '([^']+)'.* requires \.target sm_(\d+\w?)"
)
_UNSUPPORTED = re.compile(r"(?:Feature|Modifier|Instruction) '([^']+)'.* not supported on \.target")
# So `cuda/ptx` names functions that the architecture does not have.
_UNRESOLVED = re.compile(
    r"__cuda_ptx_(\w+?)_is_(?:not_supported_before|only_supported_on)_SM_(\d+a?)"
)
# Instructions of one architecture alone, by how they begin; ptxas does not say which.
_OWN = {"wgmma": "90a", "setmaxnreg": "90a", "tcgen05": "100a"}
_NAMED = 3


def needed_architecture(log: str) -> str:
    """What a log of errors says that the code needs, in a sentence; empty if it says nothing."""
    needs: dict[str, str] = {}
    for pattern in (_REQUIRES, _UNRESOLVED):
        needs |= dict(pattern.findall(log))
    for name in _UNSUPPORTED.findall(log):
        word = re.split(r"[^a-z0-9]", name)[0]
        if word in _OWN:
            needs[name.split()[0]] = _OWN[word]
    if not needs:
        return ""
    most = max(needs.values(), key=_rank)
    # Those that need most say why; of them, instructions before their modifiers.
    used = sorted(needs, key=lambda name: (needs[name] != most, name.startswith(".")))
    more = f" and {len(used) - _NAMED} more" if len(used) > _NAMED else ""
    board = first_board(most)
    asked = f": give --gpu {board.key}" if board is not None else ""
    return f"it uses {', '.join(used[:_NAMED])}{more}, which need sm_{most}{asked}"


def _rank(number: str) -> tuple[int, bool]:
    return int(number.rstrip("af")), number[-1].isalpha()
