"""Makes NVRTC's and ptxas's messages readable: each with the source lines that it is about."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gemmkit.cxx.declarations import kernels_in
from gemmkit.file_directives import file_names
from gemmkit.jit.advice import advice

# The name that NVRTC gives to the place where it looks a name expression up.
_NAME_EXPRESSION_FILE = "__nv_name_map"

# One wrong line often has others follow; the first few say it.
ERRORS_SHOWN = 4

_DIAGNOSTIC = re.compile(r"(?P<file>\S.*?)\((?P<line>\d+)\): (?P<text>.+)")
_CARET = re.compile(r"\s*\^\s*")
_PTXAS_LINE = re.compile(r"ptxas .*, line (?P<line>\d+); (?P<kind>\w+) *: (?P<text>.+)")
_PTXAS_FIGURES = re.compile(r"ptxas (info |  +\.)")
_LOC = re.compile(r"\s*\.loc\s+(?P<file>\d+)\s+(?P<line>\d+)")
_OVERLOADED = "cannot determine which instance of overloaded function"
_NAME_EXPRESSION_SUMMARY = "Error in parsing name expression"
_LAUNCH_BOUNDS = re.compile(r"__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)")
_KERNEL = re.compile(r"__global__[\s\w:]*?(\w+)\s*\(")
_UNSET = re.compile(
    r'^(?P<file>\S.*?)\((?P<line>\d+)\): warning #549-D: variable "(?P<name>.+?)" is used before',
    re.MULTILINE,
)


def render_log(log: str, sources: Mapping[str, str], entry: str, ptx: str) -> str:
    """The log of a failed compilation with numbered source lines.

    Of many errors it has the first few. `sources` maps file names, as in the log, to text. Messages
    about the name expression speak of `entry`; those of ptxas, which name lines of `ptx`, are
    traced to the source by its `.loc` lines. ptxas's resource figures are left out.
    """
    blocks = []
    shown, left = _first_errors(log)
    for paragraph in re.split(r"\n\s*\n", shown):
        lines = [line for line in paragraph.split("\n") if line.strip()]
        rendered = "\n".join(_render_paragraph(lines, sources, entry, ptx))
        if rendered:
            blocks.append(rendered)
    if left:
        blocks.append(f"and {left} more error{'s' * (left > 1)}")
    if _NAME_EXPRESSION_FILE in log:
        texts = [_LAUNCH_BOUNDS.sub("", text) for text in sources.values()]
        kernels = {name: name for text in texts for name in _KERNEL.findall(text)}
        read = (each for text in texts for each in kernels_in(text))
        kernels |= {each.name.split("::")[-1]: each.with_template for each in read}
        blocks.append(f"kernels in these files: {', '.join(sorted(kernels.values())) or 'none'}")
    if _OVERLOADED in log:
        blocks.append(
            f"several functions are called '{entry.partition('<')[0]}': give the types of its "
            f"parameters as well, as in --entry '{entry}(const float *, …)', or give the kernel a "
            "name of its own"
        )
    blocks += advice(log, sources)
    return "\n\n".join(blocks)


def _first_errors(log: str) -> tuple[str, int]:
    """A log with its first few errors only, and how many are left out."""
    seen, paragraphs = 0, []
    for paragraph in re.split(r"\n\s*\n", log):
        lines = []
        for line in paragraph.split("\n"):
            ptxas = _PTXAS_LINE.match(line)
            seen += ptxas is not None
            if ptxas is None or seen <= ERRORS_SHOWN:
                lines.append(line)
        first = _DIAGNOSTIC.match(lines[0]) if lines else None
        is_error = first is not None and "error" in first["text"].partition(":")[0]
        seen += is_error
        if not is_error or seen <= ERRORS_SHOWN:
            paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs), max(0, seen - ERRORS_SHOWN)


def unset_variables(log: str) -> list[tuple[str, int, str]]:
    """File, line and name of each variable that a log warns is used before it is set."""
    found = [(each["file"], int(each["line"]), each["name"]) for each in _UNSET.finditer(log)]
    return list(dict.fromkeys(found))


def excerpt(text: str, line: int, column: int | None = None) -> list[str]:
    """Line `line` of `text` (from 1) between its neighbors, marked, with a caret at `column`.

    `column` counts from 0. There is no excerpt of a line that the text does not have.
    """
    lines = text.rstrip("\n").split("\n")
    if not 1 <= line <= len(lines):
        return []
    shown = []
    for number in range(max(line - 1, 1), min(line + 1, len(lines)) + 1):
        mark = ">" if number == line else " "
        shown.append(f"{mark}{number:5} | {lines[number - 1]}".rstrip())
        if number == line and column is not None:
            before = re.sub(r"[^\t]", " ", lines[line - 1][:column])
            shown.append(f"{'':6} | {before}^")
    return shown


def _render_paragraph(
    lines: list[str], sources: Mapping[str, str], entry: str, ptx: str
) -> Iterator[str]:
    file, number = "", 0
    for index, line in enumerate(lines):
        following = lines[index + 1] if index + 1 < len(lines) else ""
        if _CARET.fullmatch(line) or _PTXAS_FIGURES.match(line):
            continue
        if _CARET.fullmatch(following) and file in sources:
            yield from _excerpt_at(sources[file], number, line, following)
        elif _CARET.fullmatch(following) and file == _NAME_EXPRESSION_FILE:
            continue
        elif ptxas := _PTXAS_LINE.match(line):
            yield f"ptxas: {ptxas['kind']}: {ptxas['text']}"
            yield from _trace(ptx, int(ptxas["line"]), sources)
        elif found := _DIAGNOSTIC.fullmatch(line):
            file, number = found["file"], int(found["line"])
            if file != _NAME_EXPRESSION_FILE:
                yield f"{file}:{number}: {found['text']}"
            elif _NAME_EXPRESSION_SUMMARY not in found["text"]:
                yield f"entry '{entry}': {found['text']}"
        else:
            yield line.rstrip()
            if _CARET.fullmatch(following):
                yield following


def _excerpt_at(text: str, number: int, echo: str, caret: str) -> Iterator[str]:
    # NVRTC's echo is indented by two; where it shows something else (a macro's expansion), its
    # column means nothing in the source line.
    lines = text.rstrip("\n").split("\n")
    same = 1 <= number <= len(lines) and lines[number - 1].rstrip() == echo[2:].rstrip()
    yield from excerpt(text, number, caret.index("^") - 2 if same else None)


def _trace(ptx: str, ptx_line: int, sources: Mapping[str, str]) -> Iterator[str]:
    lines = ptx.splitlines()
    names = file_names(ptx)
    for line in reversed(lines[:ptx_line]):
        if location := _LOC.match(line):
            name, number = names.get(int(location["file"]), ""), int(location["line"])
            yield f"from {name}:{number}"
            yield from excerpt(sources.get(name, ""), number)
            break
    if 1 <= ptx_line <= len(lines):
        yield f"in PTX: {lines[ptx_line - 1].strip()}"
