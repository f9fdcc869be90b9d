"""A user's source file made ready for NVRTC: its own includes read, host code left out."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gemmkit.cxx.declarations import without_comments
from gemmkit.cxx.includes import INCLUDE, find_include, included_files
from gemmkit.jit.cache import included_headers
from gemmkit.jit.host_code import Survey, survey, without_host_code
from gemmkit.jit.stand_ins import PRELUDE, STAND_INS, stand_in
from gemmkit.kernels.plan import SourceFile

# Constant expressions may call functions without annotation, as with nvcc.
# Libraries whose headers NVRTC can compile ask for it by this macro.
_KNOWS_NVRTC = "__CUDACC_RTC__"
# An include directive in a line that a message quotes.
_QUOTED_DIRECTIVE = re.compile(
    r'^(?P<head>[> ] *\d+ \| [ \t]*#[ \t]*include[ \t]*)(?P<name>"[^"\n]+"|<[^>\n]+>)', re.MULTILINE
)
_OPTIONS = ("-default-device", f"--pre-include={PRELUDE}")


@dataclass(frozen=True, slots=True)
class TranslationUnit:
    """What NVRTC is given: nothing in it is read from the user's disk any more.

    `cuda_headers` are those that must come with the compiler or from a CUDA toolkit. `spelled` maps
    included names, with their quotes or brackets, to what the user wrote instead.
    """

    text: str
    headers: Mapping[str, str]
    options: tuple[str, ...]
    cuda_headers: tuple[str, ...]
    spelled: Mapping[str, str]

    def as_written(self, message: str) -> str:
        """A compiler's message with the include directives in its excerpts as the user wrote
        them."""

        def written(match: re.Match[str]) -> str:
            return match["head"] + self.spelled.get(match["name"], match["name"])

        return _QUOTED_DIRECTIVE.sub(written, message)


def translate(source: SourceFile, ladder_headers: Mapping[str, str]) -> TranslationUnit:
    """Read what a source includes from its `include_dirs`, and leave host code out of it.

    Libraries made for NVRTC, such as CUTLASS, stay as they are.

    Includes that are no files there come from `ladder_headers`, from the stand-ins for headers of
    the host, or else from CUDA.

    Raises:
        UsageError: an included file cannot be read.
    """
    folder = Path(source.include_dirs[0])
    files = included_files(source.text, folder, source.include_dirs)
    whole = _made_for_nvrtc(files, source.include_dirs[1:])
    partial = [each for path, each in files.items() if path not in whole]
    unit = _Unit(folder, source.include_dirs, survey([source.text, *partial]))
    text = unit.translated(source.text, folder)
    own = {
        unit.name_of(path): unit.translated(each, path.parent, whole=path in whole)
        for path, each in files.items()
    }
    others = {name: found for name in unit.others if (found := stand_in(name)) is not None}
    headers = included_headers(text, {**others, **ladder_headers, **own})
    return TranslationUnit(
        text,
        {PRELUDE: STAND_INS[PRELUDE], **headers},
        (*_OPTIONS, *source.options),
        tuple(name for name in unit.others if name not in headers),
        unit.spelled,
    )


def _made_for_nvrtc(files: Mapping[Path, str], folders: Sequence[str]) -> set[Path]:
    """The files from those of these folders that have a file which knows of NVRTC."""
    found: set[Path] = set()
    for folder in {Path(each).resolve() for each in folders}:
        inside = {path for path in files if folder in path.parents}
        if any(_KNOWS_NVRTC in files[path] for path in inside):
            found |= inside
    return found


@dataclass(slots=True)
class _Unit:
    """The files of one translation unit; `others` are included names that are no files of it,
    `spelled` as in `TranslationUnit`."""

    folder: Path
    include_dirs: tuple[str, ...]
    survey: Survey
    others: list[str] = field(default_factory=list)
    spelled: dict[str, str] = field(default_factory=dict)

    def name_of(self, path: Path) -> str:
        """How messages and line tables call an included file: relative to the source's folder."""
        relative = Path(os.path.relpath(path, self.folder)).as_posix()
        return path.as_posix() if relative.startswith("..") else relative

    def translated(self, text: str, folder: Path, *, whole: bool = False) -> str:
        """A file's text, its includes by the names of `name_of`, without host code or `whole`."""
        plain = without_comments(text, keep_literals=True)
        for match in reversed([*INCLUDE.finditer(plain)]):
            name = match["quoted"] or match["bracketed"]
            path = find_include(match["quoted"], match["bracketed"], folder, self.include_dirs)
            if path is not None:
                replaced = f'"{self.name_of(path)}"'
            else:
                replaced = f"<{name}>"
                if name not in self.others:
                    self.others.append(name)
            self.spelled[replaced] = match[0].removeprefix(match["head"])
            text = f"{text[: match.end('head')]}{replaced}{text[match.end() :]}"
        return text if whole else without_host_code(text, self.survey)
