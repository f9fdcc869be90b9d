"""Structs that kernels take by value: how CUDA C++ lays them out, read from their declarations."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gemmkit.cxx.declarations import (
    KernelDeclaration,
    Parameter,
    aliases_in,
    closing,
    read_parameter,
    split_arguments,
    without_comments,
    without_directives,
)
from gemmkit.cxx.expressions import Expression, Number
from gemmkit.errors import UsageError
from gemmkit.frontends.refusals import MAP_TYPES
from gemmkit.frontends.struct_declarations import (
    ALIGNMENT,
    StructDeclaration,
    enums_in,
    structs_in,
)
from gemmkit.frontends.struct_packing import pack_operator_line, packing
from gemmkit.kernels.plan import MAP_FIELD, FieldPlace, StructPlace
from gemmkit.tensor_maps import MAP_ALIGNMENT, MAP_BYTES

_ACCESS = re.compile(r"\b(?:public|protected|private)\s*:(?!:)")
# Members that take no room in an object.
_NO_FIELD = re.compile(r"\s*(?:static|using|typedef|friend|enum|static_assert|template)\b")
_ARRAY = re.compile(r"\[([^\]]*)\]")
# A struct with more scalars than this is not an argument that anybody would list.
_MOST_FIELDS = 256

# Size and alignment in bytes, and the kind of PTX type: signed, unsigned, floating-point.
_Scalar = tuple[int, int, str]
_SCALARS: Mapping[str, _Scalar] = {
    **dict.fromkeys(("char", "signed char", "int8_t"), (1, 1, "s")),
    **dict.fromkeys(("bool", "unsigned char", "uint8_t"), (1, 1, "u")),
    **dict.fromkeys(("short", "short int", "int16_t"), (2, 2, "s")),
    **dict.fromkeys(("unsigned short", "uint16_t", "ushort"), (2, 2, "u")),
    **dict.fromkeys(("half", "__half", "nv_bfloat16", "__nv_bfloat16"), (2, 2, "b")),
    **dict.fromkeys(("int", "signed", "signed int", "int32_t"), (4, 4, "s")),
    **dict.fromkeys(("unsigned", "unsigned int", "uint", "uint32_t"), (4, 4, "u")),
    **dict.fromkeys(
        ("long", "long int", "long long", "long long int", "int64_t", "ptrdiff_t", "ssize_t"),
        (8, 8, "s"),
    ),
    **dict.fromkeys(
        ("unsigned long", "unsigned long int", "unsigned long long", "unsigned long long int",
         "size_t", "uint64_t", "uintptr_t"),
        (8, 8, "u"),
    ),
    "float": (4, 4, "f"),
    "double": (8, 8, "f"),
}  # fmt: skip
_POINTER: _Scalar = (8, 8, "u")
_VECTOR = re.compile(r"(u?)(char|short|int|long|longlong)([1-4])|(float|double)([1-4])")


@dataclass(frozen=True, slots=True)
class _Layout:
    """Fields with their types as declared, and where they are; `size` and `alignment` in bytes."""

    fields: tuple[tuple[Parameter, FieldPlace], ...]
    size: int
    alignment: int


class _Unknown(Exception):
    """Why a struct cannot be laid out."""


@dataclass(frozen=True)
class Structs:
    """The structs and enumerations that a source declares.

    `types` are its aliases, `numbers` its constants, for the lengths of arrays. `pack_operator` is
    the line of a `_Pragma("pack")`.
    """

    declared: Mapping[str, StructDeclaration]
    enums: Mapping[str, str]
    types: Mapping[str, str]
    numbers: Mapping[str, Number]
    pack_operator: int | None = None

    @classmethod
    def of(cls, texts: Iterable[str], numbers: Mapping[str, Number]) -> Structs:
        """Those of these texts; of two by one name, that of the later text."""
        declared: dict[str, StructDeclaration] = {}
        enums: dict[str, str] = {}
        types: dict[str, str] = {}
        operator: int | None = None
        for text in texts:
            uncommented = without_comments(text)
            plain = without_directives(uncommented)
            operator = pack_operator_line(without_comments(text, keep_literals=True)) or operator
            types |= aliases_in(plain)
            enums |= {each["name"]: (each["type"] or "int").strip() for each in enums_in(plain)}
            declared |= {each.name: each for each in structs_in(plain, packing(uncommented))}
        return cls(declared, enums, types, numbers, operator)

    def flattened(
        self,
        kernel: KernelDeclaration,
        values: Mapping[str, str],
        file: str,
        whole: Collection[int] = (),
    ) -> tuple[KernelDeclaration, tuple[StructPlace | None, ...]]:
        """The kernel with a parameter for each field of its structs, and where the fields are.

        A field is named after its parameter, as in `A.width`. The tuple has an entry for each of
        the kernel's own parameters, and is empty where none is a struct that is declared here.
        `values` are the types that the kernel's template parameters stand for, `file` declares it,
        and `whole` are the numbers of its parameters that are passed as they are.

        Raises:
            UsageError: a struct has a field whose type or place is unknown.
        """
        parameters: list[Parameter] = []
        places: list[StructPlace | None] = []
        for number, parameter in enumerate(kernel.parameters):
            if number in whole:
                parameters.append(parameter)
                places.append(None)
                continue
            if self.pack_operator is not None and not self._is_scalar(parameter):
                raise UsageError(
                    f'{file}:{self.pack_operator}: _Pragma("pack") is not supported, and '
                    f"'{kernel.name}' takes the struct '{parameter}' by value: write "
                    "#pragma pack on a separate line instead"
                )
            if parameter.pointer or not self._has_fields(parameter.type):
                parameters.append(parameter)
                places.append(None)
                continue
            owner = parameter.name or f"p{number}"
            try:
                layout = self._layout(parameter.type, values, 0)
            except _Unknown as unknown:
                raise UsageError(
                    f"{file}:{kernel.line}: '{kernel.name}' takes the struct '{parameter}' by "
                    f"value, but {unknown}: pass its fields as separate parameters, or use a plain "
                    "struct of numbers and pointers"
                ) from None
            parameters += [
                replace(field, name=f"{owner}.{field.name}") for field, _ in layout.fields
            ]
            fields = tuple(place for _, place in layout.fields)
            places.append(
                StructPlace(
                    str(parameter),
                    layout.size,
                    layout.alignment,
                    fields,
                    f"{file}:{kernel.line}",
                )
            )
        if not any(places):
            return kernel, ()
        return replace(kernel, parameters=tuple(parameters)), tuple(places)

    def wrong_elements(self, kernel: KernelDeclaration, values: Mapping[str, str]) -> str | None:
        """Why the structs that a kernel takes addresses of are no fp32 elements, or None."""
        for parameter in kernel.parameters:
            if not parameter.pointer or not self._is_struct(parameter.type):
                continue
            try:
                fields = self._layout(parameter.type, values, 0).fields
            except _Unknown:
                fields = ()
            if not fields or any(place.type != "f32" for _, place in fields):
                return (
                    f"its parameter '{parameter}' points to a struct in device memory; take the "
                    "struct by value, or a pointer to float elements"
                )
        return None

    def _is_scalar(self, parameter: Parameter) -> bool:
        resolved = parameter.resolved(self.types)
        return bool(resolved.pointer) or resolved.type in {*_SCALARS, *self.enums}

    def _has_fields(self, type_name: str) -> bool:
        plain = self._resolved(type_name, {}).type
        return self._is_struct(type_name) or plain == "dim3" or bool(_VECTOR.fullmatch(plain))

    def _is_struct(self, type_name: str) -> bool:
        return self._find(self._resolved(type_name, {}).type) is not None

    def _resolved(self, type_name: str, values: Mapping[str, str]) -> Parameter:
        return Parameter("", type_name, 0).resolved({**self.types, **values})

    def _find(self, type_name: str) -> StructDeclaration | None:
        if ">::" in type_name.replace(" ", ""):
            return None  # a type within the struct
        plain = type_name.partition("<")[0].strip().removeprefix("struct ").split("::")[-1]
        return self.declared.get(plain.strip())

    def _layout(self, type_name: str, values: Mapping[str, str], depth: int) -> _Layout:
        """How an object of a type lies in memory; the one field of a scalar has no name."""
        resolved = self._resolved(type_name, values)
        if resolved.pointer:
            return _scalar_layout(resolved, _POINTER)
        plain = " ".join(resolved.type.removeprefix("std::").removeprefix("struct ").split())
        if plain.split("::")[-1] in MAP_TYPES:
            place = FieldPlace(0, MAP_BYTES, MAP_FIELD)
            field = (replace(resolved, name=""), place)
            return _Layout((field,), MAP_BYTES, MAP_ALIGNMENT)
        plain = self.enums.get(plain.split("::")[-1], plain)
        if plain in _SCALARS:
            return _scalar_layout(resolved, _SCALARS[plain])
        if plain == "dim3":
            return _vector_layout("unsigned int", 3, False)
        vector = _VECTOR.fullmatch(plain)
        if vector is not None:
            return _vector(vector)
        struct = self._find(plain)
        if struct is None or depth > 16:
            raise _Unknown(f"it contains '{resolved.type}', whose layout is unknown")
        given = split_arguments(plain.partition("<")[2].rpartition(">")[0])
        inner = dict(zip(struct.template, given, strict=False))
        return self._struct_layout(struct, inner, depth + 1)

    def _struct_layout(
        self, struct: StructDeclaration, values: Mapping[str, str], depth: int
    ) -> _Layout:
        if struct.is_union:
            raise _Unknown(f"'{struct.name}' is a union")
        fields: list[tuple[Parameter, FieldPlace]] = []
        end, alignment = 0, struct.alignment
        bases = [(Parameter("", base, 0), 1) for base in struct.bases]
        for member, count in [*bases, *self._members(struct)]:
            one = (
                _scalar_layout(member, _POINTER)
                if member.pointer
                else self._layout(member.type, values, depth)
            )
            aligned = min(one.alignment, struct.packed or one.alignment)
            end = -(-end // aligned) * aligned
            alignment = max(alignment, aligned)
            for index in range(count):
                name = f"{member.name}[{index}]" if count > 1 else member.name
                fields += [_moved(*each, name, end + index * one.size) for each in one.fields]
            end += count * one.size
            if len(fields) > _MOST_FIELDS:
                raise _Unknown(f"'{struct.name}' has more than {_MOST_FIELDS} fields")
        size = -(-max(end, 1) // alignment) * alignment
        return _Layout(tuple(fields), size, alignment)

    def _members(self, struct: StructDeclaration) -> Iterator[tuple[Parameter, int]]:
        """Each data member, and how many there are of it: the length of an array, or 1."""
        for statement in _statements(_ACCESS.sub(" ", struct.body), struct.name):
            first, *others = split_arguments(statement)
            member, count = self._declarator(first, struct.name)
            yield member, count
            for other in others:
                further, count = self._declarator(f"{member.type} {other}", struct.name)
                yield further, count

    def _declarator(self, text: str, struct: str) -> tuple[Parameter, int]:
        text = re.split(r"[={]", text)[0].strip()
        if re.search(r"(?<!:):(?!:)", text) or "(" in text:
            raise _Unknown(f"'{text}' in '{struct}' is not a plain field")
        count = 1
        for length in _ARRAY.findall(text):
            try:
                count *= Expression.parse(length).integer(self.numbers)
            except UsageError:
                raise _Unknown(f"the length of '{text}' in '{struct}' is unknown") from None
        member = read_parameter(_ARRAY.sub("", text))
        if not member.name:
            raise _Unknown(f"'{text}' in '{struct}' is not a plain field")
        return member, count


def _scalar_layout(field: Parameter, scalar: _Scalar) -> _Layout:
    size, alignment, kind = scalar
    place = FieldPlace(0, size, f"{kind}{8 * size}", field.pointer)
    return _Layout(((replace(field, name=""), place),), size, alignment)


def _vector(match: re.Match[str]) -> _Layout:
    """CUDA's vector types; those of 2 and 4 elements are aligned to all of themselves."""
    if match[4]:
        return _vector_layout(match[4], int(match[5]), True)
    whole = {"longlong": "long long"}.get(match[2], match[2])
    return _vector_layout(f"unsigned {whole}" if match[1] else whole, int(match[3]), True)


