"""`MapRule`: the tensor map of a matrix that a kernel takes, one of gemmkit's own or a user's, as
users describe theirs, and the map itself for a launch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from gemmkit.cxx.expressions import Number
from gemmkit.dtypes import ITEM_BYTES, Dtype, full_type_name
from gemmkit.errors import UsageError, unknown_name
from gemmkit.problem import BROADCAST, GemmProblem
from gemmkit.tensor_maps import ELEMENT_BYTES, MAX_BOX, MAX_RANK, Element, TensorMap

if TYPE_CHECKING:
    from gemmkit.kernels.operand_copies import OperandCopy

# Rows and columns of each matrix, its leading dimension, and its batch stride.
OPERANDS: Mapping[str, tuple[str, str, str, str]] = {
    "A": ("M", "K", "lda", "stride_a"),
    "B": ("K", "N", "ldb", "stride_b"),
    "C": ("M", "N", "ldc", "stride_c"),
    # Of gemmkit's own kernels; they lie as C does.
    "residual": ("M", "N", "ldr", "stride_r"),
    "auxiliary": ("M", "N", "ldx", "stride_x"),
    # Of an A whose rows are gathered from several GPUs those of this one, where they lie apart.
    "own": ("own_rows", "K", "own_ld", "stride_a"),
}
# What lies as another matrix does, and is of its type.
_LIES_AS = {"own": "A"}
# Stands for the address of a matrix that is not known yet; aligned as any may have to be.
SOME_ADDRESS = 1 << 20
EXAMPLE = "'map_a=A,box=64x128,swizzle=128B'"
# What the rows of a matrix must be multiples of, in bytes, where a map has two dimensions or more.
_ROW_UNIT = 16

_SPEC = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<operand>\w+)\s*(?:,(?P<rest>.*))?", re.S)
_BOX = re.compile(r"\d+(?:x\d+)*")


@dataclass(frozen=True)
class MapRule:
    """The tensor map `name` of a matrix.

    `operand` is A, B or C; `box` holds the sizes of a box in elements, innermost dimension first.
    The dimensions of the map are those of the matrix in memory, contiguous elements first, and the
    products of a batch as the third; a map of one dimension is that of all the matrix's storage.
    `swizzle` and `l2` are in bytes, 0 for none. `element` is empty for the matrix's own type.
    """

    name: str
    operand: str
    box: tuple[int, ...]
    swizzle: int = 0
    fill_nan: bool = False
    l2: int = 0
    element: Element | None = None

    @classmethod
    def parse(cls, text: str) -> MapRule:
        """Read `NAME=A|B|C,box=64x128` with the options swizzle, fill, l2, type and rank.

        Raises:
            UsageError: it is not such a text; the message names what is wrong in it.
        """
        found = _SPEC.fullmatch(text)
        if found is None:
            raise UsageError(
                f"'{text}' describes no tensor map: write NAME=A, B or C and its box, such as "
                f"{EXAMPLE}"
            )
        name, operand = found["name"], found["operand"].upper()
        if operand not in OPERANDS:
            raise UsageError(
                f"tensor map '{name}' is of '{found['operand']}'; a map is of A, B or C, as in "
                f"{EXAMPLE}"
            )
        given: dict[str, str] = {}
        for part in (found["rest"] or "").split(","):
            key, equals, value = (word.strip() for word in part.partition("="))
            if not part.strip() and found["rest"] is None:
                continue
            if not equals or not value or key in given:
                what = "twice" if key in given else "without '=' and a value"
                sizes = "; an x separates the sizes of a box, as in box=64x128" * key.isdecimal()
                raise UsageError(f"tensor map '{name}' has '{part.strip()}' {what}{sizes}")
            given[key] = value
        unknown = next((key for key in given if key not in (*_OPTIONS, "box", "rank")), None)
        if unknown is not None:
            raise UsageError(
                f"tensor map '{name}': "
                + unknown_name("option", unknown, ("box", *_OPTIONS, "rank"))
            )
        options: dict[str, Any] = {
            field_name: read(name, given[key])
            for key, (field_name, read) in _OPTIONS.items()
            if key in given
        }
        return cls(name, operand, _box(name, given), **options)

    @property
    def passes(self) -> frozenset[str]:
        """The arguments that reach the kernel through the map: the matrix, its sizes and pitch."""
        rows, columns, ld, stride = OPERANDS[self.operand]
        more = (ld,) if len(self.box) > 1 else ()
        return frozenset([self.operand, rows, columns, *more, *((stride,) * (len(self.box) > 2))])

    def refusal(self, problem: GemmProblem) -> str | None:
        """Why no map for a problem's matrix can be made, or None."""
        if problem.groups is not None:
            return f"its tensor map '{self.name}' is of one matrix, not of groups"
        shared = getattr(problem, OPERANDS[self.operand][3]) == BROADCAST
        if len(self.box) > 2 and problem.batch > 1 and shared:
            # Nothing tells the kernel that the coordinate of the product must be 0.
            return (
                f"its tensor map '{self.name}' has the products of a batch as its third dimension, "
                f"and here they share one {self.operand}"
            )
        rows, columns, ld, _ = OPERANDS[self.operand]
        values = {"M": problem.m, "N": problem.n, "K": problem.k, "batch": problem.batch}
        values |= {"lda": problem.lda, "ldb": problem.ldb, "ldc": problem.ldc}
        values |= dict(zip(("stride_a", "stride_b", "stride_c"), problem.strides, strict=True))
        try:
            self.planned(problem).at(0, values)
        except UsageError as error:
            sizes = ", ".join(f"{each} = {values[each]}" for each in (rows, columns, ld))
            return f"its tensor map '{self.name}' of {self.operand} ({sizes}) cannot be: {error}"
        return None

    def planned(self, problem: GemmProblem, copy: OperandCopy | None = None) -> PlannedMap:
        """The map for problems of this type and layout, of a copy of the matrix if there is one."""
        operand = _LIES_AS.get(self.operand, self.operand)
        transposed = dict(zip("AB", problem.transposed, strict=False)).get(operand, problem.transc)
        dtype = problem.dtype if operand in ("A", "B") else problem.result_dtype
        return PlannedMap(self, dtype, transposed, copy)

    def along(self, problem: GemmProblem) -> tuple[str, int]:
        """Which size runs along the matrix's rows in memory, and what it must be a multiple of."""
        planned = self.planned(problem)
        rows, columns, *_ = OPERANDS[self.operand]
        unit = _ROW_UNIT // ITEM_BYTES[planned.dtype] if len(self.box) > 1 else 1
        return (rows if planned.transposed else columns), unit


