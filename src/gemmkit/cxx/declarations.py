"""Reads from CUDA C++ text which kernels it has: their names, template parameters and arguments.

This is no compiler: preprocessor conditions and macros are passed over. What cannot be read is left
out, and the user is asked for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

_COMMENT_OR_LITERAL = re.compile(
    r'//(?:[^\n\\]|\\.)*|/\*.*?(?:\*/|\Z)|\bR"(?P<mark>[^()\s]*)\(.*?\)(?P=mark)"'
    r'|"(?:[^"\\\n]|\\.)*"|(?<![0-9a-fA-F])\'(?:[^\'\\\n]|\\.)+\'',
    re.DOTALL,
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.)*", re.MULTILINE | re.DOTALL)
_CONDITIONAL = re.compile(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|elif\w*|else|endif)\b", re.MULTILINE)
_ALTERNATIVE = re.compile(r"^[ \t]*#[ \t]*el(?:se|if)", re.MULTILINE)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([^\n\\]+)$", re.MULTILINE)
# A macro that stands for `__global__`, perhaps with more around it.
_KERNEL_WORD = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(?:[^\n\\]|\\.)*?\b__global__\b",
    re.MULTILINE | re.DOTALL,
)
_CONSTANT = re.compile(
    r"\b(?:(?:static|inline|const|constexpr|__device__|__constant__)\s+)+"
    r"(?:unsigned\s+)?(?:int|unsigned|long|size_t|u?int32_t|auto)\s+(\w+\s*[={][^;\"]+);"
)
_ENUMERATORS = re.compile(r"\benum\b[^{;()]*\{([^{}]*)\}")
_COMMA = re.compile(r",(?![^(]*\))")
_INITIALIZED = re.compile(r"(\w+)\s*(?:=\s*([^{}]+)|\{([^{}]+)\})")
_ALIAS = re.compile(r"\busing\s+(?P<name>\w+)\s*=\s*(?P<type>[^;{}()]+);")
_TYPEDEF = re.compile(r"\btypedef\s+(?P<type>[^;{}()\[\]]*[\s*&])(?P<name>\w+)\s*;")
_WORD = re.compile(r"[A-Za-z_]\w*")
_SCOPE = re.compile(r"\bnamespace\s+([\w:]*)\s*\{|[{}]")
_QUALIFIERS = re.compile(
    r"\b(?:const|volatile|__restrict__|__restrict|restrict|__grid_constant__|struct|register)\b"
)
_NO_TYPE = re.compile(r"\b(?:__restrict__|__restrict|restrict|__grid_constant__|register)\b")
# Attributes with brackets that may stand between `__global__` and the kernel's name.
_ATTRIBUTES = frozenset([
    "__launch_bounds__", "__cluster_dims__", "__block_size__", "__maxnreg__", "__attribute__",
    "__declspec", "alignas",
])  # fmt: skip
_TYPE_WORDS = frozenset(
    ["unsigned", "signed", "char", "short", "int", "long", "float", "double", "bool", "void"]
)
_OPEN, _CLOSE = "([{<", ")]}>"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: `type` without qualifiers and stars; an empty name where it has none.

    `stars` is how often a value must be followed to come to one of that type.
    """

    name: str
    type: str
    stars: int

    def resolved(self, types: Mapping[str, str]) -> Parameter:
        """The parameter with its type replaced by what it stands for, where that is known."""
        found, seen = self, set[str]()
        while found.type in types and found.type not in seen:
            seen.add(found.type)
            meant = read_parameter(types[found.type])
            found = Parameter(self.name, meant.type, found.stars + meant.stars)
        return found

    @property
    def pointer(self) -> bool:
        """Whether its value is an address."""
        return self.stars > 0

    def __str__(self) -> str:
        return f"{self.type}{'*' * self.stars} {self.name}".strip()


@dataclass(frozen=True, slots=True)
class KernelDeclaration:
    """A `__global__` function; `template` lists its template parameters, None if it is not a
    template.

    `name` is qualified by its namespaces, `line` counts from 1. Each template parameter is a name
    and its default (empty if none). `types` are those of the parameters as the text spells them.
    """

    name: str
    parameters: tuple[Parameter, ...]
    template: tuple[tuple[str, str], ...] | None = None
    is_definition: bool = True
    line: int = field(default=0, compare=False)
    types: tuple[str, ...] = field(default=(), compare=False)

    @property
    def overload(self) -> tuple[tuple[str, int], ...]:
        """What tells it from others of its name: type and stars of each parameter."""
        return tuple((each.type, each.stars) for each in self.parameters)

    @property
    def with_template(self) -> str:
        """The name, of a template with its parameters, as in `gemm<BM, BN>`."""
        if self.template is None:
            return self.name
        return f"{self.name}<{', '.join(name or '?' for name, _ in self.template)}>"


