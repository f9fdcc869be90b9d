"""docs/library.md has every function of the library with the signature that it has."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

import gemmkit
from gemmkit import nn

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "library.md").read_text("utf-8")
SIGNATURES = dict(re.findall(r"^```python\ngemmkit\.([\w.]+)(\(.*?\))\n```$", PAGE, re.S | re.M))
FUNCTIONS = [
    *("matmul", "gemm", "grouped_matmul", "ragged_matmul", "quantize"),
    *(f"nn.{name}" for name in nn.__all__),
]
# Sections that tell of a function's arguments besides its own.
ALSO = {
    "gemm": ["gemmkit.matmul"],
    "grouped_matmul": ["gemmkit.matmul"],
    "ragged_matmul": ["gemmkit.matmul"],
    "nn.gru": ["gemmkit.nn.lstm"],
}


@pytest.fixture
def defined(monkeypatch):
    """What a module of benchmarks/ defines, by its name."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return lambda name: vars(import_module(name))


def section(heading: str) -> str:
    """What the page says under a heading, apart from the signature."""
    text = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.sub(r"^```python\n.*?\n```$", "", text, flags=re.S | re.M)


def signature(name: str) -> str:
    """A function's signature without its types."""
    found = inspect.signature(attrgetter(name)(gemmkit))
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in found.parameters.values()]
    return str(found.replace(parameters=plain, return_annotation=inspect.Signature.empty))


@pytest.mark.parametrize("name", [*FUNCTIONS, "Epilogue", "Epilogue.custom"])
def test_signatures_are_those_of_the_code(name):
    written = re.sub(r"\s+", " ", SIGNATURES[name])
    written = re.sub(r"^\( ", "(", re.sub(r",? \)$", ")", written)).replace('"', "'")
    assert written == signature(name)


def test_every_argument_of_the_functions_is_explained():
    for name in FUNCTIONS:
        told = section(f"gemmkit.{name}") + "".join(section(each) for each in ALSO.get(name, []))
        if name.startswith("nn."):
            told += section("Layers")
        for argument in inspect.signature(attrgetter(name)(gemmkit)).parameters:
            assert f"`{argument}`" in told, f"{name} of {argument}"


def test_the_table_at_the_top_leads_to_every_section():
    for heading in re.findall(r"^## (gemmkit\..*)$", PAGE, re.MULTILINE):
        anchor = heading.lower().replace(".", "")
        assert f"](#{anchor})" in PAGE.partition("\n## ")[0]


@pytest.mark.parametrize("name", ["layers", "grouped products", "layouts", "double precision"])
def test_tables_are_those_of_the_results(defined, name):
    made = defined("render_suites")
    page = (ROOT / "docs" / made["SECTIONS"][name].page).read_text("utf-8")
    assert made["section"](name) in page
