"""The public names of gemmkit with their signatures and docstrings, read from the source.

Nothing is imported, so that the reference can be built without a GPU, PyTorch, JAX or a compiler.
"""

from __future__ import annotations

import ast
import copy
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
PACKAGE = "gemmkit"
# Modules whose `__all__` is public beside that of the package.
PARTS = ("gemmkit.nn", "gemmkit.torch", "gemmkit.jax", "gemmkit.distributed", "gemmkit.verify")
# Classes and fixtures of the pytest plugin, which has no `__all__`.
PLUGIN = "gemmkit.pytest_plugin"
PLUGIN_NAMES = ("gemm_kernel", "GemmKernels", "KernelUnderTest")

# What public functions take that `__all__` of the package does not name.
OPTIONS = ("gemmkit.kernels.launch_options", "LaunchOptions")
# Its classes are what the reference's "Raises" name.
ERRORS = "gemmkit.errors"

# Longest default, in characters, that a signature shows in place of a constant's name.
_SHORT = 100

_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):$")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Docstring:
    """A docstring by its sections: `args` and `raises` map names to what is said of them."""

    text: str = ""
    args: dict[str, str] = field(default_factory=dict)
    returns: str = ""
    raises: dict[str, str] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """The first sentence, or the first line of a text without one."""
        paragraph = " ".join(self.text.split("\n\n")[0].split())
        found = re.match(r"(.*?[.:])(?=\s+[A-Z`]|$)", paragraph)
        return (found[1] if found else paragraph).rstrip(":")


@dataclass
class Item:
    """One public name: what it is, how it is called, what is said of it, and what it holds.

    `kind` is "function", "class", "exception", "data", "fixture", "method", "classmethod",
    "staticmethod", "property" or "attribute". `raised` names the exceptions that its own code
    raises.
    """

    name: str
    kind: str
    doc: Docstring
    parameters: list[str] = field(default_factory=list)
    signatures: list[str] = field(default_factory=list)
    annotation: str = ""
    value: str = ""
    raised: tuple[str, ...] = ()
    members: list[Item] = field(default_factory=list)


def public_items() -> list[Item]:
    """Every public name, in the order of `gemmkit.__all__` and of the parts, and the errors."""
    parts = (each for part in PARTS for each in _of_part(part))
    options = _item(*OPTIONS, shown=".".join(OPTIONS))
    found = [*_of_package(), options, *parts, *_of_plugin()]
    known = {item.name.rpartition(".")[2] for item in found}
    return found + [each for each in _of_errors() if each.name.rpartition(".")[2] not in known]


def _of_package() -> Iterator[Item]:
    tree = _module(PACKAGE)
    homes = ast.literal_eval(_assigned(tree, "_HOME"))
    for name in ast.literal_eval(_assigned(tree, "__all__")):
        home = homes.get(name)
        yield _item(home or "gemmkit.version", name, f"{PACKAGE}.{name}")


def _of_part(part: str) -> Iterator[Item]:
    tree = _module(part)
    try:
        # Parts that import what they name when it is asked for.
        homes = ast.literal_eval(_assigned(tree, "_HOME"))
    except LookupError:
        homes = {}
    for name in ast.literal_eval(_assigned(tree, "__all__")):
        yield _item(homes.get(name, part), name, f"{part}.{name}")


def _of_plugin() -> Iterator[Item]:
    for name in PLUGIN_NAMES:
        yield _item(PLUGIN, name, name if name[0].islower() else f"{PLUGIN}.{name}")


def _of_errors() -> Iterator[Item]:
    for node in _module(ERRORS).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield _item(ERRORS, node.name, f"{ERRORS}.{node.name}")


@cache
def _module(name: str) -> ast.Module:
    path = SOURCE.joinpath(*name.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text("utf-8"))


def _assigned(tree: ast.Module, name: str) -> ast.expr:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                return value
            case ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value) if (
                found == name
            ):
                return value
    raise LookupError(f"{name} is not assigned")


