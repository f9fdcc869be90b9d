"""`Arithmetic`: the instructions of LLVM IR that compute values from values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gemmkit.emulator.codegen.ir_values import (
    LANES,
    Operand,
    Value,
    element_type,
    like,
    literal,
    mangled,
    vector,
)


class Arithmetic:
    """A function's body, emitted from top to bottom: values.

    `declare` declares an external function: its name, the type of its result, and those of its
    parameters.
    """

    def __init__(self, declare: Callable[[str, str, Sequence[str]], None]) -> None:
        self._declare = declare
        self.lines: list[str] = []
        self._count = 0
        # What a bitcast or a complement was made of, by the names of both: undoing it is free.
        # Bitcasts are also made only once per LLVM block.
        self._undone: dict[tuple[str, str], Value] = {}
        self._casts: dict[tuple[str, str], Value] = {}

    def emit(self, text: str) -> None:
        """An instruction without a result."""
        self.lines.append("  " + text)

    def name(self, prefix: str = "v") -> str:
        """A name that was not used before."""
        self._count += 1
        return f"{prefix}{self._count}"

    def value(self, of: str, text: str) -> Value:
        """An instruction with a result of type `of`."""
        self._count += 1
        name = f"%v{self._count}"
        self.lines.append(f"  {name} = {text}")
        return Value(of, name)

    def _other(self, a: Value, b: Operand) -> str:
        return (literal(a.type, b) if isinstance(b, int) else b).name

    def binary(self, operation: str, a: Value, b: Operand) -> Value:
        """An LLVM binary operation, such as `add` or `fmul`; an int is a literal of a's type."""
        return self.value(a.type, f"{operation} {a}, {self._other(a, b)}")

    def add(self, a: Value, b: Operand) -> Value:
        """a + b."""
        return self.binary("add", a, b)

    def sub(self, a: Value, b: Operand) -> Value:
        """a - b."""
        return self.binary("sub", a, b)

    def and_(self, a: Value, b: Operand) -> Value:
        """a & b."""
        return self.binary("and", a, b)

    def or_(self, a: Value, b: Operand) -> Value:
        """a | b."""
        return self.binary("or", a, b)

    def xor(self, a: Value, b: Operand) -> Value:
        """a ^ b."""
        return self.binary("xor", a, b)

    def not_(self, a: Value) -> Value:
        """~a."""
        found = self._undone.get((a.name, "not"))
        if found is None:
            found = self.binary("xor", a, -1)
            self._undone[found.name, "not"] = a
        return found

    def shl(self, a: Value, b: Operand) -> Value:
        """a << b."""
        return self.binary("shl", a, b)

    def lshr(self, a: Value, b: Operand) -> Value:
        """a >> b, zeros shifted in."""
        return self.binary("lshr", a, b)

    def compare(self, relation: str, a: Value, b: Operand) -> Value:
        """An integer comparison: eq, ne, ult, ule, ugt, uge, slt, sle, sgt or sge."""
        return self.value(like(a, "i1"), f"icmp {relation} {a}, {self._other(a, b)}")

    def compare_float(self, relation: str, a: Value, b: Value) -> Value:
        """A comparison of floating-point numbers, ordered (oeq, …) or not (ueq, …)."""
        return self.value(like(a, "i1"), f"fcmp {relation} {a}, {b.name}")

    def select(self, condition: Value, a: Value, b: Operand) -> Value:
        """a where the condition holds, else b."""
        other = literal(a.type, b) if isinstance(b, int) else b
        return self.value(a.type, f"select {condition}, {a}, {other}")

    def cast(self, operation: str, a: Value, element: str) -> Value:
        """A conversion such as `zext` or `bitcast`, element by element."""
        to = like(a, element)
        if to == a.type:
            return a
        if operation != "bitcast" or a.number is not None:
            return self.value(to, f"{operation} {a} to {to}")
        key = a.name, to
        found = self._undone.get(key) or self._casts.get(key)
        if found is None:
            found = self._casts[key] = self.value(to, f"bitcast {a} to {to}")
            self._undone[found.name, a.type] = a
        return found

    def resize(self, a: Value, bits: int, *, signed: bool = False) -> Value:
        """Integers truncated or extended to `bits`."""
        have = int(element_type(a.type)[1:])
        grow = "sext" if signed else "zext"
        return self.cast("trunc" if have > bits else grow, a, f"i{bits}")

    def splat(self, a: Value) -> Value:
        """A strip filled with one scalar."""
        of = vector(a.type)
        first = self.value(of, f"insertelement {of} poison, {a}, i64 0")
        zeros = f"<{LANES} x i32> zeroinitializer"
        return self.value(of, f"shufflevector {first}, {of} poison, {zeros}")

    def intrinsic(self, name: str, *arguments: Value, result: str | None = None) -> Value:
        """Call `llvm.<name>`, overloaded on its first argument's type, which is the default result
        type."""
        of = result or arguments[0].type
        full = f"llvm.{name}.{mangled(arguments[0].type)}"
        self._declare(full, of, [each.type for each in arguments])
        return self.value(of, f"call {of} @{full}({', '.join(map(str, arguments))})")

    def packed(self, conditions: Value) -> Value:
        """A strip of i1 as the bits of an i8."""
        return self.value("i8", f"bitcast {conditions} to i8")

    def unpacked(self, bits: Value) -> Value:
        """The bits of an i8 as a strip of i1."""
        return self.value(vector("i1"), f"bitcast {bits} to {vector('i1')}")

    def extract(self, a: Value, index: int) -> Value:
        """One element of a vector."""
        return self.value(element_type(a.type), f"extractelement {a}, i64 {index}")

    def insert(self, a: Value, element: Value, index: int) -> Value:
        """A vector with one element replaced."""
        return self.value(a.type, f"insertelement {a}, {element}, i64 {index}")

    def permute(self, a: Value, order: Sequence[int], b: Value | None = None) -> Value:
        """The elements of a, followed by those of b, at these indices."""
        second = f"{a.type} poison" if b is None else str(b)
        mask = f"<{len(order)} x i32> <{', '.join(f'i32 {each}' for each in order)}>"
        of = f"<{len(order)} x {element_type(a.type)}>"
        return self.value(of, f"shufflevector {a}, {second}, {mask}")
