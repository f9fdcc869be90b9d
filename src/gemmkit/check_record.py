"""`CheckRecord`: what the sanitizers say of one kernel on one problem; one JSON line each."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gemmkit.error_histogram import ErrorHistogram
from gemmkit.findings import Finding
from gemmkit.record import DeviceRecord, Diagnosis, JsonLine, ProblemRecord


class LimitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A limit for counters, such as `load_sectors <= 5*M*N*K/32`, and whether a launch met it.

    `value` and `bound` are what its left and right side came to, null if a counter in it has no
    value for this kernel; `relation` is one of <=, >=, ==, < and >.
    """

    limit: str
    relation: str
    met: bool
    value: float | None = None
    bound: float | None = None


CheckVerdict = Literal["ok", "findings", "wrong result", "limit missed", "failed", "refused"]


class CheckRecord(JsonLine, frozen=True, kw_only=True):
    """The sanitizers' results for one kernel on one problem; `case` is the problem's name.

    `verdict` is "findings" if there are any, whatever the result, and "failed" if the launch ended
    with an error instead of a result. `detail` says which elements were compared, what is wrong
    with the result, how the launch failed, or why the kernel refuses the problem. `correct` and the
    errors (as in `Record`) are null if there is no result; the errors and `error_ratio` also if
    they are not finite. `arithmetic`, `diagnosis` and `errors` are as in `Record`. `note` is what
    there is to know of a result that counts as correct, such as NaN in place of infinities; empty
    as a rule. `limits` are those for counters, in the record of the problem at which they were
    tested, which ran without sanitizers. `schedule` is what one block followed, if that was asked
    for.
    """

    kernel: str
    case: str
    problem: ProblemRecord
    config: dict[str, int]
    device: DeviceRecord
    seed: int
    verdict: CheckVerdict
    detail: str = ""
    correct: bool | None = None
    max_error: float | None = None
    error_bound: float | None = None
    error_ratio: float | None = None
    ratio_error: float | None = None
    ratio_bound: float | None = None
    arithmetic: str = ""
    diagnosis: Diagnosis | None = None
    note: str = ""
    findings: tuple[Finding, ...] = ()
    limits: tuple[LimitRecord, ...] = ()
    schedule: str = ""
    emulation_seconds: float | None = None
    environment: dict[str, Any] = msgspec.field(default_factory=dict)
    errors: ErrorHistogram | None = None

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong: the result is right without findings, or the kernel refuses."""
        return self.verdict in ("ok", "refused")