def _vector_layout(element: str, count: int, aligned: bool) -> _Layout:
    size, alignment, kind = _SCALARS[element]
    fields = tuple(
        (Parameter("xyzw"[place], element, 0), FieldPlace(place * size, size, f"{kind}{8 * size}"))
        for place in range(count)
    )
    whole = min(count * size, 16) if aligned and count in (2, 4) else alignment
    return _Layout(fields, count * size, whole)


def _moved(
    field: Parameter, place: FieldPlace, owner: str, distance: int
) -> tuple[Parameter, FieldPlace]:
    names = [each for each in (owner, field.name) if each]
    moved = replace(place, offset=place.offset + distance)
    return replace(field, name=".".join(names)), moved


def _statements(body: str, struct: str) -> Iterator[str]:
    """The declarations of data members in a struct's body; methods are passed over."""
    position = start = 0
    while position < len(body):
        character = body[position]
        if character in "([":
            position = max(closing(body, position), position)
        elif character == "{":
            close = closing(body, position)
            if close < 0:
                return
            if re.search(r"\b(?:struct|class|union)\b[^()]*$", body[start:position]):
                if body[close + 1 :].lstrip()[:1] != ";":
                    raise _Unknown(f"'{struct}' declares a field together with its struct type")
                start = close + 1
            elif "(" in body[start:position].partition("=")[0]:
                start = close + 1
            position = close
        elif character == ";":
            statement = body[start:position].strip()
            start = position + 1
            if statement.startswith("virtual "):
                raise _Unknown(f"'{struct}' has virtual functions")
            if ALIGNMENT.search(statement):
                raise _Unknown(f"'{struct}' has a field with an alignment specifier")
            if statement and not _NO_FIELD.match(statement) and not _is_method(statement):
                yield statement
        position += 1


def _is_method(statement: str) -> bool:
    return (
        "(" in re.split(r"[={]", statement)[0] or re.search(r"\boperator\b", statement) is not None
    )


def own_numbers(numbers: Iterable[int], structs: Sequence[StructPlace | None]) -> list[int]:
    """Which of a kernel's own parameters these are, fields of structs left out.

    `numbers` count parameters and fields, as `Structs.flattened` lists them.
    """
    own = [
        None if struct is not None else number
        for number, struct in enumerate(structs)
        for _ in range(1 if struct is None else len(struct.fields))
    ]
    found = (own[number] if own else number for number in numbers)
    return [number for number in found if number is not None]