def without_comments(text: str, *, keep_literals: bool = False) -> str:
    """The text with comments, and the content of literals, blanked; positions stay."""

    def blank(match: re.Match[str]) -> str:
        found = match[0]
        if found[0] == "/":
            return re.sub(r"[^\n]", " ", found)
        if keep_literals:
            return found
        return found[0] + re.sub(r"[^\n]", " ", found[1:-1]) + found[-1]

    return _COMMENT_OR_LITERAL.sub(blank, text)


def _with_braces_once(text: str) -> str:
    if "#" not in text or not _ALTERNATIVE.search(text):
        return text
    characters = list(text)
    open_groups: list[list[int]] = []
    for match in _CONDITIONAL.finditer(text):
        word = match[1]
        if word.startswith("if"):
            open_groups.append([match.end()])
        elif open_groups:
            starts = open_groups[-1]
            starts.append(match.end())
            if word != "endif":
                continue
            open_groups.pop()
            first, *others = [slice(start, end) for start, end in pairwise(starts)]
            depth = _depth(characters[first])
            for branch in others:
                if depth and _depth(characters[branch]) == depth:
                    blanked = (" " if each in "{}" else each for each in characters[branch])
                    characters[branch] = blanked
    return "".join(characters)


def _depth(characters: Sequence[str]) -> int:
    return characters.count("{") - characters.count("}")


def without_directives(text: str) -> str:
    """The text with preprocessor lines blanked; positions stay.

    Where alternatives of one condition open or close the same block, as two heads of one function
    do, the braces of the first one stay, so that braces match.
    """
    text = _with_braces_once(text)
    return _DIRECTIVE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def kernels_in(text: str) -> tuple[KernelDeclaration, ...]:
    """The kernels of a source text, in order; where one is declared too, its definition.

    Of several by one name, such as alternatives of a preprocessor condition, it is the first.
    """
    found: dict[str, KernelDeclaration] = {}
    for kernel in overloads_in(text):
        if kernel.name not in found or not found[kernel.name].is_definition:
            found[kernel.name] = kernel
    return tuple(found.values())


def overloads_in(text: str) -> tuple[KernelDeclaration, ...]:
    """The same with every kernel of a name whose parameters have other types."""
    uncommented = without_comments(text)
    plain = without_directives(uncommented)
    for name in _KERNEL_WORD.findall(uncommented):
        plain = re.sub(rf"\b{name}\b", "__global__", plain)
    found: dict[tuple[object, ...], KernelDeclaration] = {}
    aliases = aliases_in(plain)
    for match in re.finditer(r"\b__global__\b", plain):
        kernel = _read_kernel(plain, match.start(), match.end(), aliases)
        if kernel is None:
            continue
        key = kernel.name, kernel.overload
        if key not in found or not found[key].is_definition:
            found[key] = kernel
    return tuple(found.values())


def constants_in(text: str) -> dict[str, str]:
    """Object-like macros and constant integers of a text, each with the text of its value."""
    plain = without_comments(text)
    found = {name: value.strip() for name, value in _DEFINE.findall(plain)}
    code = without_directives(plain)
    for declared in (*_CONSTANT.findall(code), *_ENUMERATORS.findall(code)):
        parts = (part.strip() for part in _COMMA.split(declared))
        for part in map(_INITIALIZED.fullmatch, parts):
            if part is not None:
                found[part[1]] = (part[2] or part[3]).strip()
    return found


def body_of(kernel: KernelDeclaration, text: str) -> str:
    """The code of a kernel between its braces; empty where the text does not define it."""
    plain = without_comments(text)
    for match in re.finditer(rf"\b{kernel.name.split('::')[-1]}\s*\(", plain):
        close = closing(plain, match.end() - 1)
        opening = re.compile(r"\s*\{").match(plain, close + 1) if close >= 0 else None
        if opening is not None:
            return plain[opening.end() : closing(plain, opening.end() - 1)]
    return ""


def closing(text: str, start: int) -> int:
    """The position of the bracket that closes the one at `start`, or -1.

    Round, square and curly brackets count; angle ones only if `start` is one.
    """
    angle = text[start] == "<"
    depth = 0
    for position in range(start, len(text)):
        character = text[position]
        if character in "([{" or (angle and character == "<"):
            depth += 1
        elif character in ")]}" or (angle and character == ">"):
            depth -= 1
            if depth == 0:
                return position
    return -1