@dataclass(frozen=True)
class PlannedMap:
    """The map of a matrix of elements `dtype` whose columns, if `transposed`, are contiguous.

    With `copy` it is that of a copy of the matrix in the workspace or in memory of its own.
    """

    rule: MapRule
    dtype: Dtype
    transposed: bool
    copy: OperandCopy | None = None

    def at(self, address: int, arguments: Mapping[str, Number | bytes]) -> TensorMap:
        """The map of the matrix at an address; sizes and pitches, in elements, by their names.

        Raises:
            UsageError: a rule of tensor maps is broken.
        """
        rule, copy = self.rule, self.copy
        dtype = self.dtype if copy is None else copy.dtype
        item = ITEM_BYTES[dtype]
        # The driver's enumeration has no floating-point types of 8 bits.
        own: Element = "uint8" if item == 1 else dtype  # type: ignore[assignment]
        element = rule.element or own
        if ELEMENT_BYTES[element] != item:
            raise UsageError(
                f"{element} has {ELEMENT_BYTES[element]} bytes, and the matrix's type "
                f"{dtype} has {item}"
            )
        rows, columns, ld, stride = OPERANDS[rule.operand]
        if copy is None:
            extents = [_whole(arguments, rows), _whole(arguments, columns)]
            inner, outer = extents if self.transposed else extents[::-1]
            pitch = _whole(arguments, ld)
        else:
            inner, outer, pitch = copy.length, copy.lines, copy.ld
        # Where a single row has no next one, its pitch need not be one that a map could have.
        row = pitch * item if outer > 1 else -(-pitch * item // _ROW_UNIT) * _ROW_UNIT
        sizes, strides = [inner, outer], [row]
        if len(rule.box) > 2:
            # A matrix that all products share is one, for kernels of gemmkit that know of it.
            apart = _whole(arguments, stride) if copy is None else copy.stride
            sizes.append(_whole(arguments, "batch") if apart else 1)
            strides.append(apart * item if apart else row)
        if len(rule.box) == 1:
            strides = []
            sizes = [(outer - 1) * pitch + inner if outer else 0]
        return TensorMap(
            address,
            element,
            tuple(sizes),
            tuple(strides),
            rule.box,
            swizzle=rule.swizzle,
            fill_nan=rule.fill_nan,
            l2=rule.l2,
        )

    def of(self, arguments: Mapping[str, Number | bytes]) -> TensorMap:
        """The map for a launch's arguments, which hold the matrix's address too.

        Raises:
            UsageError: as `at`.
        """
        if self.copy is not None:
            return self.at(_whole(arguments, self.copy.memory) + self.copy.offset, arguments)
        return self.at(_whole(arguments, self.rule.operand), arguments)


def read_maps(given: str | Sequence[str]) -> tuple[MapRule, ...]:
    """The tensor maps that a user describes, one text each.

    Raises:
        UsageError: one is not valid, or two have the same name.
    """
    rules = tuple(MapRule.parse(each) for each in ([given] if isinstance(given, str) else given))
    names = [rule.name for rule in rules]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"tensor map '{twice}' is described twice")
    return rules


