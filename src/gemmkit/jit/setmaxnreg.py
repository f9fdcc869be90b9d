"""Whether ptxas ignores the `setmaxnreg` of a kernel, which it says in its log and nowhere else."""

from __future__ import annotations

import re

# ptxas 13.0, messages C7504 to C7508. That of `-G` is left out: such code is for debugging only.
_UNKNOWN = "unable to determine register count at entry"
_REASONS = {
    _UNKNOWN: "it cannot tell how many registers a thread has at entry; write "
    "__launch_bounds__({threads}, 1): without the second number, the count at entry stays open",
    "to maintain compatibility across compilation units": "the code is compiled to be linked",
    "to maintain compatibility into 'extern' call": "the kernel calls a function that is not in "
    "its file",
    "to maintain minimum register requirements": "the kernel needs more registers than it leaves",
}
_IGNORED = re.compile(r"'setmaxnreg' ignored[; ]+([^\n.]+)")
_USES = re.compile(r"\bsetmaxnreg\.")
_ENTRY = re.compile(r"\.entry\s+(?P<name>[\w$]+)\s*(?:\([^)]*\))?(?P<directives>[^{]*)\{")
_DIRECTIVE = re.compile(r"\.(maxntid|reqntid|minnctapersm|maxnreg)\b")


def setmaxnreg_ignored(ptx: str, entry: str, log: str, threads: int) -> str:
    """Why ptxas ignores the kernel's `setmaxnreg`, and what to do; empty if it heeds them.

    Its log does not say of which kernel it speaks. So where several use the instruction, or there
    is no log, the kernel's performance directives decide: the count at entry is known from
    `.maxnreg`, or from `.minnctapersm` with the number of threads. `threads` is that of a block
    of the launch.
    """
    # Nearly no kernel has it, and a plain search takes a hundredth of the pattern's time.
    if "setmaxnreg." not in ptx or not _USES.search(ptx):
        return ""
    found = [*_ENTRY.finditer(ptx)]
    using = [
        each["name"]
        for each, end in zip(
            found, [*(other.start() for other in found[1:]), len(ptx)], strict=True
        )
        if _USES.search(ptx, each.end(), end)
    ]
    given = {
        name for each in found if each["name"] == entry for name in _DIRECTIVE.findall(each[2])
    }
    bounded = not given.isdisjoint({"maxntid", "reqntid"})
    known = "maxnreg" in given or ("minnctapersm" in given and bounded)
    told = dict.fromkeys(_IGNORED.findall(log) if log else [_UNKNOWN] * (not known))
    if known and len(using) > 1:
        told.pop(_UNKNOWN, None)
    reason = next((_REASONS[each] for each in told if each in _REASONS), "")
    return reason.format(threads=threads)
