"""The names of source files in PTX: how `.file` directives hold them, and how they are read."""

from __future__ import annotations

import re

# Its groups are the file's number and the name as written.
FILE_DIRECTIVE = re.compile(r'\.file\s+(\d+)\s+"((?:[^"\\\n]|\\.)*)"[^\n]*')

_ESCAPE = re.compile(rb"\\([0-7]{1,3}|.)", re.DOTALL)
# Characters that NVRTC writes into PTX in a way that ptxas cannot read; in their place it is given
# a character of Unicode's private use area.
_STAND_INS = {each: chr(0xE000 + ord(each)) for each in '"\r\n'}


def file_names(ptx: str) -> dict[int, str]:
    """The name of each source file of a PTX text, by its number."""
    return {int(number): unescaped(name) for number, name in FILE_DIRECTIVE.findall(ptx)}


def unescaped(text: str) -> str:
    r"""A string of PTX without its escapes: `\\`, `\"` and the octal bytes of UTF-8."""

    def meant(escape: re.Match[bytes]) -> bytes:
        found = escape[1]
        return bytes([int(found, 8) & 0xFF]) if found.isdigit() else found

    return _ESCAPE.sub(meant, text.encode()).decode(errors="replace")


def text_name(name: str) -> str:
    """A file name with `?` in place of bytes that are not UTF-8, as records need."""
    return name.encode(errors="replace").decode()


def with_stand_ins(name: str) -> str:
    """A file name that NVRTC can write into PTX; see `in_ptx` and `in_log`."""
    for each, stand_in in _STAND_INS.items():
        name = name.replace(each, stand_in)
    return name


def in_ptx(text: str) -> str:
    """PTX with the octal escapes of the original characters in place of their stand-ins."""
    for each, stand_in in _STAND_INS.items():
        written = "".join(f"\\{byte:03o}" for byte in stand_in.encode())
        text = text.replace(written, f"\\{ord(each):03o}")
    return text


def in_log(text: str) -> str:
    """The compiler's messages with the original characters in place of their stand-ins."""
    for each, stand_in in _STAND_INS.items():
        text = text.replace(stand_in, each)
    return text
