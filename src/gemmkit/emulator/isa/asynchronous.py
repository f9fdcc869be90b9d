"""The rows of the instruction table for mbarriers, bulk and tensor copies, st.async and barriers of
clusters.

The modifiers are those that ptxas accepts: with a semantic there must be a scope, `.acquire` is for
waits, and an mbarrier in the window of the cluster returns no state.
"""

from __future__ import annotations

_SPACE = "S:,.shared,.shared::cta"
_CLUSTER = "S:.shared::cluster"
_RELEASE = "{,.release.cta,.release.cluster,.relaxed.cta,.relaxed.cluster}"
_RELAXED = "{,.relaxed.cta,.relaxed.cluster}"
_ACQUIRE = "{,.acquire.cta,.acquire.cluster,.relaxed.cta,.relaxed.cluster}"
_HINT = ".L2::cache_hint"
_COMPLETES = "{C:mbarrier}::complete_tx::bytes"
_TO_SHARED = f"cp.async.bulk.{{D:shared}}::{{cta,cluster}}.{{F:global}}.{_COMPLETES}"
_TO_CLUSTER = f"cp.async.bulk.{{D:shared}}::cluster.{{F:global}}.{_COMPLETES}"
_BETWEEN_SHARED = f"cp.async.bulk.{{D:shared}}::cluster.{{F:shared}}::cta.{_COMPLETES}"
_TO_GLOBAL = "cp.async.bulk.{D:global}.{F:shared}::cta.{C:bulk_group}"
_DIMENSIONS = "{N:1,2,3,4,5}d"
_TENSOR = f"cp.async.bulk.tensor.{_DIMENSIONS}"
_TENSOR_LOAD = f"{_TENSOR}.{{D:shared}}::{{cta,cluster}}.{{F:global}}{{,.tile}}.{_COMPLETES}"
_TENSOR_MULTICAST = (
    f"{_TENSOR}.{{D:shared}}::cluster.{{F:global}}{{,.tile}}.{_COMPLETES}.{{M:multicast}}::cluster"
)
_TENSOR_STORE = f"{_TENSOR}.{{D:global}}.{{F:shared}}::cta{{,.tile}}.{{C:bulk_group}}"
_TENSOR_REDUCTION = (
    f"cp.reduce.async.bulk.tensor.{_DIMENSIONS}.{{D:global}}.{{F:shared}}::cta."
    "{O:add,min,max,inc,dec,and,or,xor}{,.tile}.{C:bulk_group}"
)
_TENSOR_PREFETCH = f"cp.async.bulk.prefetch.tensor.{_DIMENSIONS}.L2.global{{,.tile}}"
_COORDINATES = "[map.{N}] v{N}s32"
_SCOPE = "{cta,cluster,gpu,sys}"
_REDUCTIONS = (
    "{O:add}.{T:u32,s32,u64,f32,f64}",
    "{O:add}.noftz.{T:f16,bf16}",
    "{O:min,max}.{T:u32,s32,u64,s64,f16,bf16}",
    "{O:inc,dec}.{T:u32}",
    "{O:and,or,xor}.{T:b32,b64}",
)
_SHARED_REDUCTIONS = (
    "{O:add}.{T:u32,s32,u64}",
    "{O:min,max}.{T:u32,s32}",
    "{O:inc,dec}.{T:u32}",
    "{O:and,or,xor}.{T:b32}",
)


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
    (f"cp.async.mbarrier.arrive{{K:,.noinc}}{{{_SPACE}}}.b64", "mbarrier_arrive_copies", "[{S}]",
     "synchronize"),
    (f"{_TO_SHARED}|{_BETWEEN_SHARED}", "bulk_copy", "[shared] [{F}] u32 [shared]", "load"),
    (f"{_TO_SHARED}{_HINT}", "bulk_copy", "[shared] [{F}] u32 [shared] ~", "load"),
    (f"{_TO_CLUSTER}.{{M:multicast}}::cluster", "bulk_copy", "[shared] [{F}] u32 [shared] u16",
     "load"),
    (f"{_TO_CLUSTER}.{{M:multicast}}::cluster{_HINT}", "bulk_copy",
     "[shared] [{F}] u32 [shared] u16 ~", "load"),
    (_TO_GLOBAL, "bulk_copy", "[global] [shared] u32", "store"),
    (f"{_TO_GLOBAL}{_HINT}", "bulk_copy", "[global] [shared] u32 ~", "store"),
    *((f"cp.reduce.async.bulk.{{D:global}}.{{F:shared}}::cta.{{C:bulk_group}}.{each}",
       "bulk_copy", "[global] [shared] u32", "store") for each in _REDUCTIONS),
    *((f"cp.reduce.async.bulk.{{D:global}}.{{F:shared}}::cta.{{C:bulk_group}}{_HINT}.{each}",
       "bulk_copy", "[global] [shared] u32 ~", "store") for each in _REDUCTIONS),
    *((f"cp.reduce.async.bulk.{{D:shared}}::cluster.{{F:shared}}::cta.{_COMPLETES}.{each}",
       "bulk_copy", "[shared] [shared] u32 [shared]", "store") for each in _SHARED_REDUCTIONS),
    (f"st.async{{,.weak}}{{D:.shared}}::cluster.{_COMPLETES}{{V:,.v2,.v4}}"
     ".{T:b32,u32,s32,f32}|"
     f"st.async{{,.weak}}{{D:.shared}}::cluster.{_COMPLETES}{{V:,.v2}}.{{T:b64,u64,s64,f64}}",
     "bulk_store", "[shared] {V}{T} [shared]", "store"),
    *((f"red.async.relaxed.cluster{{D:.shared}}::cluster.{_COMPLETES}.{each}", "bulk_store",
       "[shared] {T} [shared]", "store") for each in _SHARED_REDUCTIONS),
    ("barrier.cluster.arrive{R:,.release,.relaxed}{,.aligned}", "barrier_cluster_arrive", "",
     "synchronize"),
    ("barrier.cluster.wait{,.acquire}{,.aligned}", "barrier_cluster_wait", "", "synchronize"),
    ("cp.async.bulk.commit_group", "bulk_commit", "", "synchronize"),
    ("cp.async.bulk.wait_group{K:,.read}", "bulk_wait", "#", "synchronize"),
    # A hint; it reads nothing.
    ("cp.async.bulk.prefetch.L2.global", "no_operation", "[global] u32", "cache"),
    (f"cp.async.bulk.prefetch.L2.global{_HINT}", "no_operation", "[global] u32 ~", "cache"),
    (_TENSOR_LOAD, "bulk_tensor", f"[shared] {_COORDINATES} [shared]", "load"),
    (f"{_TENSOR_LOAD}{_HINT}", "bulk_tensor", f"[shared] {_COORDINATES} [shared] ~", "load"),
    (_TENSOR_MULTICAST, "bulk_tensor", f"[shared] {_COORDINATES} [shared] u16", "load"),
    (f"{_TENSOR_MULTICAST}{_HINT}", "bulk_tensor", f"[shared] {_COORDINATES} [shared] u16 ~",
     "load"),
    (f"{_TENSOR_STORE}|{_TENSOR_REDUCTION}", "bulk_tensor", f"{_COORDINATES} [shared]", "store"),
    (f"{_TENSOR_STORE}{_HINT}|{_TENSOR_REDUCTION}{_HINT}", "bulk_tensor",
     f"{_COORDINATES} [shared] ~", "store"),
    (_TENSOR_PREFETCH, "no_operation", _COORDINATES, "cache"),
    (f"{_TENSOR_PREFETCH}{_HINT}", "no_operation", f"{_COORDINATES} ~", "cache"),
    ("prefetch{,.param,.const}.tensormap", "no_operation", "[global]", "cache"),
    (f"fence.proxy.tensormap::generic.acquire.{_SCOPE}", "bulk_acquire_map", "[global] #",
     "synchronize"),
    (f"fence.proxy.tensormap::generic.release.{_SCOPE}", "bulk_release_map", "", "synchronize"),
)  # fmt: skip
