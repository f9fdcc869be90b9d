"""Names the CUDA C++ construct behind an instruction that the emulator does not execute."""

from __future__ import annotations

import re

# By the beginning of the opcode, or the name of a special register or function.
_CONSTRUCTS = (
    (r"tex\.|tld4|txq", "texture fetches (tex1Dfetch, tex2D, …) are"),
    (r"suld|sust|sured|suq", "surface accesses (surf2Dread, surf2Dwrite, …) are"),
    (r"wmma\.", "tensor-core operations through nvcuda::wmma of this type or shape are"),
    (r"ldmatrix|stmatrix|movmatrix",
     "loads and stores of matrices (ldmatrix, stmatrix) of this type or shape are"),
    (r"mma\.sp", "sparse tensor-core operations (mma.sp) are"),
    (r"mma\.sync.*\.m8n8k4\..*f16",
     "Volta's products of 8×8×4 in fp16 (mma.sync.m8n8k4) are"),
    (r"mma\.sync.*\.[su]4\b", "products of 4-bit integers (mma.sync of s4 and u4) are"),
    (r"mma\.sync.*\.b1\b", "products of single bits (mma.sync of b1) are"),
    (r"mma\.sync.*\.kind::",
     "Blackwell's scaled products and its 4- and 6-bit types (mma.sync with .kind) are"),
    (r"mma\.sync", "tensor-core operations (mma.sync) of these types and this shape are"),
    (r"wgmma\.mma_async\.sp", "sparse products of a warpgroup (wgmma.mma_async.sp) are"),
    (r"wgmma.*\.b1\b", "products of single bits (wgmma of b1) are"),
    (r"wgmma", "warpgroup tensor-core operations (wgmma) of these types and this shape are"),
    (r"tcgen05", "tensor-core operations of the fifth generation (tcgen05) are"),
    (r"cp\.async\.mbarrier|mbarrier", "mbarrier instructions of this form are"),
    (r"cp\..*\.tensor\..*\.im2col", "tensor copies (TMA) in the im2col modes are"),
    (r"cp\..*\.tensor\..*\.tile::(?:gather4|scatter4)",
     "tensor copies (TMA) of four rows (tile::gather4, tile::scatter4) are"),
    (r"tensormap\.",
     "changes of a tensor map in device code (tensormap.replace, tensormap.cp_fenceproxy) are"),
    (r"cp\.(?:reduce\.)?async\.bulk|fence\.proxy\.tensormap",
     "bulk copies by the Tensor Memory Accelerator (TMA) of this form are"),
    (r"st\.async|st\.bulk|red\.async",
     "asynchronous stores to a cluster's shared memory of this form are"),
    (r"barrier\.cluster", "barriers of a cluster of this form are"),
    (r"multimem", "multicast memory accesses (multimem) are"),
    (r"%envreg", "grid-wide synchronization (cooperative_groups::this_grid().sync()) is"),
    (r"%reserved_smem",
     "groups of more than 32 threads (cooperative_groups::block_tile_memory) are"),
    (r"alloca|stacksave|stackrestore", "arrays of variable length on the stack (alloca) are"),
    (r"v(?:add|sub|avrg|absdiff|min|max|set)[24]?\.|vmad|vshl|vshr", "SIMD video instructions are"),
    (r"(?:malloc|free)$", "malloc and free in device code are"),
    (r"cudaLaunchDevice|cudaGetParameterBuffer|cudaCGS?", "kernel launches in device code are"),
)  # fmt: skip


def construct(word: str) -> str | None:
    """The CUDA C++ construct of an opcode, special register or called function, with its verb."""
    for pattern, words in _CONSTRUCTS:
        if re.match(pattern, word):
            return words
    return None


def not_executed(word: str, where: str, text: str) -> str | None:
    """Why the emulator refuses an instruction, in terms of CUDA C++, or None if the construct is
    unknown."""
    words = construct(word)
    return None if words is None else f"{words} not supported by the emulator ({where}: {text})"