def _definition(module: str, name: str) -> tuple[str, list[ast.stmt]]:
    """The module that defines a name, and the statements that do: several for overloads."""
    body = _module(module).body
    found: list[ast.stmt] = []
    for index, node in enumerate(body):
        match node:
            case ast.ClassDef(name=own) | ast.FunctionDef(name=own) if own == name:
                found.append(node)
            case (
                ast.AnnAssign(target=ast.Name(id=own)) | ast.Assign(targets=[ast.Name(id=own)])
            ) if own == name:
                found = [node, *_docstring_below(body[index + 1 :])]
            case ast.ImportFrom(module=str(origin), names=names, level=0):
                for alias in names:
                    if (alias.asname or alias.name) == name:
                        return _definition(origin, alias.name)
    if not found:
        raise LookupError(f"{module} does not define {name}")
    return module, found


def _docstring_below(rest: list[ast.stmt]) -> list[ast.stmt]:
    match rest:
        case [ast.Expr(value=ast.Constant(value=str())) as text, *_]:
            return [text]
    return []


def _item(module: str, name: str, shown: str) -> Item:
    module, nodes = _definition(module, name)
    if isinstance(nodes[0], ast.Assign | ast.AnnAssign):
        return _data(nodes, shown)
    node = nodes[-1]
    if isinstance(node, ast.ClassDef):
        return _class(module, node, shown)
    functions = [each for each in nodes if isinstance(each, ast.FunctionDef)]
    return _function([_with_values(each, module) for each in functions], shown)


def _with_values(node: ast.FunctionDef, module: str) -> ast.FunctionDef:
    """A function whose defaults that are named constants are the short values of these."""
    shown = copy.deepcopy(node)
    for defaults in (shown.args.defaults, shown.args.kw_defaults):
        for index, default in enumerate(defaults):
            if isinstance(default, ast.Name) and default.id.isupper():
                first = _definition(module, default.id)[1][0]
                value = getattr(first, "value", None)
                if (
                    isinstance(value, ast.Constant | ast.Tuple)
                    and len(ast.unparse(value)) <= _SHORT
                ):
                    defaults[index] = value
    return shown


def _data(nodes: list[ast.stmt], shown: str) -> Item:
    """A constant, with the string below it as its docstring."""
    first = nodes[0]
    annotation = ast.unparse(first.annotation) if isinstance(first, ast.AnnAssign) else ""
    below = [each.value for each in nodes[1:] if isinstance(each, ast.Expr)]
    text = ast.literal_eval(below[0]) if below else ""
    return Item(shown, "data", parse(text), annotation=annotation)


def _class(module: str, node: ast.ClassDef, shown: str) -> Item:
    bases = _bases(module, node)
    lineage = [ast.unparse(base) for _, each in bases for base in each.bases]
    kind = (
        "exception"
        if {"Exception", "Warning", "UserWarning", "RuntimeWarning"} & {*lineage}
        else "class"
    )
    item = Item(shown, kind, _docstring(node))
    members: dict[str, Item] = {}
    for _, each in reversed(bases):
        members |= {member.name: member for member in _members(each)}
    item.members = list(members.values())
    fields = [each for each in item.members if each.kind == "attribute"]
    created = members.get("__init__")
    if created is not None:
        item.members.remove(created)
        item.parameters = created.parameters
        item.signatures = [each.removesuffix(" -> None") for each in created.signatures]
        item.raised = created.raised
    elif any("dataclass" in ast.unparse(each) for each in node.decorator_list):
        item.parameters = [each.name for each in fields]
        item.signatures = ["(" + ", ".join(map(_field_text, fields)) + ")"]
    return item


def _bases(module: str, node: ast.ClassDef) -> list[tuple[str, ast.ClassDef]]:
    """The class and those of gemmkit that it inherits from, nearest first."""
    found = [(module, node)]
    for base in node.bases:
        if isinstance(base, ast.Name):
            try:
                home, nodes = _definition(module, base.id)
            except (LookupError, FileNotFoundError):
                continue
            if isinstance(nodes[-1], ast.ClassDef):
                found += _bases(home, nodes[-1])
    return found


def _field_text(each: Item) -> str:
    return f"{each.name}: {each.annotation}" + (f" = {each.value}" if each.value else "")


def _members(node: ast.ClassDef) -> Iterator[Item]:
    functions: dict[str, list[ast.FunctionDef]] = {}
    for each in node.body:
        if isinstance(each, ast.FunctionDef):
            functions.setdefault(each.name, []).append(each)
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            name, annotation = each.target.id, ast.unparse(each.annotation)
            if name.startswith("_") or annotation.startswith("ClassVar"):
                continue
            value = ast.unparse(each.value) if each.value else ""
            if value.startswith(("field(", "msgspec.field(")):
                value = "..."
            yield Item(name, "attribute", Docstring(), annotation=annotation, value=value)
    for name, nodes in functions.items():
        if not name.startswith("_") or name in ("__init__", "__call__", "__getitem__"):
            yield _function(nodes, name, in_class=True)


