"""Parses PTX text into a `Module`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from gemmkit.emulator.clusters import ClusterDirectives
from gemmkit.emulator.isa.types import TYPES
from gemmkit.emulator.numerics.rules import capability_of
from gemmkit.emulator.ptx.constructs import not_executed
from gemmkit.emulator.ptx.lines import LineTable, NearestLines
from gemmkit.emulator.ptx.literals import with_bits
from gemmkit.emulator.ptx.lowering import lowered
from gemmkit.emulator.ptx.module import (
    Address,
    Group,
    Guard,
    Instruction,
    Kernel,
    Module,
    Register,
    SourceLine,
    Symbol,
    Vector,
)
from gemmkit.emulator.ptx.operand_reader import OperandReader, split_operands
from gemmkit.emulator.ptx.parameters import with_named_parameters
from gemmkit.emulator.ptx.shared_layout import SharedLayout
from gemmkit.emulator.ptx.variables import (
    MALFORMED,
    VARIABLE,
    ModuleScope,
    PtxSyntaxError,
    Space,
    module_scope,
    separated,
    unreadable,
)
from gemmkit.errors import UnsupportedInstruction
from gemmkit.file_directives import FILE_DIRECTIVE, file_names

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_SECTION = re.compile(r"\.section\s+[.\w$]+\s*\{[^}]*\}")
_TOKEN = re.compile(
    r"\s*(?:(?P<loc>\.loc\s[^\n]*)|(?P<brace>[{}])"
    r"|(?P<label>[A-Za-z_$%][\w$]*)\s*:(?!:)|(?P<statement>[^;{}]*(?:\{[^{};]*\}[^;{}]*)*);)"
)
_DECLARATION = re.compile(
    r"\.(?:reg|shared|local|param|global|const|extern|visible|weak|common|pragma|branchtargets)\b"
)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\(([^)]*)\))?[^{;]*\{")
_CLUSTER = re.compile(r"\.reqnctapercluster\s+(\d+(?:\s*,\s*\d+)*)")
_MOST_BLOCKS = re.compile(r"\.maxclusterrank\s+(\d+)")
_MOST_REGISTERS = 1 << 20


def parse(text: str, name: str = "", entry: str | None = None) -> Module:
    """Parse a PTX text: all of its kernels, or only the one called `entry`, if it exists.

    If it has no line information, its own lines are used, in a file called `name` if that is given.

    Raises:
        PtxSyntaxError: a statement cannot be read; the message holds it and its line.
        UnsupportedInstruction: a special register that the emulator does not have.
    """
    text = _COMMENT.sub(_blank, text)
    files = file_names(text)
    text = with_named_parameters(lowered(_SECTION.sub(_blank, FILE_DIRECTIVE.sub(_blank, text))))
    outer, table = module_scope(text), LineTable(text, files)
    target = _first(r"\.target\s+([^\s,]+)", text)
    kernels = {}
    entries = [*_ENTRY.finditer(text)]
    for match in [each for each in entries if each[1] == entry] or entries:
        kernel = _KernelParser(text, match, table, outer, "" if files else name, target).parse()
        kernels[kernel.name] = kernel
    placed = separated(outer.globals.variables, _named(kernels.values()))
    return Module(
        version=_first(r"\.version\s+(\S+)", text),
        target=target,
        kernels=kernels,
        globals=placed,
        globals_bytes=max((each.offset + each.size for each in placed.values()), default=0),
        files=files,
    )


def _named(kernels: Iterable[Kernel]) -> set[str]:
    """The symbols among the operands of the kernels' instructions."""
    found = set()
    waiting = [each for kernel in kernels for code in kernel.body for each in code.operands]
    while waiting:
        operand = waiting.pop()
        if isinstance(operand, Address):
            waiting.append(operand.base)
        elif isinstance(operand, Vector):
            waiting += operand.elements
        elif isinstance(operand, Symbol):
            found.add(operand.name)
        elif isinstance(operand, Group):
            found.update(operand.names)
    return found


def _blank(match: re.Match[str]) -> str:
    return "\n" * match.group(0).count("\n") or " "


