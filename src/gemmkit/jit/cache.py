"""`BinaryCache`: compiled kernels on disk, found again by what they were compiled from."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gemmkit.decoding import from_msgpack
from gemmkit.diskcache import DEFAULT_LIMIT_BYTES, DiskCache, default_cache_directory
from gemmkit.errors import CompilerMissing
from gemmkit.jit.binary import Binary, Resources

_KIND = "binaries"

# Part of every key: a change of what is stored makes older entries unreachable.
_FORMAT = ("1", *Binary.__struct_fields__, *Resources.__struct_fields__)

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE)


@dataclass(frozen=True)
class Request:
    """All that a compilation depends on but the compiler; `headers` are those that it includes.

    `assembled`: ptxas makes a cubin of the PTX.
    """

    source: str
    entry: str
    arch: str
    headers: Mapping[str, str]
    file_name: str
    options: tuple[str, ...]
    assembled: bool = True

    def key(self, compiler: str | None) -> str:
        """A name for this compilation by one version of the compiler, or by any (None)."""
        return _digest(
            (
                *_FORMAT,
                compiler or "",
                self.arch,
                self.entry,
                self.file_name,
                self.source,
                *_counted(self.options),
                *(() if self.assembled else ("PTX only",)),
                *_counted(each for header in sorted(self.headers.items()) for each in header),
            )
        )

    @property
    def self_contained(self) -> bool:
        """Whether every file that it includes in quotes is in `headers`.

        Others come from the user's disk, where they may change without the key changing. Files
        in angle brackets count as the compiler's own.
        """
        return {quoted for quoted, _ in self._included if quoted} <= self.headers.keys()

    @property
    def includes_cuda(self) -> bool:
        """Whether it includes, in angle brackets, a file that is not in `headers`."""
        return not {name for _, name in self._included if name} <= self.headers.keys()

    @property
    def _included(self) -> list[tuple[str, str]]:
        """The names that it includes, in quotes or in angle brackets, the other one being empty."""
        texts = (self.source, *self.headers.values())
        return [names for text in texts for names in _INCLUDE.findall(text)]


def included_headers(source: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Those of `headers` that `source` includes, directly or through one another."""
    found: dict[str, str] = {}
    texts = [source]
    while texts:
        for quoted, bracketed in _INCLUDE.findall(texts.pop()):
            name = quoted or bracketed
            if name in headers and name not in found:
                found[name] = headers[name]
                texts.append(headers[name])
    return found


class BinaryCache:
    """Compiled kernels below `cache_dir`, or below the user's cache folder where it is None.

    Beside each binary, a note under a key without compiler version names the one made last, so
    that a machine without a compiler finds what was made ahead of time.
    """

    def __init__(
        self, cache_dir: Path | None = None, limit_bytes: int = DEFAULT_LIMIT_BYTES
    ) -> None:
        directory = default_cache_directory(_KIND) if cache_dir is None else cache_dir / _KIND
        self.disk = DiskCache(directory, limit_bytes)

    def get_or_compile(
        self, request: Request, compiler: str | None, compile_it: Callable[[], Binary]
    ) -> Binary:
        """The stored binary of this compiler version, or else `compile_it()`'s, stored.

        Where there is no compiler (`compiler` is None, or `compile_it` raises CompilerMissing),
        the binary that was made last by any version.

        Raises:
            CompilerMissing: and there is no such binary.
        """
        key, any_version = request.key(compiler), request.key(None)
        try:
            if compiler is None:
                return compile_it()
            data = self.disk.get(key)
            if data is None:
                data = self.disk.get_or_create(key, lambda: msgspec.msgpack.encode(compile_it()))
                self.disk.put(any_version, key.encode())
            elif self.disk.get(any_version) is None:
                self.disk.put(any_version, key.encode())
            return from_msgpack(data, Binary)
        except CompilerMissing:
            binary = self._made_last(any_version)
            if binary is None:
                raise
            return binary

    def stored(self, request: Request, compiler: str | None) -> Binary | None:
        """The stored binary of this compiler version, or where there is no compiler the one made
        last; None if there is none."""
        if compiler is None:
            return self._made_last(request.key(None))
        data = self.disk.get(request.key(compiler))
        return None if data is None else from_msgpack(data, Binary)

    def holds(self, binary: Binary) -> bool:
        """Whether a binary is stored."""
        return self.disk.get(binary.key) is not None

    def _made_last(self, any_version: str) -> Binary | None:
        key = self.disk.get(any_version)
        data = None if key is None else self.disk.get(key.decode())
        return None if data is None else from_msgpack(data, Binary)


def _counted(parts: Iterable[str]) -> tuple[str, ...]:
    listed = tuple(parts)
    return (str(len(listed)), *listed)


def _digest(parts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(f"{len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()
