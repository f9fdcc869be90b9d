"""The bugs that docs/hazards.md shows: what is changed in a sound kernel, and how it is checked."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"

# The kernels, and the options that check them. A block computes two tiles of C.
KERNELS = {
    "hopper": EXAMPLES / "hopper.cu",
    "cp_async": HERE / "cp_async.cu",
    "dependent": HERE / "dependent.cu",
}
_TYPES = ("--gpu", "h100", "--dtype", "bf16", "--out-dtype", "fp32", "--layout", "NT")
OPTIONS = {
    "hopper": (
        *_TYPES,
        *("--tensor-map", "map_a=A,box=64x128,swizzle=128B"),
        *("--tensor-map", "map_b=B,box=64x128,swizzle=128B"),
        *("--tensor-map", "map_c=C,box=128x128"),
        *("--grid", "1", "--block", "384", "--shared", "163840", "--shape", "256x128x320"),
    ),
    "cp_async": (
        *_TYPES,
        *("--grid", "N/32,M/64", "--block", "128", "--multiple-of", "64,32,64"),
        *("--shape", "64x64x256"),
    ),
    "dependent": (
        *("--gpu", "h100", "--grid", "M", "--block", "128", "--shared", "4*K"),
        *("--multiple-of", "1,1,4", "--shape", "8x192x64"),
    ),
}


@dataclass(frozen=True)
class Bug:
    """A change to a kernel, or to the options that check it."""

    kernel: str
    # Text that occurs once in the source, and what replaces it.
    changes: tuple[tuple[str, str], ...] = ()
    # Options, and the values that replace theirs.
    options: tuple[tuple[str, str], ...] = ()
    # Words that the output must contain; the first finding with them is shown.
    told: str = ""

    @property
    def file_name(self) -> str:
        return KERNELS[self.kernel].name

    @property
    def source(self) -> str:
        """The kernel with the bug.

        Raises:
            ValueError: a text to replace does not occur exactly once.
        """
        text = KERNELS[self.kernel].read_text("utf-8")
        for old, new in self.changes:
            if text.count(old) != 1:
                raise ValueError(f"{self.file_name}: this must occur once: {old}")
            text = text.replace(old, new)
        return text

    @property
    def diff(self) -> str:
        """The changed lines, with one line of context, unindented."""
        before = KERNELS[self.kernel].read_text("utf-8").splitlines()
        found = difflib.unified_diff(before, self.source.splitlines(), lineterm="", n=1)
        lines = [each for each in found if not each.startswith(("---", "+++", "@@"))]
        indent = min(len(each[1:]) - len(each[1:].lstrip()) for each in lines if each[1:].strip())
        return "\n".join(f"{each[0]} {each[1 + indent :]}".rstrip() for each in lines)

    @property
    def arguments(self) -> list[str]:
        """The arguments of `gemmkit check`, after the file's name."""
        found = list(OPTIONS[self.kernel])
        for old, new in self.options:
            found[found.index(old)] = new
        return found


_FULL = "wait(&full[stage], step / STAGES % 2);"
_EMPTY = "wait(&empty[stage], step / STAGES % 2 ^ 1);"
_EXPECT = "arrive_expecting(&full[stage], STAGE_BYTES);"
_WAIT_READ = "if (threadIdx.x == 0) wait_source_read();"
_TILE_DONE = "commit_store();\n            }\n"

