"""NVIDIA's assembler accepts every form of the table; skipped where it is not installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from register_programs import program, register_type

from gemmkit.emulator.isa.form import Form, OperandSpec
from gemmkit.emulator.isa.matrix_access import is_matrix
from gemmkit.emulator.isa.semantics import OPERATIONS
from gemmkit.emulator.isa.table import table

PTXAS = shutil.which("ptxas")
AT_ONCE = 500
# Forms that NVRTC emits, and that ptxas accepts only after version 13.0 of the toolkit.
NEWER = ("ld.volatile.local.", "st.volatile.local.")
# The address of a tensor map and the coordinates after it.
MAP_ADDRESS = re.compile(r"\[%map\], (\{[^}]*\})")

pytestmark = pytest.mark.skipif(PTXAS is None, reason="needs ptxas of the CUDA toolkit")


def refused(text: str, folder: Path) -> dict[str, str]:
    """The lines that ptxas refuses, with its reasons."""
    source = folder / "forms.ptx"
    source.write_text(text.replace("sm_100", "sm_90a"), "utf-8")
    command = [PTXAS, "-arch=sm_90a", "-O0", str(source), "-o", str(folder / "forms.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = text.split("\n")
    found = re.findall(r"line (\d+); (?:error|fatal)\s*:\s*(.*)", done.stderr)
    reasons = {lines[int(number) - 1].strip(): reason for number, reason in found}
    return reasons or ({} if done.returncode == 0 else {"": done.stderr})


def test_register_forms(tmp_path: Path) -> None:
    forms = [form for form in table().values() if form.operation in OPERATIONS]
    for start in range(0, len(forms), AT_ONCE):
        assert refused(program(forms[start : start + AT_ONCE]), tmp_path) == {}


def operand(form: Form, spec: OperandSpec, place: int) -> str:
    if spec.role == "sink":
        return "_"
    if spec.role == "address" and spec.coordinates:
        return "[%map]"
    if spec.role == "address":
        spaces = {"copy_async": ("shared", "global")[place % 2]}
        space = spaces.get(form.operation, form.modifiers.get("S", "")) or "generic"
        parameter = "q" if form.operation == "load" else "sent"
        return f"[{parameter if space == 'param' else '%address'}]"
    if spec.role in ("immediate", "label"):
        sizes = {
            "copy_async": "16",
            "bulk_acquire_map": "128",
            "branch": "TARGET",
            "set_registers": "40",
            # The factors of A and B; their major-nesses follow.
            "wgmma_multiply": "1" if place in (4, 5) else "0",
        }
        return "128" if form.opcode_class == "cache" else sizes.get(form.operation, "0")
    kind = register_type(spec.type)
    listed = form.operation in ("multiply_matrices", "multiply_fragments") or is_matrix(form)
    # Coordinates are a list, also a single one; the mask of a multicast is none.
    mapped = spec.role == "source" and any(each.coordinates for each in form.operands)
    listed |= mapped and spec.type.name == "s32"
    if spec.count > 1 or (listed and not spec.optional):
        return "{" + ", ".join(f"%{kind}_{place}_{n}" for n in range(spec.count)) + "}"
    return f"%{kind}_{place}_0" + ("|%pred_9_0" if spec.pair else "")


@pytest.mark.slow
def test_other_forms(tmp_path: Path) -> None:
    others = [
        form
        for form in table().values()
        if form.operation not in OPERATIONS
        and form.operation != "call"
        and not form.opcode.startswith(NEWER)
    ]
    kinds = ("pred", "b16", "b32", "b64")
    registers = [f"%{kind}_{n}_<8>" for kind in kinds for n in range(1, 10)]
    registers += [f"%{kind}_0_<128>" for kind in kinds]
    declared = "\n".join(f".reg .{each[1:].split('_')[0]} {each};" for each in registers)
    for start in range(0, len(others), AT_ONCE):
        lines = []
        for form in others[start : start + AT_ONCE]:
            specs = [spec for spec in form.operands if not spec.optional]
            operands = ", ".join(operand(form, spec, n) for n, spec in enumerate(specs))
            # Coordinates stand within the address of a tensor map.
            operands = MAP_ADDRESS.sub(r"[%address, \1]", operands)
            lines.append(f"{form.opcode} {operands};")
        body = "\n".join(lines)
        text = f"""
.version 8.8
.target sm_90a
.address_size 64
.visible .entry k(.param .align 16 .b8 q[64])
{{
{declared}
.reg .b64 %address;
.param .align 16 .b8 sent[64];
{body}
TARGET:
ret;
}}
"""
        assert refused(text, tmp_path) == {}
