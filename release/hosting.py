"""Addresses that follow from that of the repository."""

from __future__ import annotations

import argparse
import re


def repository_address(text: str) -> str:
    """An address without the slash and the `.git` at its end.

    Raises:
        argparse.ArgumentTypeError: it is not the address of a repository.
    """
    address = text.rstrip("/").removesuffix(".git")
    if not re.fullmatch(r"https?://[\w.:-]+(/[\w.~-]+){2,}", address):
        raise argparse.ArgumentTypeError(f"expected https://HOST/OWNER/NAME, not {text!r}")
    return address


def github(repository: str) -> tuple[str, str] | None:
    """Owner and name of a repository on github.com; None on another host."""
    found = re.fullmatch(r"https?://github\.com/([\w.-]+)/([\w.-]+)", repository)
    return (found[1], found[2]) if found else None


def documentation_site(repository: str) -> str | None:
    """Where the workflow `docs` publishes the site, on GitHub Pages; None on another host."""
    found = github(repository)
    if found is None:
        return None
    owner, name = found
    host = f"{owner.lower()}.github.io"
    return f"https://{host}/" if name.lower() == host else f"https://{host}/{name}/"
