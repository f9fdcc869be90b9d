"""A small builder of LLVM IR text: typed values, structured control flow, functions and modules.

It builds text because an object model takes longer to build than the text takes to compile.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

from gemmkit.emulator.codegen.ir_arithmetic import Arithmetic
from gemmkit.emulator.codegen.ir_values import (
    Operand,
    Value,
    alignment,
    element_type,
    literal,
    vector,
)

__all__ = ["RUNTIME_PREFIX", "Function", "Module", "Value", "element_type", "literal", "vector"]

RUNTIME_PREFIX = "gemmkit."


class Module:
    """Functions and the declarations that they need, as one text."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._declarations: dict[str, str] = {}
        self._defined: dict[str, None] = {}
        self._constants: list[str] = []
        # Functions of segments, by what they compute.
        self.segments: dict[Hashable, str] = {}

    def declare(self, name: str, result: str, parameters: Sequence[str]) -> None:
        """Declare an external function."""
        self._declarations.setdefault(name, f"declare {result} @{name}({', '.join(parameters)})")

    def constant(self, words: Sequence[int]) -> Value:
        """The address of an array of constant 32-bit integers."""
        name = f"@words{len(self._constants)}"
        each = ", ".join(f"i32 {word}" for word in words)
        of = f"[{len(words)} x i32]"
        self._constants.append(f"{name} = private unnamed_addr constant {of} [{each}], align 4")
        return Value("ptr", name)

    @contextmanager
    def function(
        self, name: str, result: str, parameters: Sequence[Value], *, inline: bool | None = None
    ) -> Iterator[Function]:
        """Define a function; `inline` inlines it into its callers, all of them in this module."""
        function = Function(self)
        self._defined[name] = None
        yield function
        linkage = "internal " if inline is not None else ""
        attribute = {True: " alwaysinline", False: " noinline", None: ""}[inline]
        arguments = ", ".join(f"{each.type} {each.name}" for each in parameters)
        head = f"define {linkage}{result} @{name}({arguments}){attribute} nounwind {{\nentry:"
        self._parts.append("\n".join([head, *function.allocations, *function.lines, "}"]))

    def defines(self, name: str) -> bool:
        """Whether a function is defined here."""
        return name in self._defined

    @property
    def outside(self) -> list[str]:
        """Names of the external functions that are called, without intrinsics."""
        return [
            name
            for name in self._declarations
            if name not in self._defined and not name.startswith("llvm.")
        ]

    @property
    def functions(self) -> list[str]:
        """Names of the functions defined here."""
        return list(self._defined)

    def __str__(self) -> str:
        outside = [text for name, text in self._declarations.items() if name not in self._defined]
        return "\n".join([*outside, *self._constants, *self._parts])


