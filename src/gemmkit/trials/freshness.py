"""Is what was measured of a kernel still true? Its code and the compiler's version tell."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from gemmkit.cxx.declarations import without_comments
from gemmkit.errors import UsageError
from gemmkit.jit.cache import included_headers
from gemmkit.kernels import include_files
from gemmkit.kernels.kernel import Kernel
from gemmkit.loading import load
from gemmkit.trials.entry import Entry

Staleness = Literal["no such kernel", "other source", "other compiler"]

_DIGITS = 16

# Of so many kernels the digests are kept: whoever opens a store asks for them anew.
_MOST_KERNELS = 64


def source_digest(kernel: Kernel) -> str:
    """A name for the code of a kernel: its file and all of gemmkit's that it includes.

    Comments and the way lines are broken do not count.
    """
    headers = included_headers(kernel.source, include_files())
    return _digest_of((kernel.source, *(headers[name] for name in sorted(headers))))


@lru_cache(maxsize=_MOST_KERNELS)
def _digest_of(texts: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        code = " ".join(without_comments(text, keep_literals=True).split())
        digest.update(f"{len(code)}:{code}".encode())
    return digest.hexdigest()[:_DIGITS]


@dataclass
class Freshness:
    """What is true now: the digest of each kernel, read once, and the compiler's version.

    `compiler` is the version by default that is installed; None, where there is none, makes no
    entry stale.
    """

    compiler: str | None = field(default_factory=lambda: _installed())
    digests: dict[str, str | None] = field(default_factory=dict)

    def source(self, kernel: str) -> str | None:
        """The digest of a rung's code, or None where there is no such rung."""
        if kernel not in self.digests:
            load("gemmkit.kernels.catalog")
            from gemmkit.kernels.catalog import find_kernel

            try:
                self.digests[kernel] = source_digest(find_kernel(kernel))
            except UsageError:
                self.digests[kernel] = None
        return self.digests[kernel]

    def staleness(self, entry: Entry) -> Staleness | None:
        """Why an entry is no longer to be trusted, or None where it is."""
        source = self.source(entry.kernel)
        if source is None:
            return "no such kernel"
        if source != entry.source:
            return "other source"
        if self.compiler is not None and self.compiler != entry.compiler:
            return "other compiler"
        return None


def _installed() -> str | None:
    load("gemmkit.jit.nvrtc")
    from gemmkit.jit.nvrtc import compiler_version

    return compiler_version()
