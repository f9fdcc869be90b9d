"""The README as an index or a release shows it: with links that lead to the repository's host."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from badges import with_badges
from hosting import documentation_site

ROOT = Path(__file__).resolve().parents[1]
# What holds in a clone only, and what stands there for users of the package.
_CLONE = re.compile(r"<!-- clone: .*? -->\n(.*?)<!-- end of clone -->\n", re.S)
_INDEX = """\
## Install

{install}

Needs Python 3.11 or newer. `gemmkit ladder` runs the ladder of kernels: with an NVIDIA GPU, it
measures times; without one, the kernels' PTX runs on a CPU emulator that counts memory accesses
under Nsight Compute's names. Neither the CUDA toolkit nor a C compiler is needed.

There are further extras for cuBLAS, PyTorch, JAX, numba-cuda, SASS and PTX, and platforms have some
limits: see [installation](docs/install.md).
"""
_DOCUMENTATION = "## Documentation\n\n"
_SITE = "All pages, with search, are on [the documentation site]({site}).\n\n"
_FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
_COMMENT = re.compile(r"<!--.*?-->\n*", re.S)
_PICTURE = re.compile(r"<picture>.*?(<img [^>]*>)\s*</picture>", re.S)
_IMG = re.compile(r"<img (?P<before>[^>]*)src=\"(?P<target>[^\"]+)\"(?P<after>[^>]*)>")
_LINK = re.compile(r"(?<!`)(?P<picture>!?)\[(?P<text>[^\[\]]*)\]\((?P<target>[^)\s]+)\)")


class BrokenLink(Exception):
    """A link to a file that the repository does not hold."""


def long_description(readme: str, version: str, repository: str | None) -> str:
    """The README for a package index, in Markdown.

    Installation is that of the package, not of a clone. Pictures are the light ones, since indexes
    drop `<source>`. With a repository, there are badges, and a link to the documentation's site if
    its address is known.

    Args:
        readme: the text of README.md.
        version: the package's version; its tag in the repository is `v` and the version.
        repository: the repository's address, or None.

    Raises:
        BrokenLink: a link leads to a file that does not exist.
    """
    text = _CLONE.sub(_for_the_index, readme)
    if repository:
        text = with_badges(text, repository)
        if site := documentation_site(repository):
            text = text.replace(_DOCUMENTATION, f"{_DOCUMENTATION}{_SITE.format(site=site)}", 1)
    return absolute(_COMMENT.sub("", text), version, repository)


def absolute(text: str, version: str, repository: str | None) -> str:
    """A text of the repository's root whose relative links lead to the files of a version.

    Links follow GitHub's paths: `/raw/` for pictures, `/blob/` for files, `/tree/` for folders.
    Without a repository, links become plain text and pictures are left out.

    Raises:
        BrokenLink: a link leads to a file that does not exist.
    """

    def link(found: re.Match[str]) -> str:
        target = found["target"]
        if _leads_elsewhere(target):
            return found[0]
        path = _existing(target)
        if repository is None:
            return "" if found["picture"] else found["text"]
        kind = "raw" if found["picture"] else "tree" if path.is_dir() else "blob"
        return f"{found['picture']}[{found['text']}]({repository}/{kind}/v{version}/{target})"

    def image(found: re.Match[str]) -> str:
        target = found["target"]
        if _leads_elsewhere(target):
            return found[0]
        _existing(target)
        if repository is None:
            return ""
        return f'<img {found["before"]}src="{repository}/raw/v{version}/{target}"{found["after"]}>'

    changed = [
        part if code else _LINK.sub(link, _IMG.sub(image, _PICTURE.sub(r"\1", part)))
        for part, code in _parts(text)
    ]
    return re.sub(r"\n{3,}", "\n\n", "".join(changed))


def _for_the_index(found: re.Match[str]) -> str:
    lines = re.findall(r"^ {4}pip install .*$", found[1], re.M)
    install = "\n".join(re.sub(r"(?<=install )('?)\.", r"\1gemmkit", line) for line in lines)
    return _INDEX.format(install=install)


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """The text in pieces, each with whether it is a fenced block of code."""
    start = 0
    for found in _FENCED.finditer(text):
        yield text[start : found.start()], False
        yield found[0], True
        start = found.end()
    yield text[start:], False


def _leads_elsewhere(target: str) -> bool:
    return re.match(r"[a-z]+:|#", target) is not None


def _existing(target: str) -> Path:
    path = Path(os.path.normpath(ROOT / target.partition("#")[0]))
    if not path.exists() or ROOT not in path.parents:
        raise BrokenLink(f"{target} is not in the repository")
    return path
