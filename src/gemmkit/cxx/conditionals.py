"""What the preprocessor leaves of a source: text in branches that conditions rule out is blanked.

Macros are followed through the user's own files, line by line. A condition that depends on
what other headers or the compiler define is left open: then all of its branches stay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gemmkit.cxx.conditions import condition
from gemmkit.cxx.declarations import without_comments
from gemmkit.cxx.includes import INCLUDE, find_include, included_files

_LINE = re.compile(r"^[^\n]*?(?:\\\n[^\n]*?)*(?:\n|\Z)", re.MULTILINE)
_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(?P<word>[a-z]+)\b(?P<rest>.*)", re.DOTALL)
_NAME = re.compile(r"(?<!\w)[A-Za-z_]\w*")
_DEFINES = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
_DEFINE = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)(?P<call>\()?(?P<value>.*)", re.DOTALL)
_DEFINED = re.compile(r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))")
# Who else defines macros: the compiler (`__CUDA_ARCH__`), the host's headers, CUDA's libraries.
_FOREIGN = re.compile(r"_|CU|NV|CCCL|THRUST|WIN|(?:\w+_(?:MAX|MIN)|NULL|NAN|INFINITY|M_\w+)$")
# What NVRTC defines, and not to what: a condition on its value stays open.
_COMPILERS = ("__CUDACC__", "__CUDACC_RTC__", "__CUDA_ARCH__", "__cplusplus")
_DEFINITION = re.compile(
    r"(?:-D|--define-macro=|--define-macro )\s*(?P<name>\w+)(?P<call>\()?(?P<value>=?.*)", re.DOTALL
)
_REMOVAL = re.compile(r"(?:-U|--undefine-macro=|--undefine-macro )\s*(?P<name>\w+)")
# Macros that stand for macros, so deep.
_MOST_STEPS = 16
# Files that include each other, so deep.
_DEEPEST = 50


@dataclass(frozen=True, slots=True)
class Compiled:
    """A source and the files that it includes, by their paths, as the preprocessor leaves them.

    Directives stay, except in branches that are ruled out; positions stay.
    """

    text: str
    included: Mapping[Path, str]


def compiled(
    text: str, folder: Path, include_dirs: Sequence[str], options: Sequence[str] = ()
) -> Compiled:
    """Blank what conditions rule out in `text`, itself in `folder`, and in what it includes.

    Of a file that is included several times, what is left of it at any of them is left. `options`
    are the compiler's, which may define macros.

    Raises:
        UsageError: an included file cannot be read.
    """
    files = included_files(text, folder, include_dirs)
    if "#" not in text:
        return Compiled(text, files)
    texts = (text, *files.values())
    own = frozenset(name for each in texts for name in _DEFINES.findall(each))
    walk = _Walk(files, include_dirs, defined_by(options), own)
    main = walk.through(text, folder)
    # What is not reached is included only by what was ruled out.
    return Compiled(main, {path: walk.left.get(path, _blank(each)) for path, each in files.items()})


def defined_by(options: Sequence[str]) -> dict[str, str | None]:
    """The macros of a compiler's options; None for those that have arguments."""
    macros: dict[str, str | None] = {}
    for option in options:
        if found := _DEFINITION.fullmatch(option):
            value = found["value"].removeprefix("=") if found["value"] else "1"
            macros[found["name"]] = None if found["call"] else value
        elif found := _REMOVAL.fullmatch(option):
            macros.pop(found["name"], None)
    return macros


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


@dataclass(slots=True)
class _Branches:
    """An open condition: whether the line is `active` in it (None: open), whether an earlier branch
    was `taken`, and whether it stands in active text."""

    inside: bool | None
    active: bool | None
    taken: bool | None


