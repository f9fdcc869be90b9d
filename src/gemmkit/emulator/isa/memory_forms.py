"""The rows of the instruction table for loads, stores, `cp.async`, cache control and atomics."""

from __future__ import annotations

NARROW = "b8,u8,s8,b16,u16,s16,b32,u32,s32,f32"
LOADABLE = f"{NARROW},b64,u64,s64,f64"
SHARED_OR_GLOBAL = "S:,.global,.shared,.shared::cta,.shared::cluster"
L1_HINT = "{,.L1::evict_normal,.L1::evict_unchanged,.L1::evict_first,.L1::evict_last,\
.L1::no_allocate}"
L2_PREFETCH = "{,.L2::64B,.L2::128B,.L2::256B}"
L2_HINT = ".L2::cache_hint"
L2_PRIORITY = ".L2::evict_last,.L2::evict_normal,.L2::evict_first,.L2::evict_unchanged"
L2_PRIORITIES = f"{{{L2_PRIORITY}}}{{,.L2::evict_first,.L2::evict_unchanged}}"
_RELAXED = ".volatile,.relaxed.cta,.relaxed.cluster,.relaxed.gpu,.relaxed.sys"
ACQUIRE = f"{{{_RELAXED},.acquire.cta,.acquire.cluster,.acquire.gpu,.acquire.sys}}"
STRONG_ACQUIRE = ACQUIRE.replace(".volatile,", "")
RELEASE = f"{{{_RELAXED},.release.cta,.release.cluster,.release.gpu,.release.sys}}"
STRONG_RELEASE = RELEASE.replace(".volatile,", "")
SCOPE = "{,.cta,.cluster,.gpu,.sys}"
# The order of modifiers as written today, and as for `atomicAdd_block` and the like.
ATOMIC_SPACE = f"{{{SHARED_OR_GLOBAL}}}"
SPACE_THEN_SCOPE = "{S:.global,.shared,.shared::cta}{.cta,.gpu,.sys}"
ORDERED = "{.relaxed,.acquire,.release,.acq_rel}"
ATOMIC_OPERATIONS = (
    "{O:and,or,xor}.{T:b32,b64}",
    "{O:add}.{T:u32,s32,u64,f32,f64}",
    "{O:add}.noftz.{T:f16,bf16,f16x2,bf16x2}",
    "{O:min,max}.{T:u32,s32,u64,s64}",
    "{O:inc,dec}.{T:u32}",
)


def _vectors(*prefixes: str) -> str:
    """Patterns of accesses to one number or several, at most 16 bytes."""
    return "|".join(
        f"{prefix}{{V:,.v2}}.{{T:{LOADABLE}}}|{prefix}{{V:.v4}}.{{T:{NARROW}}}"
        for prefix in prefixes
    )


def _atomics(operation: str, order: str) -> str:
    """Patterns of an operation of `atom`, as CUDA spells it and as the C++ library does."""
    name, _, of = operation.rpartition(".{T:")
    return (
        f"atom{order}{SCOPE}{ATOMIC_SPACE}.{operation}|atom{SPACE_THEN_SCOPE}.{operation}|"
        f"atom.{name}{ORDERED}{{.cta,.gpu,.sys}}{{{SHARED_OR_GLOBAL}}}.{{T:{of}"
    )


def _hinted(operation: str) -> tuple[str, str]:
    """Patterns of an operation of `atom`, and of the same of `red`, with a cache policy."""
    of = operation.replace(".{T:", f"{L2_HINT}.{{T:")
    where = f"{SCOPE}{{S:,.global}}.{of}"
    return (
        f"atom{{,.relaxed,.acquire,.release,.acq_rel}}{where}",
        f"red{{,.relaxed,.release}}{where}",
    )