BUGS = {
    "no-fence-cp-async": Bug(
        "cp_async",
        (('        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");\n', ""),),
        told="missing proxy fence",
    ),
    "no-fence-store": Bug(
        "hopper", (("            proxy_fence();\n", ""),), told="missing proxy fence"
    ),
    "read-before-full": Bug(
        "hopper", ((f"                {_FULL}\n", ""),), told="read before wait"
    ),
    "refill-before-empty": Bug("hopper", ((f"                {_EMPTY}\n", ""),), told="deadlock"),
    "released-too-early": Bug(
        "hopper",
        (
            ("if (i > 0) arrive(&empty[(step - 1) % STAGES]);", "arrive(&empty[stage]);"),
            ("            if (steps > 0) arrive(&empty[(step - 1) % STAGES]);\n", ""),
        ),
        told="wgmma.wait_group",
    ),
    "parity-never-flips": Bug("hopper", ((_FULL, "wait(&full[stage], 0);"),), told="deadlock"),
    "parity-of-empty": Bug(
        "hopper", ((_EMPTY, "wait(&empty[stage], step / STAGES % 2);"),), told="deadlock"
    ),
    "empty-awaited-late": Bug(
        "hopper", ((_EMPTY, f"if (step >= 2 * STAGES) {_EMPTY}"),), told="ambiguous parity"
    ),
    "too-many-arrivals": Bug(
        "hopper",
        (("init(&empty[stage], CONSUMERS);", "init(&empty[stage], CONSUMERS + 128);"),),
        told="deadlock",
    ),
    "too-few-arrivals": Bug(
        "hopper",
        (("init(&empty[stage], CONSUMERS);", "init(&empty[stage], CONSUMERS / 2);"),),
        told="early arrival",
    ),
    "one-arrival-too-few": Bug(
        "hopper",
        (("init(&empty[stage], CONSUMERS);", "init(&empty[stage], CONSUMERS - 1);"),),
        told="early arrival",
    ),
    "too-many-bytes": Bug(
        "hopper",
        ((_EXPECT, "arrive_expecting(&full[stage], STAGE_BYTES + 128);"),),
        told="deadlock",
    ),
    "too-few-bytes": Bug(
        "hopper",
        ((_EXPECT, "arrive_expecting(&full[stage], STAGE_BYTES / 2);"),),
        told="read before wait",
    ),
    "no-init-fence": Bug("hopper", (("        init_fence();\n", ""),), told="mbarrier not visible"),
    "no-init-barrier": Bug("hopper", (("    __syncthreads();\n", ""),), told="mbarrier"),
    "initialized-again": Bug(
        "hopper",
        (
            (
                _TILE_DONE,
                "commit_store();\n                init(&full[0], 1);\n            }\n",
            ),
        ),
        told="again",
    ),
    "source-overwritten": Bug(
        "hopper", ((f"            {_WAIT_READ}\n", ""),), told="write before wait"
    ),
    "another-thread-waits": Bug(
        "hopper",
        ((_WAIT_READ, "if (threadIdx.x == 32) wait_source_read();"),),
        told="write before wait",
    ),
    "not-waited-at-end": Bug(
        "hopper",
        (("        if (threadIdx.x == 0) wait_stored();\n", ""),),
        told="copy not waited for",
    ),
    "accumulators-in-flight": Bug(
        "hopper",
        (("            wait_multiply<0>(d);\n", "            wait_multiply<1>(d);\n"),),
        told="reads register",
    ),
    "no-commit": Bug(
        "hopper", (("                commit_multiply();\n", ""),), told="reads register"
    ),
    "no-wgmma-fence": Bug(
        "hopper", (("                multiply_fence(d);\n", ""),), told="missing wgmma.fence"
    ),
    "swizzle-of-map": Bug(
        "hopper",
        options=(("map_a=A,box=64x128,swizzle=128B", "map_a=A,box=64x128"),),
        told="elements are wrong",
    ),
    "stride-of-descriptor": Bug(
        "hopper", (("64ull << 32", "128ull << 32"),), told="read before wait"
    ),
    "misaligned-box": Bug(
        "hopper",
        (("(__nv_bfloat16(*)[BM * BK])tiles;", "(__nv_bfloat16(*)[BM * BK])(tiles + 64);"),),
        told="misaligned",
    ),
    "oversize-box": Bug(
        "hopper",
        options=(("map_b=B,box=64x128,swizzle=128B", "map_b=B,box=64x256,swizzle=128B"),),
        told="deadlock",
    ),
    "refused-box": Bug(
        "hopper",
        options=(("map_b=B,box=64x128,swizzle=128B", "map_b=B,box=128x128,swizzle=128B"),),
        told="at most 128",
    ),
    "too-many-registers": Bug(
        "hopper",
        (("setmaxnreg.inc.sync.aligned.u32 232;", "setmaxnreg.inc.sync.aligned.u32 240;"),),
        told="register file exceeded",
    ),
    "last-stage-kept": Bug(
        "hopper",
        (("            if (steps > 0) arrive(&empty[(step - 1) % STAGES]);\n", ""),),
        told="deadlock",
    ),
    "load-before-launch": Bug(
        "dependent",
        (
            (
                "        cudaGridDependencySynchronize();\n"
                "        load(row, A + blockIdx.x * K, K * sizeof(float), &full);\n",
                "        load(row, A + blockIdx.x * K, K * sizeof(float), &full);\n"
                "        cudaGridDependencySynchronize();\n",
            ),
        ),
        told="earlier launch not waited for: the bulk copy",
    ),
}
