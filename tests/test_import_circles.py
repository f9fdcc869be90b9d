"""No module of gemmkit imports one that needs it, not even in a function or for types alone."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src"


def modules(source):
    """Path by dotted name."""
    found = {}
    for path in source.rglob("*.py"):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path, names):
    """The modules among `names` that a file imports anywhere, not counting their packages."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import, which this test cannot read"
            for each in node.names:
                full = f"{node.module}.{each.name}"
                if full in names or node.module in names:
                    yield full if full in names else node.module


def circle(source):
    """One circle of modules, the first one repeated at the end; empty where there is none."""
    found = modules(source)
    graph = {name: set(imported(path, found)) - {name} for name, path in found.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_there_are_no_circles():
    assert len(modules(SOURCE)) > 400
    assert circle(SOURCE) == []


@pytest.mark.parametrize(
    "back",
    [
        "import package.first",
        "from package import first",
        "def late():\n    from package.first import NAME",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from package.first import NAME",
    ],
)
def test_a_circle_is_found_wherever_the_import_stands(tmp_path, back):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "first.py").write_text("from package.second import OTHER\nNAME = 1\n")
    (package / "second.py").write_text("OTHER = 1\n")
    assert circle(tmp_path) == []
    (package / "second.py").write_text(back)
    assert set(circle(tmp_path)) == {"package.first", "package.second"}