def split_arguments(text: str) -> list[str]:
    """The parts between the commas outside of brackets, angle ones too; none for a blank text."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in _OPEN) - (character in _CLOSE)
        if character == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    parts.append(text[start:].strip())
    return parts if any(parts) else []


def aliases_in(plain: str) -> dict[str, str]:
    """Types by other names that mean the same wherever a text without comments declares them."""
    found: dict[str, set[str]] = {}
    for match in (*_ALIAS.finditer(plain), *_TYPEDEF.finditer(plain)):
        found.setdefault(match["name"], set()).add(match["type"].strip())
    return {name: types.pop() for name, types in found.items() if len(types) == 1}


def _read_kernel(
    plain: str, start: int, end: int, aliases: Mapping[str, str]
) -> KernelDeclaration | None:
    found = _name_and_list(plain, end)
    if found is None:
        return None
    name, opening, close = found
    declared = [part for part in split_arguments(plain[opening + 1 : close]) if part != "void"]
    after = plain[close + 1 :].lstrip()
    return KernelDeclaration(
        name="::".join([*_namespaces(plain, start), name]),
        parameters=tuple(read_parameter(each).resolved(aliases) for each in declared),
        template=_read_template(plain, start, aliases),
        is_definition=after.startswith("{"),
        line=plain.count("\n", 0, opening) + 1,
        types=tuple(map(_type_of, declared)),
    )


def _type_of(parameter: str) -> str:
    """The type of a parameter as it is declared, without the parameter's name and default."""
    text = _NO_TYPE.sub(" ", parameter.partition("=")[0])
    name = read_parameter(parameter).name
    if name:
        head, _, tail = text.rpartition(name)
        text = head + tail
    return " ".join(re.sub(r"\[[^]]*\]", "*", text).split())


def _name_and_list(plain: str, position: int) -> tuple[str, int, int] | None:
    """The name after `__global__`, and where its parameter list opens and closes."""
    while True:
        word = _WORD.search(plain, position)
        if word is None or re.search(r"[;{}<=]", plain[position : word.start()]):
            return None
        position = word.end()
        bracket = re.compile(r"\s*\(").match(plain, position)
        if bracket is None:
            continue
        opening = bracket.end() - 1
        close = closing(plain, opening)
        if close < 0:
            return None
        after = plain[close + 1 :].lstrip()[:1]
        if word[0] not in _ATTRIBUTES and after in ("{", ";"):
            return word[0], opening, close
        position = close + 1


def _namespaces(plain: str, end: int) -> Iterator[str]:
    """Names of the namespaces that are open at a position."""
    open_scopes: list[str] = []
    for match in _SCOPE.finditer(plain, 0, end):
        if match[0] == "}":
            del open_scopes[-1:]
        else:
            open_scopes.append(match[1] or "")
    return (name for name in open_scopes if name)


def _read_template(
    plain: str, start: int, aliases: Mapping[str, str]
) -> tuple[tuple[str, str], ...] | None:
    """The template parameters in front of a declaration that has `__global__` at `start`."""
    parts = _template_parts(plain, start)
    if parts is None:
        return None
    found = []
    for part in parts:
        declared, _, default = part.partition("=")
        words = _WORD.findall(declared)
        default = aliases.get(default.strip(), default.strip())
        found.append((words[-1] if len(words) > 1 else "", default))
    return tuple(found)


def template_names(plain: str, start: int) -> tuple[str, ...]:
    """The names of the template parameters of what is declared at `start`."""
    declared = (part.partition("=")[0] for part in _template_parts(plain, start) or ())
    return tuple(_WORD.findall(each)[-1] for each in declared if _WORD.search(each))


def _template_parts(plain: str, start: int) -> list[str] | None:
    """The template parameters of what is declared at `start`; None if it is not a template."""
    head_start = max(plain.rfind(mark, 0, start) for mark in ";}") + 1
    heads = [*re.finditer(r"\btemplate\s*<", plain[head_start:start])]
    if not heads:
        return None
    opening = head_start + heads[-1].end() - 1
    close = closing(plain, opening)
    return split_arguments(plain[opening + 1 : close]) if 0 <= close < start else None


def read_parameter(text: str) -> Parameter:
    """A parameter, or a field of a struct, from its declaration."""
    declared = _QUALIFIERS.sub(" ", text.partition("=")[0])
    outside = re.sub(r"<.*>", "", declared)
    # An array is a pointer to its elements, a pointer to an array one to the array's elements.
    stars = outside.count("*") + ("[" in outside and "(" not in outside)
    declared = re.sub(r"\[[^]]*\]|[*&()]", " ", declared)
    words = declared.split()
    name = ""
    if len(words) > 1 and words[-1] not in _TYPE_WORDS and _WORD.fullmatch(words[-1]):
        name = words.pop()
    return Parameter(name, " ".join(words), stars)
