"""The addresses of shared variables: as ptxas assigns them in its machine code."""

from __future__ import annotations

import pytest

from gemmkit.emulator.ptx.parser import parse

# Alignment and size in bytes.
OWN = {"first": (4, 12), "second": (128, 20), "spare": (4, 100)}
MODULE = {"outer": (4, 100), "unnamed": (4, 40)}
DYNAMIC = {"plain": 4, "wide": 256}


def addresses(named: str, target: str = "sm_86") -> dict[str, int]:
    """Each variable's address in a kernel that names these."""
    outside = [f".shared .align {a} .b8 {n}[{size}];" for n, (a, size) in MODULE.items()]
    outside += [f".extern .shared .align {a} .b8 {n}[];" for n, a in DYNAMIC.items()]
    inside = [f".shared .align {a} .b8 {n}[{size}];" for n, (a, size) in OWN.items()]
    uses = [f"st.shared.u32 [{n}], 1;" for n in named.split()]
    text = "\n".join(
        (
            *(".version 8.5", f".target {target}", ".address_size 64", *outside),
            *(".visible .entry k() {", *inside, *uses, "ret; }"),
        )
    )
    return {name: each.offset for name, each in parse(text).kernels["k"].shared.items()}


def test_declaration_order_not_order_of_use() -> None:
    # The kernel's own first, then the module's, then those that no instruction names.
    found = addresses("outer second first")
    assert found == {"first": 0, "second": 128, "outer": 148, "spare": 248}


def test_module_variables_that_another_kernel_names_take_no_room() -> None:
    assert addresses("spare") == {"spare": 0, "first": 100, "second": 128}


def test_each_dynamic_array_has_its_own_alignment() -> None:
    found = addresses("first plain wide")
    assert (found["plain"], found["wide"]) == (16, 256)
    assert addresses("plain")["plain"] == 0


@pytest.mark.parametrize(
    ("target", "base"),
    [
        *(("sm_75", 0), ("sm_80", 0), ("sm_89", 0)),
        *(("sm_90", 0x400), ("sm_90a", 0x400), ("sm_100f", 0x400), ("sm_120", 0x400)),
    ],
)
def test_the_system_keeps_the_first_kibibyte_from_compute_capability_9(
    target: str, base: int
) -> None:
    found = addresses("first second wide", target)
    assert (found["first"], found["second"], found["wide"]) == (base, base + 128, base + 256)
