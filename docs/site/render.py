"""The API reference as MyST Markdown, from what `api` reads off the source."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from api import Item

# Text in single backticks that is not the content of a role already.
_CODE = re.compile(r"(?<![`}])`([^`\n]+)`(?!`)")
_MEMBER_KINDS = {
    "method": "method",
    "classmethod": "method",
    "staticmethod": "method",
    "property": "property",
    "attribute": "attribute",
}


class Names:
    """Resolves names as docstrings and annotations write them, such as `Kernel.plan`."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._full: dict[str, str] = {}
        for item in items:
            self._add(item.name, item.name)
            for member in item.members:
                self._add(f"{item.name}.{member.name}", f"{item.name}.{member.name}")

    def _add(self, name: str, full: str) -> None:
        self._full.setdefault(name, full)
        # `gemmkit.matmul` comes before the functions of this name in the parts.
        short = re.sub(
            r"^gemmkit\.((torch|jax|nn|distributed|verify|pytest_plugin|errors|kernels\.launch_options)\.)?",
            "",
            name,
        )
        self._full.setdefault(short, full)

    def find(self, name: str, *, home: str = "") -> str | None:
        """The full name of a public thing, or None; names of `home` itself come first."""
        return self._full.get(f"{home}.{name}") or self._full.get(name)

    def link(self, text: str, *, home: str = "") -> str:
        """Markdown with the names in backticks linked to where they are documented."""

        def linked(found: re.Match[str]) -> str:
            full = self.find(found[1].removesuffix("()"), home=home)
            return f"{{py:obj}}`{found[1]} <{full}>`" if full and full != home else found[0]

        return _CODE.sub(linked, text)

    def annotation(self, text: str) -> str:
        """A signature or type whose public names are written in full, for Sphinx to link."""
        return re.sub(
            r"(?<![\w.'\"])[A-Z]\w*(?![\w='\"])",
            lambda found: self._full.get(found[0], found[0]),
            text,
        )


def page(title: str, items: Iterable[Item], names: Names) -> str:
    """One page of the reference."""
    return "\n".join([f"# {title}", "", *(line for item in items for line in _entry(item, names))])


def _entry(item: Item, names: Names) -> Iterator[str]:
    heading = item.name.removeprefix("gemmkit.")
    yield from (f"## {heading}".replace("__", r"\_\_"), "")
    yield from _directive(item, names, item.name, fence="``````")


def _directive(item: Item, names: Names, home: str, *, fence: str) -> Iterator[str]:
    kind = _MEMBER_KINDS.get(item.kind, item.kind)
    shown = item.name
    signatures = [names.annotation(each) for each in item.signatures] or [""]
    if kind == "fixture":
        kind, signatures = "data", [""]
    yield f"{fence}{{py:{kind}}} {shown}{signatures[0]}"
    # Further signatures, of overloads, are lines of the directive's argument.
    yield from (f"{shown}{each}" for each in signatures[1:])
    if item.kind in ("classmethod", "staticmethod"):
        yield f":{item.kind}:"
    if item.annotation:
        yield f":type: {names.annotation(item.annotation)}"
    if item.value and kind == "attribute" and item.value != "...":
        yield f":value: {item.value}"
    yield from ("", names.link(item.doc.text, home=home), "")
    yield from _fields(item, names, home)
    if item.kind in ("class", "exception"):
        yield from _members(item, names)
    yield from (fence, "")


def _fields(item: Item, names: Names, home: str) -> Iterator[str]:
    """Arguments, result and errors; those of which the same is said share an entry."""

    def entries(said: dict[str, str], shown: Callable[[str], str]) -> Iterator[str]:
        together: dict[str, list[str]] = {}
        for name, text in said.items():
            together.setdefault(text, []).append(shown(name))
        for text, listed in together.items():
            yield f"  - {', '.join(listed)} – {names.link(text, home=home)}"

    def error(name: str) -> str:
        full = names.find(name)
        return f"{{py:exc}}`{name} <{full}>`" if full else f"`{name}`"

    if item.doc.args:
        yield from (":Parameters:", *entries(item.doc.args, lambda name: f"**{name}**"))
    if item.doc.returns:
        yield f":Returns: {names.link(_one_line(item.doc.returns), home=home)}"
    if item.doc.raises:
        yield from (":Raises:", *entries(item.doc.raises, error))
    yield ""


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _members(item: Item, names: Names) -> Iterator[str]:
    # A class that is made by calling it has its fields in its signature.
    shown = [each for each in item.members if each.kind != "attribute" or not item.signatures]
    for member in shown:
        if member.doc.text or member.kind == "attribute":
            yield from _directive(member, names, item.name, fence="`````")
