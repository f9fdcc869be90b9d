"""`--keep-compiled`: what was compiled serves until the code that compiles changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kept_compiled import kept_cache


@pytest.mark.parametrize("package", ["cxx", "emulator/codegen", "jit"])
def test_a_change_of_what_compiles_begins_anew(package: str, tmp_path: Path) -> None:
    sources, kept = tmp_path / "sources", tmp_path / "kept"
    for name in ("cxx", "emulator/codegen", "jit", "kernels"):
        (sources / name).mkdir(parents=True)
        (sources / name / "module.py").write_text("1")
    first = kept_cache(sources, kept)
    (first / "objects").mkdir(parents=True)
    (sources / "kernels" / "module.py").write_text("2")
    assert kept_cache(sources, kept) == first
    assert (first / "objects").exists()
    (sources / package / "module.py").rename(sources / package / "other.py")
    second = kept_cache(sources, kept)
    assert second != first
    assert not first.exists()
    (sources / package / "other.py").write_text("2")
    assert kept_cache(sources, kept) not in (first, second)
