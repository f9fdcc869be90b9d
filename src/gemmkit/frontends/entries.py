"""Which kernel of a CUDA C++ file is meant: by name, template arguments or parameter types."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gemmkit.cxx.declarations import (
    KernelDeclaration,
    closing,
    kernels_in,
    overloads_in,
    read_parameter,
    split_arguments,
)
from gemmkit.cxx.element_types import resolved, type_names
from gemmkit.errors import UsageError
from gemmkit.kernels.plan import SourceFile

_KERNEL_MACRO = re.compile(r"^[ \t]*#[ \t]*define\b(?:[^\n\\]|\\.)*__global__", re.M | re.S)
# After the types that an entry names, what stands for all others.
_ANY_OTHERS = ("...", "…")


def find_entry(
    entry: str | None, source: SourceFile, included: Sequence[str]
) -> KernelDeclaration | None:
    """The declaration of the wanted kernel; None if it is made by macros and cannot be read.

    Raises:
        UsageError: there is no such kernel, or none is asked for and there are several.
    """
    own = kernels_in(source.text)
    found = [*own, *(each for text in included for each in kernels_in(text))]
    if entry is None:
        return _only_kernel(own or found, source.name)
    wanted = re.sub(r"\s+", "", entry.partition("<")[0])
    matches = [each for each in found if each.name == wanted]
    if not matches:
        # Its namespace may be opened by a macro, or named with leading colons.
        matches = [each for each in found if each.name.split("::")[-1] == wanted.split("::")[-1]]
        matches = matches if "::" in wanted else []
    if matches:
        _check_template(entry, matches[0], source.name)
        return matches[0]
    texts = (source.text, *included)
    if any(_KERNEL_MACRO.search(text) for text in texts) and any(
        re.search(rf"[(,]\s*{re.escape(wanted)}\b", text) for text in texts
    ):
        return None
    raise UsageError(f"{source.name} has no kernel '{wanted}'; {_listed(found)}")


def split_entry(entry: str | None) -> tuple[str | None, list[str] | None]:
    """A kernel's name expression and, where it says so, the types of its parameters."""
    if entry is None or not entry.rstrip().endswith(")"):
        return entry, None
    angle = entry.find("<")
    start = closing(entry, angle) if 0 <= angle < entry.find("(") else 0
    opening = entry.find("(", max(start, 0))
    if opening <= 0:
        return entry, None
    return entry[:opening].strip(), split_arguments(entry.rstrip()[opening + 1 : -1])


def find_overload(
    name: str, types: Sequence[str], source: SourceFile, included: Sequence[str]
) -> KernelDeclaration:
    """The kernel of that name whose parameters have these types; after `…` any others may follow.

    Raises:
        UsageError: there is none, or more than one.
    """
    texts = (source.text, *included)
    wanted = re.sub(r"\s+", "", name.partition("<")[0])
    found = [each for text in texts for each in overloads_in(text) if each.name == wanted]
    if not found:
        find_entry(name, source, included)
    whole = not types or types[-1] not in _ANY_OTHERS
    aliases = type_names(texts)
    # Only a type with stars is read as one where the parameter has no name.
    asked = [
        read_parameter(f"{each} x").resolved(aliases) for each in (types if whole else types[:-1])
    ]
    given = tuple((each.type, each.stars) for each in asked)
    matches = [
        each
        for each in found
        if resolved(each, aliases).overload[: None if whole else len(given)] == given
    ]
    if len(matches) == 1:
        _check_template(name, matches[0], source.name)
        return matches[0]
    how_many = "several kernels" if matches else "no kernel"
    listed = "; ".join(f"{each.name}({', '.join(each.types)})" for each in found)
    raise UsageError(
        f"{source.name} has {how_many} '{name}({', '.join(types)})'; it has: {listed or 'none'}"
    )


def _only_kernel(found: Sequence[KernelDeclaration], file: str) -> KernelDeclaration:
    if not found:
        raise UsageError(f"{file} has no __global__ function: give a file that defines a kernel")
    if len(found) > 1:
        raise UsageError(f"{file} has several kernels: choose one with --entry; {_listed(found)}")
    _check_template(found[0].name, found[0], file)
    return found[0]


def _check_template(entry: str, kernel: KernelDeclaration, file: str) -> None:
    if kernel.template is None or "<" in entry:
        return
    if any(not default for _, default in kernel.template):
        raise UsageError(
            f"'{kernel.name}' in {file} is a template: give --entry '{_shown(kernel)}' with a "
            "template argument in place of each name"
        )


def name_expression(kernel: KernelDeclaration | None) -> str:
    """The name expression of a kernel that is asked for by no name."""
    assert kernel is not None
    return kernel.name + ("<>" if kernel.template is not None else "")


def _listed(found: Sequence[KernelDeclaration]) -> str:
    return "it has: " + (", ".join(_shown(each) for each in found) or "none")


def _shown(kernel: KernelDeclaration) -> str:
    if kernel.template is None:
        return kernel.name
    return f"{kernel.name}<{', '.join(name or '?' for name, _ in kernel.template)}>"
