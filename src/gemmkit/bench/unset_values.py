"""Variables that are never set, where the optimizer leaves no trace of them.

A value that is not set may be any, so NVRTC takes the one that makes code simplest, and the PTX
then holds no use of it: a shared flag that is only ever set to 1 is 1. Compiled with `-G` nothing
is folded, and the sanitizers see what the source does.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from gemmkit.bench.workload import Workload
from gemmkit.devices.device import Device
from gemmkit.devices.emulated import EmulatedDevice
from gemmkit.errors import GemmkitError
from gemmkit.findings import Finding
from gemmkit.jit.binary import Binary
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.plan import LaunchPlan, SourceFile, names_in

_DEBUG = "-G"
# Beyond this much work, in multiplications, and this many lines of PTX, it would take too long.
MOST_WORK = 2**22
MOST_LINES = 4000


@dataclass
class UnsetValues:
    """Looks for them in the launches of one check; each source is compiled once."""

    device: Device
    cache_dir: Path | None
    _compiled: dict[tuple[SourceFile, str], Binary | None] = field(default_factory=dict)

    def findings(self, workload: Workload, plan: LaunchPlan) -> tuple[Finding, ...]:
        """Uses of variables that are never set, by the source compiled without optimization.

        None where that cannot be compiled or run, or takes long.
        """
        p = workload.problem
        if not isinstance(self.device, EmulatedDevice) or p.m * p.n * p.k * p.batch > MOST_WORK:
            return ()
        binary = self._unoptimized(plan)
        if binary is None or not plan.blocks:
            return ()
        try:
            launch, _ = workload.run(binary, plan)
        except GemmkitError:
            return ()
        # Uses of what an argument points to are in the optimized code too.
        passed = names_in(plan.signature)
        return tuple(
            msgspec.structs.replace(
                each, message=f"{each.message}; seen in unoptimized code (-G), for the optimizer "
                "puts some number in its place"
            )
            for each in launch.findings
            if each.kind == "uninitialized" and each.array not in passed
        )  # fmt: skip

    def _unoptimized(self, plan: LaunchPlan) -> Binary | None:
        source, entry = plan.source, plan.entry
        if source.language != "cuda" or {_DEBUG, "--device-debug"} & set(source.options):
            return None
        if (source, entry) not in self._compiled:
            plain = replace(plan, source=replace(source, options=(*source.options, _DEBUG)))
            try:
                # What such code takes of a board does not matter.
                found = compile_plan(
                    plain, self.device.spec.arch, assemble=False, cache_dir=self.cache_dir
                )
                code = found.ptx.partition(".section")[0]
                short = code.count("\n") <= MOST_LINES
                self._compiled[source, entry] = found if short else None
            except GemmkitError:
                self._compiled[source, entry] = None
        return self._compiled[source, entry]
