"""The words of a launch's parameters that change from run to run: addresses, also those that begin
tensor maps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gemmkit.devices.device import Value
from gemmkit.devices.packing import places_in_memory
from gemmkit.devices.tensor_maps import check_address
from gemmkit.errors import DeviceError
from gemmkit.kernels.operand_copies import PREPARED
from gemmkit.kernels.plan import LaunchPlan
from gemmkit.kernels.tensor_maps import SOME_ADDRESS

# The operands of a product, in the order in which `PreparedLaunch.run` takes their addresses; those
# of copies of prepared operands, of a table of groups, and of this GPU's own rows and the flags of
# others' come last, and only launches that read such need them.
ROLES = (
    *("a", "b", "out", "bias", "residual", "auxiliary", "scale_a", "scale_b", "scale_result"),
    *PREPARED,
    "table",
    *("own", "arrived"),
)

# For each argument that is an address: the role of its operand, and bytes from its element 0.
Places = Mapping[str, tuple[str, int]]

_WORD = 8


def with_addresses(
    plan: LaunchPlan, arguments: Mapping[str, Value], places: Places | None
) -> Mapping[str, Value]:
    """The arguments with an address for each operand of a tensor map that each run gives anew, and
    for the workspace."""
    workspace = arguments.get("workspace") or (SOME_ADDRESS if plan.workspace_bytes else 0)
    return {
        **arguments,
        "workspace": workspace,
        **dict.fromkeys(places or (), SOME_ADDRESS),
    }


def workspace_words(
    plan: LaunchPlan, offsets: Mapping[str, int], bound: Mapping[str, Value]
) -> Iterator[tuple[int, int]]:
    """The words that hold addresses in the workspace, and the bytes from its start.

    Raises:
        DeviceError: the driver encodes tensor maps otherwise.
    """
    for text, offset in places_in_memory(plan).items():
        encoded = bound.get(text)
        if isinstance(encoded, bytes):
            check_address(encoded, SOME_ADDRESS + offset)
        yield word_of(plan, offsets, text), offset


def map_patches(
    plan: LaunchPlan, offsets: Mapping[str, int], arguments: Mapping[str, Value], places: Places
) -> Iterator[tuple[int, int, int]]:
    """The first word of each tensor map, which is its matrix's address, and where that comes from.

    Raises:
        DeviceError: the driver encodes maps otherwise.
    """
    for each in plan.tensor_maps:
        if each.rule.operand not in places or each.copy is not None:
            continue
        encoded = arguments[each.rule.name]
        assert isinstance(encoded, bytes)
        check_address(encoded, SOME_ADDRESS)
        role, offset = places[each.rule.operand]
        yield word_of(plan, offsets, each.rule.name), ROLES.index(role), offset


def copy_patches(
    plan: LaunchPlan, offsets: Mapping[str, int], arguments: Mapping[str, Value], places: Places
) -> Iterator[tuple[int, int, int]]:
    """The words that hold addresses in the memory of prepared operands, which each run gives anew.

    Raises:
        DeviceError: the driver encodes tensor maps otherwise.
    """
    for memory in PREPARED:
        if memory not in places:
            continue
        role, start = places[memory]
        for text, offset in places_in_memory(plan, memory).items():
            encoded = arguments.get(text)
            if isinstance(encoded, bytes):
                check_address(encoded, SOME_ADDRESS + offset)
            if text != memory:
                yield word_of(plan, offsets, text), ROLES.index(role), start + offset


def word_of(plan: LaunchPlan, offsets: Mapping[str, int], name: str) -> int:
    """The 64-bit word of the parameter space in which an address lies.

    Raises:
        DeviceError: it lies in two, as only the field of a packed struct can.
    """
    word, rest = divmod(offsets[name], _WORD)
    if rest:
        raise DeviceError(
            f"'{plan.kernel}' takes the address '{name}' at byte {offsets[name]} of its "
            "parameters, which is not aligned to 8: pass it as a parameter of its own"
        )
    return word