def _first(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match.group(1) if match else ""


class _KernelParser(OperandReader):
    """Parses one entry function."""

    def __init__(
        self,
        text: str,
        entry: re.Match[str],
        table: LineTable,
        outer: ModuleScope,
        text_name: str,
        target: str,
    ) -> None:
        super().__init__()
        self._target = target
        self._text = text
        self._text_name = text_name
        self._name = entry.group(1)
        self._table = table
        self._outer = outer
        self._position = entry.end()
        self._line = text.count("\n", 0, entry.end()) + 1
        self._counted = entry.end()
        self._source: SourceLine | None = None
        self._nearest = NearestLines()
        self._scope_count = 0
        self._body: list[Instruction] = []
        self._labels: dict[str, int] = {}
        cluster = _CLUSTER.search(entry.group(0))
        extents = tuple(map(int, cluster.group(1).split(","))) if cluster else ()
        x, y, z = (*extents, 1, 1, 1)[:3]
        most = _MOST_BLOCKS.search(entry.group(0))
        self._cluster = ClusterDirectives(
            (x, y, z) if cluster else None,
            ".explicitcluster" in entry.group(0),
            int(most.group(1)) if most else 0,
        )
        self._spaces = {space: Space() for space in ("param", "local", "call", "shared")}
        for declaration in split_operands(entry.group(2) or ""):
            match = VARIABLE.search(" ".join(declaration.split()))
            if match is None:
                raise self._error(declaration)
            try:
                self._spaces["param"].add(match)
            except MALFORMED:
                raise self._error(declaration) from None

    def parse(self) -> Kernel:
        self._open_scope()
        for token in self._tokens():
            try:
                self._read(token)
            except MALFORMED:
                raise self._error(token.group(0)) from None
            if len(self._scopes) == 1:
                break
        return self._finish()

    def _read(self, token: re.Match[str]) -> None:
        if token["brace"] == "{":
            self._open_scope()
        elif token["brace"] == "}":
            self._scopes.pop()
            self._operands.clear()
        elif token["loc"]:
            self._source = self._table.line(token["loc"])
        elif token["label"]:
            self._labels[self._rename(token["label"])] = len(self._body)
        elif token["statement"].strip():
            self._statement(" ".join(token["statement"].split()))

    def _finish(self) -> Kernel:
        layout = SharedLayout.of(
            self._target,
            self._body,
            self._spaces["shared"].variables,
            self._outer.shared.variables,
            self._outer.dynamic_shared,
        )
        return Kernel(
            name=self._name,
            cluster=self._cluster,
            parameters=self._spaces["param"].variables,
            shared=layout.variables,
            local=self._spaces["local"].variables,
            call_parameters=self._spaces["call"].variables,
            body=tuple(self._body),
            labels=self._labels,
            shared_bytes=layout.nbytes,
            shared_base=layout.base,
            local_bytes=self._spaces["local"].size,
            call_parameter_bytes=self._spaces["call"].size,
            parameter_bytes=self._spaces["param"].size,
            capability=capability_of(self._target),
        )

    def _tokens(self) -> Iterator[re.Match[str]]:
        while True:
            match = _TOKEN.match(self._text, self._position)
            if match is None:
                rest = self._text[self._position :].lstrip()
                self._line = 1 + self._text.count("\n", 0, len(self._text) - len(rest))
                raise self._error(rest.split("\n")[0] or "the text ends within a kernel")
            start = match.start(match.lastgroup or 0)
            self._line += self._text.count("\n", self._counted, start)
            self._counted = start
            self._position = match.end()
            yield match

    def _error(self, what: str) -> PtxSyntaxError:
        return unreadable(self._line, what, self._source.users if self._source else "")

    def _open_scope(self) -> None:
        """Collect the labels of a scope when it opens, since they are visible before they occur."""
        names: dict[str, str] = {}
        if len(self._scopes) > 1:
            self._scope_count += 1
            depth, end = 1, self._position
            while depth and end < len(self._text):
                depth += {"{": 1, "}": -1}.get(self._text[end], 0)
                end += 1
            inside = self._text[self._position : end]
            for label in re.findall(r"(?:^|(?<=[;{}\n:]))\s*([A-Za-z_$][\w$]*)\s*:(?!:)", inside):
                names[label] = f"{label}.{self._scope_count}"
        self._scopes.append(names)
        self._operands.clear()

    def _refuse(self, word: str, text: str) -> None:
        where = self._source.users if self._source else f"PTX line {self._line}"
        named = not_executed(word, where, text)
        if named is not None:
            raise UnsupportedInstruction(named)

    def _statement(self, text: str) -> None:
        if text.startswith("."):
            self._declare(text)
            return
        guard = None
        match = re.match(r"@(!?)([%\w$]+)\s+", text)
        if match:
            register = self._registers.get(self._rename(match.group(2)))
            if register is None:
                raise self._error(text)
            guard = Guard(register, bool(match.group(1)))
            text = text[match.end() :]
        opcode, _, rest = text.partition(" ")
        try:
            parts = split_operands(with_bits(opcode, rest))
            operands = tuple(found for each in parts for found in self._operands_in(each))
        except PtxSyntaxError:
            self._refuse(opcode, text)
            raise
        source = self._source
        if self._text_name:
            source = SourceLine(self._text_name, self._line)
        if source is not None and source.line and not self._nearest.some:
            # Nothing comes before what is at line 0 so far.
            self._body = [
                each if each.source is None else replace(each, near=source) for each in self._body
            ]
        near = self._nearest.of(source)
        self._body.append(Instruction(opcode, operands, guard, self._line, source, text, near))

    def _declare(self, text: str) -> None:
        match = re.match(r"\.reg\s+\.(\w+)\s+(.*)", text)
        if match:
            for name in split_operands(match.group(2)):
                self._declare_registers(match.group(1), name)
            return
        match = VARIABLE.match(text)
        if match:
            space = "call" if match["space"] == "param" else match["space"]
            unique = match["name"]
            if len(self._scopes) > 2:
                unique = f"{unique}.{self._scope_count}"
                self._scopes[-1][match["name"]] = unique
            self._operands.clear()
            self._spaces[space].add(match, unique)
        elif not _DECLARATION.match(text):
            raise self._error(text)

    def _declare_registers(self, type_name: str, declared: str) -> None:
        self._operands.clear()
        counted = re.fullmatch(r"([%\w$]+)<(\d+)>", declared)
        if TYPES[type_name].bits > 64 or (counted and int(counted.group(2)) > _MOST_REGISTERS):
            raise self._error(f".reg .{type_name} {declared}")
        names = (
            [f"{counted.group(1)}{index}" for index in range(int(counted.group(2)))]
            if counted
            else [declared]
        )
        for name in names:
            unique = name
            if len(self._scopes) > 2:
                unique = f"{name}.{self._scope_count}"
                self._scopes[-1][name] = unique
            self._registers[unique] = Register(unique, type_name)