def _whole(arguments: Mapping[str, Number | bytes], name: str) -> int:
    value = arguments[name]
    assert not isinstance(value, bytes)
    return int(value)


def _box(name: str, given: Mapping[str, str]) -> tuple[int, ...]:
    text, rank = given.get("box", ""), given.get("rank")
    if not _BOX.fullmatch(text):
        told = f"'{text}' is no box" if text else "it has no box"
        raise UsageError(
            f"tensor map '{name}': {told}: give its sizes in elements, innermost dimension first, "
            "as in box=64x128"
        )
    sizes = tuple(int(each) for each in text.split("x"))
    wrong = next((size for size in sizes if not 1 <= size <= MAX_BOX), None)
    if wrong is not None:
        raise UsageError(
            f"tensor map '{name}': a box of {text} has a size of {wrong}; sizes are 1 to {MAX_BOX}"
        )
    if rank is not None:
        if not rank.isdecimal() or not 1 <= int(rank) <= MAX_RANK:
            raise UsageError(f"tensor map '{name}': a rank is 1 to 3, not '{rank}'")
        if int(rank) < len(sizes):
            raise UsageError(
                f"tensor map '{name}' has a rank of {rank}, and its box {text} has "
                f"{len(sizes)} dimensions"
            )
        sizes += (1,) * (int(rank) - len(sizes))
    if len(sizes) > 3:
        raise UsageError(
            f"tensor map '{name}' has {len(sizes)} dimensions; that of a matrix has at most 3, the "
            "products of a batch being the third"
        )
    return sizes


def _bytes(name: str, text: str, what: str, allowed: Sequence[int]) -> int:
    plain = re.sub(r"\s*b(?:ytes)?$", "", text.lower())
    value = 0 if plain == "none" else int(plain) if plain.isdecimal() else -1
    if value not in allowed:
        told = ", ".join("none" if each == 0 else f"{each}B" for each in allowed)
        raise UsageError(f"tensor map '{name}': {what}={text} is not one of {told}")
    return value


def _swizzle(name: str, text: str) -> int:
    return _bytes(name, text, "swizzle", (0, 32, 64, 128))


def _l2(name: str, text: str) -> int:
    return _bytes(name, text, "l2", (0, 64, 128, 256))


def _fill(name: str, text: str) -> bool:
    if text.lower() not in ("zero", "nan"):
        raise UsageError(f"tensor map '{name}': fill={text} is neither zero nor nan")
    return text.lower() == "nan"


def _element(name: str, text: str) -> Element:
    wanted = {"tf32": "tfloat32"}.get(full_type_name(text), full_type_name(text))
    found: Element | None = next((each for each in get_args(Element) if each == wanted), None)
    if found is None:
        raise UsageError(f"tensor map '{name}': " + unknown_name("type", text, get_args(Element)))
    return found


_OPTIONS: Mapping[str, tuple[str, Callable[[str, str], object]]] = {
    "swizzle": ("swizzle", _swizzle),
    "fill": ("fill_nan", _fill),
    "l2": ("l2", _l2),
    "type": ("element", _element),
}
