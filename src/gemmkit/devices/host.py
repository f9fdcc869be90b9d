"""What a result depends on besides the device: the host, its software, the checkout."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path
from typing import Any

from gemmkit.cores import usable_cores


def host_environment() -> dict[str, Any]:
    """Operating system, CPU, Python, NumPy and, in a git checkout, its commit."""
    found: dict[str, Any] = {
        "os": f"{platform.system()} {platform.release()}",
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "python": platform.python_version(),
        "numpy": package_version("numpy"),
    }
    commit = _own_commit()
    return found | {"commit": commit} if commit else found


@cache
def package_version(name: str) -> str | None:
    """The version of an installed distribution, or None."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


@cache
def cpu_model() -> str:
    """The processor's name, or its architecture where the system does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", errors="replace")
    except OSError:
        text = ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return value.strip()
    return platform.processor() or platform.machine()


@cache
def _own_commit() -> str | None:
    """The commit of gemmkit's checkout when it was first asked for, near the time of import."""
    return _commit(Path(__file__).resolve().parent)


def _commit(folder: Path) -> str | None:
    """The checkout's commit, with `+` if tracked files differ from it; None outside of one."""
    import subprocess

    root = next((each for each in folder.parents if (each / "pyproject.toml").is_file()), None)
    if root is None or not (root / ".git").exists():
        return None
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() or None