# pattern | operation | operands | opcode class, as in `table`.
MEMORY_ROWS: tuple[tuple[str, str, str, str], ...] = (
    (_vectors(f"ld{{{SHARED_OR_GLOBAL},.local,.param,.const}}{{,.ca,.cg,.cs,.lu,.cv}}",
              f"ld{{S:,.global}}{L1_HINT}{L2_PREFETCH}",
              f"ld{{S:.global}}.nc{L1_HINT}{L2_PREFETCH}",
              f"ld{{S:.global}}{{.ca,.cg,.cs}}.nc{L2_PREFETCH}",
              f"ld{{S:,.global}}{{,.ca,.cg,.cs,.lu,.cv}}{L2_PREFETCH}",
              f"ld{ACQUIRE}{{{SHARED_OR_GLOBAL}}}",
              f"ld{STRONG_ACQUIRE}{{S:,.global}}{L1_HINT}",
              "ld.volatile{S:.local}",
              "ldu{S:.global}"),
     "load", "={V}{T} [{S}]", "load"),
    (_vectors(f"ld{{S:,.global}}{L1_HINT}{L2_HINT}{L2_PREFETCH}",
              f"ld{{S:,.global}}{{.ca,.cg,.cs,.lu,.cv}}{L2_HINT}{L2_PREFETCH}",
              f"ld{{S:.global}}{{,.ca,.cg,.cs}}.nc{L2_HINT}{L2_PREFETCH}",
              f"ld{{S:.global}}.nc{L1_HINT}{L2_HINT}{L2_PREFETCH}",
              f"ld{STRONG_ACQUIRE}{{S:,.global}}{L1_HINT}{L2_HINT}"),
     "load", "={V}{T} [{S}] ~", "load"),
    (_vectors(f"st{{{SHARED_OR_GLOBAL},.local,.param}}{{,.wb,.cg,.cs,.wt}}",
              f"st{{S:,.global}}{L1_HINT}",
              f"st{RELEASE}{{{SHARED_OR_GLOBAL}}}",
              f"st{STRONG_RELEASE}{{S:,.global}}{L1_HINT}",
              "st.volatile{S:.local}"),
     "store", "[{S}] {V}{T}", "store"),
    (_vectors(f"st{{S:,.global}}{L1_HINT}{L2_HINT}",
              f"st{{S:,.global}}{{.wb,.cg,.cs,.wt}}{L2_HINT}",
              f"st{STRONG_RELEASE}{{S:,.global}}{L1_HINT}{L2_HINT}"),
     "store", "[{S}] {V}{T} ~", "store"),
    (f"cp.async.{{C:ca,cg}}.shared{{,::cta}}.global{L2_PREFETCH}",
     "copy_async", "[shared] [global] # ?u32/pred", "load"),
    (f"cp.async.{{C:ca,cg}}.shared{{,::cta}}.global{L2_HINT}{L2_PREFETCH}",
     "copy_async", "[shared] [global] # ?u32/pred ~", "load"),
    ("cp.async.commit_group", "copy_async_commit", "", "synchronize"),
    ("cp.async.wait_group", "copy_async_wait", "#", "synchronize"),
    ("cp.async.wait_all", "copy_async_wait", "", "synchronize"),
    # Cache control. A prefetch is not counted as an access: the manual specifies no fault for it,
    # and has a separate form (`.valid_addr`) for addresses that must be valid. How Nsight Compute
    # counts it was not measured; it is not among the loads here.
    (f"createpolicy.fractional{L2_PRIORITIES}.b64", "create_policy", "=b64 ?f32", "move"),
    (f"createpolicy.range{{,.global}}{L2_PRIORITIES}.b64", "create_policy",
     "=b64 [global] u32 u32", "move"),
    ("createpolicy.cvt.L2.b64", "create_policy", "=b64 b64", "move"),
    ("prefetch{.global,.local,}.{L1,L2}|prefetch.global.L2::{evict_last,evict_normal}|"
     "prefetchu.L1", "no_operation", "[global]", "cache"),
    ("applypriority{,.global}.L2::evict_normal", "no_operation", "[global] #", "cache"),
    *(
        (_atomics(operation, "{,.relaxed,.acquire,.release,.acq_rel}"), "atomic",
         "={T} [{S}] {T}", "atomic")
        for operation in (*ATOMIC_OPERATIONS, "{O:exch}.{T:b32,b64}")
    ),
    *(
        (_hinted(operation)[0], "atomic", "={T} [{S}] {T} ~", "atomic")
        for operation in (*ATOMIC_OPERATIONS, "{O:exch}.{T:b32,b64}")
    ),
    *(
        (_hinted(operation)[1], "reduction", "[{S}] {T} ~", "atomic")
        for operation in ATOMIC_OPERATIONS
    ),
    (_atomics("cas.{T:b32,b64}", "{,.relaxed,.acquire,.release,.acq_rel}"), "compare_and_swap",
     "={T} [{S}] {T} {T}", "atomic"),
    *(
        (f"red{{,.relaxed,.release}}{SCOPE}{ATOMIC_SPACE}.{operation}|"
         f"red{SPACE_THEN_SCOPE}.{operation}", "reduction", "[{S}] {T}", "atomic")
        for operation in ATOMIC_OPERATIONS
    ),
)  # fmt: skip
