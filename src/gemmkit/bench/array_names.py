"""The names of the arrays and variables that a kernel's launches access."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gemmkit.devices.packing import address_names
from gemmkit.errors import UsageError, unknown_name
from gemmkit.jit.binary import Binary
from gemmkit.kernels.plan import LaunchPlan


def refuse_unknown_arrays(
    names: Collection[str], plans: Iterable[LaunchPlan], binaries: Iterable[Binary]
) -> None:
    """Refuse names, in upper or lower case, that no array of some launches has, and no variable.

    Raises:
        UsageError: there is one.
    """
    if not names:
        return
    from gemmkit.emulator.ptx.names import source_name
    from gemmkit.emulator.ptx.parser import parse

    arrays = [name for plan in plans for name in address_names(plan)]
    variables = [source_name(name) for each in binaries for name in parse(each.ptx).globals]
    known = list(dict.fromkeys((*arrays, *variables)))
    folded = {each.casefold() for each in known}
    for name in names:
        if name.casefold() not in folded:
            raise UsageError(unknown_name("array", name, known))
