"""A PTX text as plain data: modules, kernels, instructions and operands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from gemmkit.emulator.clusters import NO_CLUSTERS, ClusterDirectives
from gemmkit.emulator.ptx.names import kernel_name

# CUDA's own headers as line tables name them.
_CUDA_HEADER = re.compile(
    r"<cuda>/|(?:cuda|crt|cooperative_groups|cub|nv)/|(?:cuda_\w+|mma|cooperative_groups)\.h(?:pp)?:"
    r"|.*/(?:cuda[^/]*|targets/[^/]+)/include/"
)


# Sets and dictionaries of them are looked up hundreds of thousands of times per kernel.
class Register(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """A virtual register; `name` is unique in its kernel, `type` as declared (`b32`, `pred`)."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal: an integer value, or for `f32` and `f64` the bits of the number."""

    value: int
    type: str = "int"


@dataclass(frozen=True, slots=True)
class Special:
    """A special register, such as `%tid.x`."""

    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """The name of a variable, a parameter, a function or a label."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """A memory operand, `[base + offset]`; the offset is in bytes.

    That of a tensor, `[map, {x, y}]`, is followed by a list of so many `coordinates`.
    """

    base: Register | Symbol | Immediate
    offset: int
    coordinates: int = 0


@dataclass(frozen=True, slots=True)
class Vector:
    """A brace list of operands; `None` is the sink `_`."""

    elements: tuple[Operand | None, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two destinations written `a|b`; `None` is the sink `_`."""

    first: Operand | None
    second: Operand | None


@dataclass(frozen=True, slots=True)
class Negated:
    """A predicate operand written `!p`."""

    register: Register


@dataclass(frozen=True, slots=True)
class Group:
    """A parenthesized list, as in `call (result), name, (arguments)`."""

    names: tuple[str, ...]


Operand = Register | Immediate | Special | Symbol | Address | Vector | Pair | Negated | Group
# Operands that hold one value to be read.
Source = Register | Immediate | Special | Symbol | Negated

# The condition code of add.cc and the like, as a predicate register.
CARRY = Register("%cc", "pred")


@dataclass(frozen=True, slots=True)
class Guard:
    """`@p` or `@!p`: the instruction acts only in lanes where the predicate holds."""

    register: Register
    negated: bool


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the CUDA C++ source.

    If it was inlined, `called_from` are the lines of the calls, from the innermost outward, as far
    as they are known.
    """

    file: str
    line: int
    called_from: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def users(self) -> str:
        """The innermost of these lines that is not in one of CUDA's own headers."""
        places = (str(self), *self.called_from)
        return next((place for place in places if not _CUDA_HEADER.match(place)), str(self))


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. `opcode` holds all modifiers; `line` is a line of the PTX text, from 1.

    The compiler attributes what it makes or moves to line 0, by which it is counted as `source`;
    `near` is then the line that messages name.
    """

    opcode: str
    operands: tuple[Operand | None, ...]
    guard: Guard | None
    line: int
    source: SourceLine | None
    text: str
    near: SourceLine | None = None

    @property
    def named(self) -> SourceLine | None:
        """Its line for messages, if it is known."""
        return self.near or self.source

    @property
    def where(self) -> str:
        """Its position for messages: the user's line if known, else the PTX line."""
        return self.named.users if self.named is not None else f"PTX line {self.line}"


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable at a byte offset in its space; `data` initializes module-scope variables.

    `align` is the alignment that it was declared with, in bytes; `constant`: no kernel can write
    it, as it is in the `.const` space.
    """

    offset: int
    size: int
    data: bytes = b""
    align: int = 1
    constant: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """One entry function.

    Offsets in `parameters`, `shared`, `local` and `call_parameters` are in bytes from the start of
    each space. A block's own shared memory, and its first variable, begin at `shared_base`.
    `shared_bytes` is the size of the static part, rounded up to the alignment of dynamic shared
    memory (`extern __shared__`), which follows. `capability` is the compute capability that it runs
    on: that of its target, unless a board is given.
    """

    name: str
    parameters: Mapping[str, Variable]
    shared: Mapping[str, Variable]
    local: Mapping[str, Variable]
    call_parameters: Mapping[str, Variable]
    body: tuple[Instruction, ...]
    labels: Mapping[str, int]
    shared_bytes: int
    shared_base: int
    local_bytes: int
    call_parameter_bytes: int
    parameter_bytes: int
    capability: tuple[int, int]
    cluster: ClusterDirectives = NO_CLUSTERS

    @property
    def source_name(self) -> str:
        """Its name as the source has it."""
        return kernel_name(self.name)


@dataclass(frozen=True, slots=True)
class Module:
    """A whole PTX text.

    `globals` holds the module-scope `.global` and `.const` variables that its kernels name,
    separated from each other, in `globals_bytes` bytes.
    """

    version: str
    target: str
    kernels: Mapping[str, Kernel]
    globals: Mapping[str, Variable]
    globals_bytes: int = 0
    files: Mapping[int, str] = field(default_factory=dict)
