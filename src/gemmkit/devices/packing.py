"""Puts a launch's arguments into the form in which a kernel's PTX takes them."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gemmkit.cxx.expressions import Expression, Number
from gemmkit.devices.device import ARGUMENT_TYPES, Value
from gemmkit.devices.scalars import encoded
from gemmkit.dtypes import Dtype
from gemmkit.errors import DeviceError, UsageError
from gemmkit.jit.binary import Binary
from gemmkit.kernels.group_table import MATRICES
from gemmkit.kernels.operand_copies import WORKSPACE, place_in_memory
from gemmkit.kernels.plan import FURTHER_MAP_ARGUMENTS, MAP_ARGUMENTS, LaunchPlan, StructPlace
from gemmkit.tensor_maps import MAP_ALIGNMENT, MAP_BYTES, TensorMap

_SCALES = ("alpha", "beta")
_FLOATS: Mapping[str, Dtype] = {"f32": "float32", "f64": "float64"}

_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)(?P<pointer>\s+\.ptr\b)?"
    r"[^,\[]*?\s[\w$]+(?:\[(?P<bytes>\d+)\])?\s*(?:,|$)"
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A kernel parameter as PTX declares it: `u32`, `f64`, …, of `size` bytes at `offset`.

    `alignment` is in bytes too. `pointer` says whether it is marked as one; only newer PTX does
    that.
    """

    type: str
    size: int
    offset: int
    pointer: bool
    alignment: int


class ParameterSpace:
    """A kernel's parameters in memory, and the list of their addresses that the driver takes.

    `words` are their 64-bit words, to be patched; an address lies in one of them.

    The driver also takes parameters as one buffer, but then a kernel does not find those that are
    aligned to 64 bytes, such as tensor maps (driver 580 on an H100).
    """

    def __init__(self, packed: bytes, offsets: Sequence[int]) -> None:
        self._offsets = offsets
        self._hold(bytearray(packed + bytes(-len(packed) % 8)))

    def _hold(self, space: bytearray) -> None:
        """Have the parameters lie in this memory."""
        self._space, offsets = space, self._offsets
        self._bytes = (ctypes.c_char * len(space)).from_buffer(space)
        start = ctypes.addressof(self._bytes)
        self._list = (ctypes.c_void_p * max(len(offsets), 1))(*[start + each for each in offsets])
        self.words = memoryview(space).cast("Q")
        self.pointer = ctypes.c_void_p(ctypes.addressof(self._list))

    def changed(self, values: Mapping[int, bytes]) -> ParameterSpace:
        """A copy with other bytes at some places."""
        space = bytearray(self._space)
        for place, value in values.items():
            space[place : place + len(value)] = value
        made = object.__new__(type(self))
        made._offsets = self._offsets
        made._hold(space)
        return made