class Function(Arithmetic):
    """The body of one function, emitted from top to bottom: values, calls, memory and control."""

    def __init__(self, module: Module) -> None:
        super().__init__(module.declare)
        self.module = module
        self.allocations: list[str] = []

    def call(self, name: str, result: str, *arguments: Value) -> Value:
        """Call a function of this module or an external one."""
        self.module.declare(name, result, [each.type for each in arguments])
        text = f"call {result} @{name}({', '.join(map(str, arguments))})"
        if result == "void":
            self.emit(text)
            return Value("void", "")
        return self.value(result, text)

    def call_pointer(self, function: Value, result: str, *arguments: Value) -> Value:
        """Call a function by its address."""
        text = f"call {result} {function.name}({', '.join(map(str, arguments))})"
        if result == "void":
            self.emit(text)
            return Value("void", "")
        return self.value(result, text)

    def shared(
        self,
        name: str,
        result: str,
        body: Callable[[Function, Sequence[Value]], Value | None],
        *arguments: Value,
    ) -> Value:
        """Call a function of this module that `body` writes, from its parameters, at the first
        call: code that occurs often is compiled once."""
        if not self.module.defines(name):
            parameters = [Value(each.type, f"%a{n}") for n, each in enumerate(arguments)]
            with self.module.function(name, result, parameters, inline=False) as f:
                f.ret(body(f, parameters))
        return self.call(name, result, *arguments)

    def runtime(self, name: str, result: str, *arguments: Value) -> Value:
        """Call a function of the runtime; its names have a prefix."""
        return self.call(RUNTIME_PREFIX + name, result, *arguments)

    def tail_call(self, name: str, *arguments: Value) -> None:
        """Continue in a function with the same parameters, and return."""
        self.module.declare(name, "void", [each.type for each in arguments])
        self.emit(f"musttail call void @{name}({', '.join(map(str, arguments))})")
        self.ret()

    def leave(self, name: str, *arguments: Value) -> None:
        """Call a function last, as a tail call, and return."""
        self.module.declare(name, "void", [each.type for each in arguments])
        self.emit(f"tail call void @{name}({', '.join(map(str, arguments))})")
        self.ret()

    # Memory

    def offset(self, pointer: Value, distance: Operand) -> Value:
        """A pointer plus a number of bytes."""
        if isinstance(distance, int):
            distance = Value("i64", str(distance))
        if distance.name == "0":
            return pointer
        return self.value("ptr", f"getelementptr i8, {pointer}, {distance}")

    def element(self, array: Value, index: Operand, bits: int) -> Value:
        """The address of an element of an array of integers."""
        return self.value("ptr", f"getelementptr i{bits}, {array}, {index}")

    def integer(self, pointer: Value) -> Value:
        """An address as i64."""
        return self.value("i64", f"ptrtoint {pointer} to i64")

    def pointer(self, address: Value) -> Value:
        """An i64 as an address."""
        return self.value("ptr", f"inttoptr {address} to ptr")

    def load(self, of: str, pointer: Value, distance: Operand = 0, align: int = 0) -> Value:
        """Load a value with at most that alignment (by default its own size if a scalar)."""
        address = self.offset(pointer, distance)
        return self.value(of, f"load {of}, {address}, align {align or alignment(of)}")

    def store(self, a: Value, pointer: Value, distance: Operand = 0, align: int = 0) -> None:
        """Store a value."""
        address = self.offset(pointer, distance)
        self.emit(f"store {a}, {address}, align {align or alignment(a.type)}")

    def atomic(self, operation: str, pointer: Value, a: Value) -> Value:
        """An `atomicrmw` of a naturally aligned value; returns the old one."""
        order = f"monotonic, align {alignment(a.type)}"
        return self.value(a.type, f"atomicrmw {operation} {pointer}, {a} {order}")

    def compare_exchange(self, pointer: Value, expected: Value, new: Value) -> Value:
        """Store `new` if the value is `expected`, atomically; returns the old value."""
        order = f"monotonic monotonic, align {alignment(new.type)}"
        pair = self.value(f"{{ {new.type}, i1 }}", f"cmpxchg {pointer}, {expected}, {new} {order}")
        return self.value(new.type, f"extractvalue {pair}, 0")

    def increase(self, pointer: Value, distance: Operand, amount: Operand) -> None:
        """Add to a 64-bit counter in memory."""
        address = self.offset(pointer, distance)
        self.store(self.add(self.load("i64", address), amount), address)

    def clear(self, pointer: Value, count: Operand) -> None:
        """Set bytes to zero."""
        size = literal("i64", count) if isinstance(count, int) else count
        self.call("llvm.memset.p0.i64", "void", pointer, literal("i8", 0), size, literal("i1", 0))

    def move(self, to: Value, start: Value, count: Operand) -> None:
        """Copy bytes; the ranges may overlap."""
        size = literal("i64", count) if isinstance(count, int) else count
        self.call("llvm.memmove.p0.p0.i64", "void", to, start, size, literal("i1", 0))

    def variable(self, initial: Value) -> Value:
        """A stack variable for values that structured code changes; returns its address."""
        pointer = Value("ptr", f"%{self.name('x')}")
        self.allocations.append(f"  {pointer.name} = alloca {initial.type}, align 64")
        self.emit(f"store {initial}, {pointer}, align 64")
        return pointer

    def area(self, nbytes: int) -> Value:
        """Memory on the stack, aligned to 64 bytes; returns its address."""
        pointer = Value("ptr", f"%{self.name('area')}")
        self.allocations.append(f"  {pointer.name} = alloca [{nbytes} x i8], align 64")
        return pointer

    def get(self, of: str, variable: Value) -> Value:
        """Read a stack variable."""
        return self.value(of, f"load {of}, {variable}, align 64")

    def set(self, variable: Value, a: Value) -> None:
        """Write a stack variable."""
        self.emit(f"store {a}, {variable}, align 64")

    @cached_property
    def cell(self) -> Value:
        """An i64 on the stack."""
        pointer = Value("ptr", f"%{self.name('cell')}")
        self.allocations.append(f"  {pointer.name} = alloca i64, align 8")
        return pointer

    # Control

    def label(self, name: str) -> None:
        """Begin an LLVM block."""
        self._casts.clear()
        self.lines.append(f"{name}:")

    def branch(self, to: str) -> None:
        """Go to a block."""
        self.emit(f"br label %{to}")

    def branch_if(self, condition: Value, yes: str, no: str) -> None:
        """Go to one of two blocks."""
        self.emit(f"br {condition}, label %{yes}, label %{no}")

    def ret(self, a: Value | None = None) -> None:
        """Return."""
        self.emit("ret void" if a is None else f"ret {a}")

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Code that runs only if the condition holds; it may end in `ret`."""
        inside, after = self.name("then"), self.name("after")
        self.branch_if(condition, inside, after)
        self.label(inside)
        yield
        if not self.lines[-1].lstrip().startswith(("ret ", "br ")):
            self.branch(after)
        self.label(after)

    @contextmanager
    def loop(self, count: Operand, start: int = 0) -> Iterator[Value]:
        """Code that runs for every i64 from `start` to `count` (exclusive)."""
        before, head, body, after = (self.name(each) for each in ("pre", "head", "body", "end"))
        self.branch(before)
        self.label(before)
        counter = self.variable(Value("i64", str(start)))
        self.branch(head)
        self.label(head)
        index = self.get("i64", counter)
        self.branch_if(self.compare("slt", index, count), body, after)
        self.label(body)
        yield index
        self.set(counter, self.add(index, 1))
        self.branch(head)
        self.label(after)

    @contextmanager
    def each_bit(self, bits: Value) -> Iterator[Value]:
        """Code that runs for the index (i64) of every set bit of an i32, lowest first."""
        left = self.variable(bits)
        head, body, after = (self.name(each) for each in ("head", "body", "end"))
        self.branch(head)
        self.label(head)
        now = self.get("i32", left)
        self.branch_if(self.compare("ne", now, 0), body, after)
        self.label(body)
        self.set(left, self.and_(now, self.sub(now, 1)))
        yield self.cast("zext", self.lowest_bit(now), "i64")
        self.branch(head)
        self.label(after)

    def lowest_bit(self, bits: Value) -> Value:
        """The index of the lowest set bit; one must be set."""
        return self.intrinsic("cttz", bits, Value("i1", "true"), result=bits.type)