@dataclass(slots=True)
class _Walk:
    """Goes through lines as the preprocessor does; `macros` by name, None where not to be known."""

    files: Mapping[Path, str]
    include_dirs: Sequence[str]
    macros: dict[str, str | None]
    # What the user's files define somewhere, such as the guards of headers.
    own: frozenset[str]
    left: dict[Path, str] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    once: set[Path] = field(default_factory=set)
    depth: int = 0

    def through(self, text: str, folder: Path, path: Path | None = None) -> str:
        # A line in a raw string is no directive, and an include names its file in a literal.
        plain, named = (without_comments(text, keep_literals=each) for each in (False, True))
        open_branches: list[_Branches] = []
        kept = []
        for line in _LINE.finditer(plain):
            if not line[0]:
                continue
            original = text[line.start() : line.end()]
            active = open_branches[-1].active if open_branches else True
            found = _DIRECTIVE.match(line[0])
            if found is None:
                kept.append(original if active is not False else _blank(original))
                continue
            word, rest = found["word"], found["rest"].replace("\\\n", " ")
            if self._branch(word, rest, open_branches):
                kept.append(original)
                continue
            if active is False:
                kept.append(_blank(original))
                continue
            kept.append(original)
            whole = named[line.start() : line.end()]
            self._follow(word, rest, whole, folder, path, sure=active is True)
        return "".join(kept)

    def _branch(self, word: str, rest: str, branches: list[_Branches]) -> bool:
        """Follow a directive that opens or closes a branch; returns whether it is one."""
        if word in ("if", "ifdef", "ifndef"):
            inside = branches[-1].active if branches else True
            holds = self._holds(word, rest) if inside is not False else False
            branches.append(_Branches(inside, _both(inside, holds), holds))
        elif word in ("elif", "elifdef", "elifndef", "else"):
            if branches:
                top = branches[-1]
                holds = True if word == "else" else self._holds(word.removeprefix("el"), rest)
                free = None if top.taken is None else not top.taken
                top.active = _both(top.inside, _both(free, holds))
                top.taken = _either(top.taken, holds)
        elif word == "endif":
            del branches[-1:]
        else:
            return False
        return True

    def _follow(
        self, word: str, rest: str, line: str, folder: Path, path: Path | None, *, sure: bool
    ) -> None:
        """Follow any other directive; not `sure` if an open condition decides on it."""
        if word == "define" and (found := _DEFINE.match(rest)):
            known = sure and not found["call"]
            self.macros[found["name"]] = found["value"].strip() if known else None
            self.removed.discard(found["name"])
            if not sure:
                self.removed.add(found["name"])
        elif word == "undef" and (name := _NAME.search(rest)):
            if sure:
                self.macros.pop(name[0], None)
                self.removed.discard(name[0])
            elif name[0] in self.macros:
                self.macros[name[0]] = None
                self.removed.add(name[0])
        elif word == "pragma" and rest.split() == ["once"] and path is not None:
            self.once.add(path)
        elif word == "include" and (included := INCLUDE.match(line)):
            self._include(included["quoted"], included["bracketed"], folder)

    def _include(self, quoted: str | None, bracketed: str | None, folder: Path) -> None:
        path = find_include(quoted, bracketed, folder, self.include_dirs)
        if path is None or path not in self.files or path in self.once or self.depth > _DEEPEST:
            return
        self.depth += 1
        seen = self.through(self.files[path], path.parent, path)
        self.depth -= 1
        before = self.left.get(path)
        if before is not None:
            seen = "".join(
                one if one != " " else other for one, other in zip(before, seen, strict=True)
            )
        self.left[path] = seen

    def _holds(self, word: str, rest: str) -> bool | None:
        if word == "if":
            return self._value(rest)
        name = _NAME.search(rest)
        if name is None:
            return None
        found = self._is_defined(name[0])
        return found if found is None or word == "ifdef" else not found

    def _is_defined(self, name: str) -> bool | None:
        if name in self.removed:
            return None
        if name in self.macros or name in _COMPILERS:
            return True
        return None if self._may_be_foreign(name) else False

    def _may_be_foreign(self, name: str) -> bool:
        """Whether others than the user's files may define a macro."""
        return name in _COMPILERS or (name not in self.own and bool(_FOREIGN.match(name)))

    def _value(self, text: str) -> bool | None:
        """Whether a condition holds; None where that depends on what is not known."""

        def defined(found: re.Match[str]) -> str:
            known = self._is_defined(found[1] or found[2])
            return "__unknown" if known is None else str(int(known))

        try:
            found = condition(self._expanded(_DEFINED.sub(defined, text)))
        except (ValueError, RecursionError):
            return None
        return None if found is None else bool(found)

    def _expanded(self, text: str) -> str:
        """A condition with its macros in place; names that stay are unknown, and all others 0."""
        for _ in range(_MOST_STEPS):
            before = text
            text = _NAME.sub(lambda found: self._meaning(found[0]), text)
            if text == before:
                return text
        return "__unknown"

    def _meaning(self, name: str) -> str:
        if name in ("__unknown", "true", "false"):
            return name
        if name in self.removed or (name in self.macros and self.macros[name] is None):
            return "__unknown"
        if name in self.macros:
            return f"({self.macros[name]})" if self.macros[name] else "__unknown"
        return "__unknown" if self._may_be_foreign(name) else "0"


def _both(one: bool | None, other: bool | None) -> bool | None:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def _either(one: bool | None, other: bool | None) -> bool | None:
    if one is True or other is True:
        return True
    return None if one is None or other is None else False
