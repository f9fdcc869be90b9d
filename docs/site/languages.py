"""The languages of the site: which pages each has, and where they go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Language:
    """A language of the site.

    `code` is Sphinx's name of it. `home` and `docs` are its README and its folder of pages in the
    repository. `folder` is where its pages stand on the site, relative to the site's root.
    """

    code: str
    home: str
    docs: str
    folder: str


ENGLISH = Language("en", "README.md", "docs", "")
CHINESE = Language("zh_CN", "README.zh-CN.md", "docs/zh", "zh")


def language_of(inside: Path) -> Language:
    """The language on whose site a file of the repository has its page.

    Args:
        inside: the file's path in the repository.
    """
    chinese = inside == Path(CHINESE.home) or Path(CHINESE.docs) in inside.parents
    return CHINESE if chinese else ENGLISH
