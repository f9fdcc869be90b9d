"""The rows of the instruction table for mbarriers and bulk copies.

The modifiers are those that ptxas accepts: with a semantic there must be a scope, `.acquire` is for
waits, and an mbarrier in the window of the cluster returns no state.
"""

from __future__ import annotations

_SPACE = "S:,.shared,.shared::cta"
_CLUSTER = "S:.shared::cluster"
_RELEASE = "{,.release.cta,.release.cluster,.relaxed.cta,.relaxed.cluster}"
_RELAXED = "{,.relaxed.cta,.relaxed.cluster}"
_ACQUIRE = "{,.acquire.cta,.acquire.cluster,.relaxed.cta,.relaxed.cluster}"


def _arrivals(kind: str, space: str) -> str:
    """Patterns of `mbarrier.arrive` and `mbarrier.arrive_drop`."""
    return f"mbarrier.{{D:arrive,arrive_drop}}{kind}{_RELEASE}{{{space}}}.b64"


# pattern | operation | operands | opcode class, as in `table`.
ROWS: tuple[tuple[str, str, str, str], ...] = (
    (f"mbarrier.init{{{_SPACE}}}.b64", "mbarrier_init", "[{S}] u32", "synchronize"),
    (f"mbarrier.inval{{{_SPACE}}}.b64", "mbarrier_invalidate", "[{S}]", "synchronize"),
    (_arrivals("{K:}", _SPACE), "mbarrier_arrive", "=b64 [{S}] ?u32", "synchronize"),
    (_arrivals("{K:}", _CLUSTER), "mbarrier_arrive", "_ [{S}] ?u32", "synchronize"),
    (_arrivals(".{K:expect_tx}", _SPACE), "mbarrier_arrive", "=b64 [{S}] u32", "synchronize"),
    (_arrivals(".{K:expect_tx}", _CLUSTER), "mbarrier_arrive", "_ [{S}] u32", "synchronize"),
    (f"mbarrier.{{D:arrive,arrive_drop}}.{{K:noComplete}}{{,.release.cta}}{{{_SPACE}}}.b64|"
     f"mbarrier.{{D:arrive,arrive_drop}}.release.cta.{{K:noComplete}}{{{_SPACE}}}.b64",
     "mbarrier_arrive", "=b64 [{S}] u32", "synchronize"),
    (f"mbarrier.{{K:expect_tx,complete_tx}}{_RELAXED}{{{_SPACE},.shared::cluster}}.b64",
     "mbarrier_transact", "[{S}] u32", "synchronize"),
    (f"mbarrier.test_wait{{P:}}{_ACQUIRE}{{{_SPACE}}}.b64", "mbarrier_test",
     "=pred [{S}] b64", "synchronize"),
    (f"mbarrier.test_wait.{{P:parity}}{_ACQUIRE}{{{_SPACE}}}.b64", "mbarrier_test",
     "=pred [{S}] u32", "synchronize"),
    (f"mbarrier.try_wait{{P:}}{_ACQUIRE}{{{_SPACE}}}.b64", "mbarrier_try",
     "=pred [{S}] b64 ?u32", "synchronize"),
    (f"mbarrier.try_wait.{{P:parity}}{_ACQUIRE}{{{_SPACE}}}.b64", "mbarrier_try",
     "=pred [{S}] u32 ?u32", "synchronize"),
    ("mbarrier.pending_count.{T:b64}", "mbarrier_pending_count", "=u32 {T}", "synchronize"),
    ("fence.mbarrier_init.release.cluster", "no_operation", "", "synchronize"),
)  # fmt: skip