def _function(nodes: list[ast.FunctionDef], shown: str, *, in_class: bool = False) -> Item:
    node = nodes[-1]
    decorators = {ast.unparse(each).split("(")[0].split(".")[-1] for each in node.decorator_list}
    item = Item(shown, "function", _docstring(node), raised=tuple(_raised(node)))
    static = "staticmethod" in decorators
    if in_class:
        item.kind = "method"
        for kind, marks in (
            ("property", {"property", "cached_property"}),
            ("classmethod", {"classmethod"}),
            ("staticmethod", {"staticmethod"}),
        ):
            if marks & decorators:
                item.kind = kind
    if "fixture" in decorators:
        item.kind = "fixture"
    overloads = [each for each in nodes if _is_overload(each)]
    for each in overloads or [node]:
        item.signatures.append(_signature(each, drop_first=in_class and not static))
    own = node.args.posonlyargs + node.args.args
    own = own[1:] if in_class and not static else own
    item.parameters = [each.arg for each in own + node.args.kwonlyargs]
    item.parameters += [each.arg for each in (node.args.vararg, node.args.kwarg) if each]
    if item.kind in ("property", "fixture"):
        item.annotation = ast.unparse(node.returns) if node.returns else ""
        item.parameters, item.signatures = [], []
    return item


def _is_overload(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(each).endswith("overload") for each in node.decorator_list)


def _signature(node: ast.FunctionDef, *, drop_first: bool) -> str:
    arguments = copy.deepcopy(node.args)
    if drop_first:
        (arguments.posonlyargs or arguments.args).pop(0)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(arguments)}){returns}"


def _raised(node: _Function) -> Iterator[str]:
    """Names of the exceptions that a function's own code raises, nested functions left out."""
    waiting: list[ast.AST] = list(node.body)
    while waiting:
        each = waiting.pop()
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        match each:
            case ast.Raise(exc=ast.Call(func=ast.Name(id=name)) | ast.Name(id=name)) if name[
                0
            ].isupper():
                yield name
        waiting += ast.iter_child_nodes(each)


def _docstring(node: ast.ClassDef | _Function) -> Docstring:
    return parse(ast.get_docstring(node) or "")


def parse(text: str) -> Docstring:
    """A docstring in Google's style, by sections."""
    doc, section, lines = Docstring(), "", dict[str, list[str]]()
    for line in inspect.cleandoc(text).splitlines():
        found = _SECTION.match(line)
        if found:
            section = found[1]
        elif section and line and not line.startswith(" "):
            section = ""
            lines.setdefault(section, []).extend(["", line])
            continue
        if not found:
            lines.setdefault(section, []).append(line)
    doc.text = "\n".join(lines.get("", [])).strip()
    doc.args = _entries(lines.get("Args", []) + lines.get("Attributes", []))
    doc.raises = _entries(lines.get("Raises", []))
    returned = lines.get("Returns", []) or lines.get("Yields", [])
    doc.returns = inspect.cleandoc("\n".join(returned)).strip()
    return doc


def _entries(lines: list[str]) -> dict[str, str]:
    """`names: text` per entry, whose further lines are indented deeper."""
    found: dict[str, str] = {}
    names = ""
    for line in inspect.cleandoc("\n".join(lines)).splitlines():
        entry = re.match(r"([*\w.]+(?:,\s*[*\w.]+)*,?)(?:: (.*))?$", line)
        if entry and not line.startswith(" "):
            # A list of names may go on in the next line.
            names = f"{names} {entry[1]}".strip() if names.endswith(",") else entry[1]
            if entry[2] is not None:
                found[names] = entry[2]
        elif names.endswith(",") and (entry := re.match(r"\s+([\w, ]+?)(?:: (.*))?$", line)):
            names += f" {entry[1]}"
            if entry[2] is not None:
                found[names] = entry[2]
        elif names in found:
            found[names] += f" {line.strip()}"
        elif line.strip():
            raise ValueError(f"not an entry of Args or Raises: {line!r}")
    return {
        name.strip().lstrip("*"): text for names, text in found.items() for name in names.split(",")
    }
