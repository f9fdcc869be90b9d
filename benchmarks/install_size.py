"""How much disk `pip install gemmkit` takes, by package and by extra.

    python benchmarks/install_size.py [FILE]

Needs a network connection; each installation is made in a new virtual environment. Sizes are of
the disk blocks of each package's files, with the bytecode that pip compiles, in MB (10⁶ bytes).
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "install-size.json"
EXTRAS = ("", "gpu", "plots", "gpu,plots")
# What a new environment holds already.
GIVEN = {"pip", "setuptools"}
BLOCK_BYTES = 512


def sizes(site_packages: Path) -> dict[str, float]:
    """MB of each installed package, the largest first."""
    found = {}
    for each in distributions(path=[str(site_packages)]):
        paths = {Path(each.locate_file(file)).resolve() for file in each.files or ()}
        blocks = sum(path.stat().st_blocks for path in paths if path.is_file())
        name = each.metadata["Name"]
        if name not in GIVEN:
            found[f"{name} {each.version}"] = blocks * BLOCK_BYTES / 1e6
    return {name: round(found[name], 1) for name in sorted(found, key=lambda name: -found[name])}


def install(extras: str) -> dict[str, float]:
    """Install gemmkit with extras in an environment of its own; returns `sizes` there."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        wanted = f"{ROOT}[{extras}]" if extras else str(ROOT)
        pip = [Path(folder, "bin", "python"), "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--quiet", wanted], check=True)
        (site_packages,) = Path(folder).glob("lib/python*/site-packages")
        return sizes(site_packages)


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULT
    found = {}
    for extras in EXTRAS:
        name = f"gemmkit[{extras}]" if extras else "gemmkit"
        packages = install(extras)
        found[name] = {"total_mb": round(sum(packages.values()), 1), "packages_mb": packages}
        print(f"{name:20} {found[name]['total_mb']:7.1f} MB")
    seen = {
        "command": "python benchmarks/install_size.py",
        "environment": {"python": platform.python_version(), "platform": platform.platform()},
        "installations": found,
    }
    path.write_text(json.dumps(seen, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
