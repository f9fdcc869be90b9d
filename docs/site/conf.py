"""Settings of Sphinx, which `build.py` starts."""

import sys
import tomllib
from pathlib import Path

from sphinx import search

sys.path.insert(0, str(Path(__file__).parent))
import search_words

_PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))[
    "project"
]

project = _PROJECT["name"]
author = "gemmkit developers"
version = release = _PROJECT["version"]
project_copyright = author
language = "en"  # build.py sets that of each site


class _Search(search.SearchEnglish):  # type: ignore[misc]
    js_splitter_code = search_words.SPLIT_QUERY

    def split(self, input: str) -> list[str]:  # noqa: A002 (its name in the base class)
        return list(search_words.words(input))


class _SearchInChinese(_Search):
    # Sphinx derives the stemmer's name from that of the language: the one of English stays.
    lang = "zh"


search.languages["en"] = _Search
search.languages["zh"] = _SearchInChinese

extensions = ["myst_parser"]
myst_enable_extensions = ["attrs_inline", "fieldlist"]
myst_heading_anchors = 4
# Code may be an excerpt, with "…" for what is left out.
suppress_warnings = ["misc.highlighting_failure"]
root_doc = "index"
exclude_patterns: list[str] = []

add_module_names = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"gemmkit {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
templates_path = ["templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_copy_source = False
html_show_sphinx = False
# Summaries are fetched from other pages, which browsers refuse to a page opened as a file.
html_show_search_summary = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
