"""`WordedFindings`: what all that puts findings into words has in common."""

from __future__ import annotations

from collections.abc import Callable

from gemmkit.emulator.sanitizer.collection import Collection, key_for
from gemmkit.emulator.sanitizer.sites import Names
from gemmkit.findings import AccessSite, Check, Finding, forgiven_text


class WordedFindings:
    """Adds findings to a collection."""

    def __init__(self, names: Names, collection: Collection) -> None:
        self._names, self._collection = names, collection

    def _add(
        self,
        block: int,
        check: Check,
        kind: str,
        text: str | Callable[[], str],
        here: AccessSite,
        other: AccessSite | None,
        array: str = "",
        offset: int | None = None,
        forgiven_by: str = "",
        cause: str = "",
        follows: str | Callable[[], str] = "",
    ) -> None:
        """Add one of a kind and place, which may occur at each step of each block: texts
        given as functions are made only for a finding that may be shown."""
        if self._collection.again(key_for(check, kind, here, other, array), block):
            return
        text, follows = (each if isinstance(each, str) else each() for each in (text, follows))
        finding = Finding(
            check=check,
            kind=kind,
            message=f"{kind}: {text}{forgiven_text(forgiven_by)}",
            block=self._names.block(block),
            here=here,
            other=other,
            array=array,
            offset=offset,
            forgiven_by=forgiven_by,
            cause=cause,
        )
        self._collection.add(finding, block, follows)