@lru_cache(maxsize=256)
def entry_parameters(ptx: str, entry: str) -> tuple[Parameter, ...]:
    """The parameters of one kernel of a PTX text.

    Raises:
        DeviceError: the text has no such kernel.
    """
    found = re.search(rf"\.entry\s+{re.escape(entry)}\s*(?:\(([^)]*)\)|(?=[\s{{.]))", ptx)
    if found is None:
        raise DeviceError(f"the PTX has no kernel '{entry}'")
    parameters: list[Parameter] = []
    end = 0
    for match in _PARAMETER.finditer(" ".join((found[1] or "").split())):
        element = int(re.sub(r"\D", "", match["type"])) // 8
        size = element * int(match["bytes"] or 1)
        alignment = int(match["align"] or element)
        offset = -(-end // alignment) * alignment
        # In bytes, as a struct is.
        kind = f"{size} bytes" if match["bytes"] else match["type"]
        is_pointer = match["pointer"] is not None
        parameters.append(Parameter(kind, size, offset, is_pointer, alignment))
        end = offset + size
    return tuple(parameters)


def bound_values(
    binary: Binary, plan: LaunchPlan, arguments: Mapping[str, Value]
) -> list[np.generic]:
    """A NumPy scalar for each parameter of the kernel, as wide as its PTX declares it.

    That of a struct is a `numpy.void` of its bytes, whether it is bound field by field or whole.

    Raises:
        DeviceError: the plan's signature does not fit the kernel's parameters.
        UsageError: a struct is laid out otherwise than its declaration reads.
    """
    parameters, structs = _parameters(binary, plan)
    marked = any(parameter.pointer for parameter in parameters)
    numbers = {name: each for name, each in arguments.items() if not isinstance(each, bytes)}
    texts = iter(plan.signature)
    halves = dict(plan.scalars)

    def value(struct: StructPlace | None, place: Parameter) -> np.generic:
        if struct is not None:
            return _struct(plan.kernel, struct, texts, arguments, place, halves)
        text = next(texts)
        whole = arguments.get(text)
        if isinstance(whole, bytes):
            return _by_value(plan.kernel, text, whole, place)
        return _scalar(plan.kernel, text, numbers, place, marked, halves)

    return [value(*each) for each in zip(structs, parameters, strict=True)]


def with_tensor_maps(
    plan: LaunchPlan, arguments: Mapping[str, Value], encoded: Callable[[TensorMap], bytes]
) -> Mapping[str, Value]:
    """The arguments with the tensor maps of the plan's matrices, in a device's encoding; zeros for
    those of gemmkit's own kernels that the launch does without.

    Raises:
        UsageError: a rule of tensor maps is broken.
    """
    own = {*MAP_ARGUMENTS, *FURTHER_MAP_ARGUMENTS} & set(plan.signature)
    left_out = dict.fromkeys(own, bytes(MAP_BYTES))
    if not plan.tensor_maps and not left_out:
        return arguments
    maps = {each.rule.name: encoded(each.of(arguments)) for each in plan.tensor_maps}
    return {**arguments, **left_out, **maps}


def argument_offsets(binary: Binary, plan: LaunchPlan) -> dict[str, int]:
    """Where each entry of the plan's signature is in the kernel's parameter space, in bytes.

    Raises:
        DeviceError: the plan's signature does not fit the kernel's parameters.
    """
    parameters, structs = _parameters(binary, plan)
    offsets: list[int] = []
    for struct, place in zip(structs, parameters, strict=True):
        fields = (0,) if struct is None else (each.offset for each in struct.fields)
        offsets += (place.offset + each for each in fields)
    return dict(zip(plan.signature, offsets, strict=True))


def _parameters(
    binary: Binary, plan: LaunchPlan
) -> tuple[tuple[Parameter, ...], Sequence[StructPlace | None]]:
    """The kernel's parameters, and for each the struct that is bound field by field, or None."""
    parameters = entry_parameters(binary.ptx, binary.entry)
    structs = plan.structs or (None,) * len(plan.signature)
    if len(parameters) != len(structs):
        raise DeviceError(
            f"'{plan.kernel}' has {len(parameters)} parameters in its PTX, and {len(structs)} in "
            f"its signature ({', '.join(plan.signature)})"
        )
    return parameters, structs


def packed(binary: Binary, values: Sequence[np.generic]) -> bytes:
    """The kernel's parameter space with the values of `bound_values` in it."""
    parameters = entry_parameters(binary.ptx, binary.entry)
    space = bytearray(max((each.offset + each.size for each in parameters), default=0))
    for value, place in zip(values, parameters, strict=True):
        space[place.offset : place.offset + place.size] = value.tobytes()
    return bytes(space)


def scalar_types(binary: Binary, plan: LaunchPlan) -> dict[str, tuple[Dtype, ...]]:
    """The types of the parameters through which α and β reach the kernel, by name.

    Raises:
        DeviceError: the plan's signature does not fit the kernel's parameters.
    """
    parameters, structs = _parameters(binary, plan)
    texts = iter(plan.signature)
    found: dict[str, list[Dtype]] = {}
    for name, dtype in plan.scalars:
        found.setdefault(name, []).append(dtype)
    for struct, place in zip(structs, parameters, strict=True):
        for part in (place,) if struct is None else struct.fields:
            text = next(texts)
            known = _FLOATS.get(part.type)
            for name in _SCALES:
                if known is not None and name in text:
                    found.setdefault(name, []).append(known)
    return {name: tuple(types) for name, types in found.items()}


def address_names(plan: LaunchPlan) -> tuple[str, ...]:
    """The arguments of a plan that are addresses, including those for its table."""
    names = plan.signature if plan.table is None else (*plan.signature, *MATRICES)
    names += tuple(each.rule.operand for each in plan.tensor_maps)
    return tuple(name for name in names if ARGUMENT_TYPES.get(name) is np.uint64)


def launch_before(plan: LaunchPlan, binary: Binary) -> tuple[LaunchPlan, Binary] | None:
    """The launch before a plan's own, and its code, or None where it has nothing to do.

    Raises:
        DeviceError: the binary is of another plan.
    """
    if plan.before is None or plan.before.blocks == 0:
        return None
    if binary.before is None:
        raise DeviceError(
            f"'{plan.kernel}' needs '{plan.before.kernel}' launched before, and its binary has no "
            "code of that: compile this plan"
        )
    return plan.before, binary.before


def preparing_launches(plan: LaunchPlan, binary: Binary) -> list[tuple[LaunchPlan, Binary]]:
    """The launches that make a plan's copies of prepared operands, and their code.

    Raises:
        DeviceError: the binary is of another plan.
    """
    if len(plan.prepared) != len(binary.prepared):
        raise DeviceError(
            f"'{plan.kernel}' reads {len(plan.prepared)} prepared operands, and its binary has "
            f"code for {len(binary.prepared)}: compile this plan"
        )
    return [(each.maker, own) for each, own in zip(plan.prepared, binary.prepared, strict=True)]


def is_address_text(text: str) -> bool:
    """Whether an entry of a signature is an address: an operand's, or one in memory for copies."""
    return ARGUMENT_TYPES.get(text) is np.uint64 or place_in_memory(text) is not None


def places_in_memory(plan: LaunchPlan, memory: str = WORKSPACE) -> dict[str, int]:
    """The entries of a plan's signature that are addresses in the workspace or another memory for
    copies, and tensor maps of what lies there, with the bytes from its start."""
    found = {text: place_in_memory(text) for text in plan.signature}
    found |= {
        each.rule.name: (each.copy.memory, each.copy.offset)
        for each in plan.tensor_maps
        if each.copy is not None
    }
    return {text: place[1] for text, place in found.items() if place and place[0] == memory}


def _struct(
    kernel: str,
    struct: StructPlace,
    texts: Iterator[str],
    arguments: Mapping[str, Value],
    place: Parameter,
    halves: Mapping[str, Dtype],
) -> np.generic:
    """A struct's bytes, its fields filled with the next arguments."""
    if (place.size, place.alignment) != (struct.size, struct.alignment):
        raise UsageError(
            f"{struct.line}: '{kernel}' takes the struct '{struct.declared}' as {place.size} bytes "
            f"aligned to {place.alignment}, and its declaration reads as {struct.size} bytes "
            f"aligned to {struct.alignment}: pass its fields as parameters of their own"
        )
    space = bytearray(struct.size)
    numbers = {name: each for name, each in arguments.items() if not isinstance(each, bytes)}
    for each in struct.fields:
        field = Parameter(each.type, each.size, place.offset + each.offset, each.pointer, each.size)
        text = next(texts)
        whole_field = arguments.get(text)
        if isinstance(whole_field, bytes):
            value = _by_value(kernel, text, whole_field, field)
        else:
            value = _scalar(kernel, text, numbers, field, marked=True, halves=halves)
        space[each.offset : each.offset + each.size] = value.tobytes()
    whole: np.generic = np.frombuffer(bytes(space), f"V{struct.size}")[0]
    return whole


def _by_value(kernel: str, text: str, value: bytes, place: Parameter) -> np.generic:
    """What is passed whole, such as a tensor map of 128 bytes."""
    if len(value) != place.size:
        raise _misfit(kernel, f"'{text}' of {len(value)} bytes", place)
    if len(value) == MAP_BYTES and place.offset % MAP_ALIGNMENT:
        raise DeviceError(
            f"'{kernel}' takes the tensor map '{text}' at byte {place.offset} of its parameters, "
            f"which is not aligned to {MAP_ALIGNMENT}: declare its type with alignas(64)"
        )
    whole: np.generic = np.frombuffer(value, f"V{len(value)}")[0]
    return whole


def _scalar(
    kernel: str,
    text: str,
    arguments: Mapping[str, Number],
    place: Parameter,
    marked: bool,
    halves: Mapping[str, Dtype],
) -> np.generic:
    value = arguments[text] if text in arguments else Expression.parse(text).evaluate(arguments)
    is_address = is_address_text(text)
    kind, bits = place.type[0], 8 * place.size
    if is_address:
        if place.size != 8 or kind == "f" or (marked and not place.pointer):
            raise _misfit(kernel, f"the address '{text}'", place)
    elif place.pointer and value != 0:
        raise _misfit(kernel, f"the number '{text}'", place)
    half = next((halves[name] for name in _SCALES if name in halves and name in text), None)
    if half is not None and place.size == 2:
        return encoded(value, half)
    if " " in place.type or place.size > 8:
        raise _misfit(kernel, f"'{text}'", place)
    if kind == "f" or (kind == "b" and isinstance(value, float)):
        floats: dict[int, type[np.floating]] = {32: np.float32, 64: np.float64}
        if bits not in floats:
            raise _misfit(kernel, f"'{text}'", place)
        return floats[bits](value)
    if isinstance(value, float):
        raise _misfit(kernel, f"the fp32 number '{text}'", place)
    signed = -(1 << (bits - 1)) <= value < 0
    if not signed and not 0 <= value < 1 << bits:
        raise DeviceError(f"'{kernel}': {text} = {value:,} does not fit into {place.size} bytes")
    scalar: np.generic = np.dtype(f"{'i' if signed else 'u'}{place.size}").type(value)
    return scalar


def _misfit(kernel: str, what: str, place: Parameter) -> DeviceError:
    kinds = {"f": "a floating-point number of", "u": "an integer of", "s": "an integer of"}
    taken = kinds.get(place.type[0], "")
    wanted = "a pointer" if place.pointer else f"{taken} {place.size} bytes".strip()
    return DeviceError(
        f"'{kernel}' takes {wanted} at byte {place.offset} of its parameters, not {what}: the "
        "arguments and the kernel's parameters must be in the same order"
    )
