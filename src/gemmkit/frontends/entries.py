"""Which kernel of a CUDA C++ file is meant: by name, template arguments or parameter types."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gemmkit.cxx.conditionals import Compiled, defined_by
from gemmkit.cxx.declarations import (
    KernelDeclaration,
    closing,
    kernels_in,
    overloads_in,
    read_parameter,
    split_arguments,
)
from gemmkit.cxx.element_types import resolved, type_names
from gemmkit.cxx.macros import expanded, macros_in
from gemmkit.errors import UsageError
from gemmkit.kernels.plan import SourceFile

_KERNEL_MACRO = re.compile(r"^[ \t]*#[ \t]*define\b(?:[^\n\\]|\\.)*__global__", re.M | re.S)
# Words that are no types, in all likelihood.
_MACRO = re.compile(r"[A-Z][A-Z0-9_]{2,}")
_WORD = re.compile(r"[A-Za-z_]\w*")
# After the types that an entry names, what stands for all others.
_ANY_OTHERS = ("...", "…")


@dataclass(frozen=True, slots=True)
class Declared:
    """A kernel's declaration, if it can be read, in a source and what that includes."""

    kernel: KernelDeclaration | None
    text: str
    included: Mapping[Path, str]


def declared_in(
    seen: Compiled, source: SourceFile, entry: str | None, types: Sequence[str] | None
) -> Declared:
    """The declaration of the wanted kernel, with macros in place where those hide its name or
    parameters; `types` choose among several of its name.

    Raises:
        UsageError: there is no such kernel, or several.
    """

    def find(text: str, included: Mapping[Path, str]) -> KernelDeclaration | None:
        visible, others = replace(source, text=text), tuple(included.values())
        if types is None:
            return find_entry(entry, visible, others)
        return find_overload(str(entry), types, visible, others)

    texts = seen.text, *seen.included.values()
    macros = macros_in(texts[1:], defined_by(source.options))
    known = macros.keys() | macros_in(texts, {}).keys()
    found, refusal = None, None
    try:
        found = find(seen.text, seen.included)
        if found is not None and not _spells(found, known):
            return Declared(found, seen.text, seen.included)
    except UsageError as error:
        if not known:
            raise
        refusal = error
    text = expanded(seen.text, macros)
    included = {path: expanded(each, macros) for path, each in seen.included.items()}
    try:
        again = find(text, included)
    except UsageError:
        if refusal is not None:
            raise
        again = found
    return Declared(again, text, included)


def check_read(kernel: KernelDeclaration, file: str) -> None:
    """Check that no parameters come from a macro which nothing that is read defines.

    Raises:
        UsageError: some do.
    """
    if hides_parameters(kernel):
        listed = ", ".join(map(str, kernel.parameters))
        raise UsageError(
            f"{file}:{kernel.line}: the parameters ({listed}) of '{kernel.name}' come from a macro "
            "that cannot be read: give --args for those of the compiled kernel, in order, or -I "
            "with the folder of the header that defines it"
        )


def hides_parameters(kernel: KernelDeclaration) -> bool:
    """Whether a word among the parameters can only be a macro, and so stand for any number."""
    return any(not each.name and _MACRO.fullmatch(each.type) for each in kernel.parameters)


def _spells(kernel: KernelDeclaration, macros: Collection[str]) -> bool:
    """Whether a declaration has names of macros among its parameters."""
    words = {word for each in kernel.parameters for word in _WORD.findall(str(each))}
    return not words.isdisjoint(macros)


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
            f"'{kernel.name}' in {file} is a template: give --entry '{kernel.with_template}' with "
            "a template argument in place of each name"
        )


def name_expression(kernel: KernelDeclaration | None) -> str:
    """The name expression of a kernel that is asked for by no name."""
    assert kernel is not None
    return kernel.name + ("<>" if kernel.template is not None else "")


def _listed(found: Sequence[KernelDeclaration]) -> str:
    return "it has: " + (", ".join(each.with_template for each in found) or "none")
