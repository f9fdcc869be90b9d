"""Random kernels with arbitrary control flow."""

from __future__ import annotations

import random

REGISTERS, UNIFORM, PREDICATES = 8, 4, 8
THREAD_WORDS = 32

_HEAD = f"""
.version 8.5
.target sm_80
.address_size 64
.visible .entry k(.param .u64 out, .param .u32 a, .param .u32 b)
{{
    .reg .b64 %at, %offset, %q<3>;
    .reg .b32 %t, %x, %turns, %a, %b, %c, %own;
    .reg .b32 %r<{REGISTERS}>, %u<{UNIFORM}>;
    .reg .pred %p<{PREDICATES}>, %done;
    .shared .align 4 .b8 words[512];
    ld.param.u64 %at, [out];
    ld.param.u32 %a, [a];
    ld.param.u32 %b, [b];
    mov.u32 %t, %tid.x;
    mov.u32 %c, %ctaid.x;
    mad.lo.s32 %x, %c, 100, %t;
    mul.wide.u32 %offset, %x, {4 * THREAD_WORDS};
    add.s64 %at, %at, %offset;
    shl.b32 %own, %t, 2;
    mov.u32 %turns, 60;
"""


class _Writer:
    """`%u` registers hold one value in all lanes until lanes diverge; `%q` are 64 bits wide."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.lines: list[str] = []

    def _pick(self, name: str, count: int) -> str:
        return f"%{name}{self._random.randrange(count)}"

    def _guard(self) -> str:
        if self._random.random() < 0.75:
            return ""
        return f"@{self._random.choice(['', '!'])}{self._pick('p', PREDICATES)} "

    def predicate(self, name: str) -> None:
        bit = 1 << self._random.randint(0, 6)
        self.lines.append(f"and.b32 %x, {self._pick('r', REGISTERS)}, {bit};")
        self.lines.append(f"{self._guard()}setp.ne.u32 {name}, %x, 0;")

    def computation(self) -> None:
        pick, number = self._pick, self._random.randint
        d, a, c = (pick("r", REGISTERS) for _ in range(3))
        u, v = (pick("u", UNIFORM) for _ in range(2))
        p, s = (pick("p", PREDICATES) for _ in range(2))
        q, w = (pick("q", 3) for _ in range(2))
        place = 4 * number(0, 15)
        chosen = self._random.choice(
            [
                *[f"mad.lo.u32 {d}, {a}, {number(1, 7)}, {c};"] * 4,
                f"xor.b32 {d}, {a}, {u};",
                f"add.u32 {u}, {v}, {number(1, 5)};",
                f"setp.lt.u32 {p}, {u}, {number(0, 4000)};",
                f"setp.lt.u32 {p}, {a}, {c};",
                f"add.s64 {q}, {w}, {number(0, 9)};",
                f"selp.b32 {d}, {a}, {c}, {p};",
                f"xor.pred {p}, {p}, {s};",
                f"ld.global.u32 {d}, [%at+{place}];",
                f"ld.global.u32 {d}, [%at+{place}];",
                f"st.global.u32 [%at+{place}], {a};",
                f"st.shared.u32 [%own], {a};",
                f"ld.shared.u32 {d}, [%own];",
            ]
        )
        self.lines.append(self._guard() + chosen)

    def block(self, number: int, blocks: int) -> None:
        self.lines.append(f"B{number}:")
        for _ in range(self._random.randint(0, 6)):
            if self._random.random() < 0.2:
                self.predicate(self._pick("p", PREDICATES))
            else:
                self.computation()
        if self._random.random() < 0.15:
            self.lines.append(f"@{self._pick('p', PREDICATES)} exit;")
        self.lines += [
            "add.s32 %turns, %turns, -1;",
            "setp.lt.s32 %done, %turns, 0;",
            "@%done bra END;",
        ]
        target, chance = self._random.randrange(blocks), self._random.random()
        if chance < 0.8:
            sign = self._random.choice(["", "!"])
            self.lines.append(f"@{sign}{self._pick('p', PREDICATES)} bra B{target};")
        elif chance < 0.9:
            self.lines.append(f"bra B{target};")

    def start(self) -> None:
        number = self._random.randint
        for each in range(REGISTERS):
            self.lines.append(f"mad.lo.u32 %r{each}, %t, {number(1, 99999)}, {number(0, 99999)};")
        for each in range(UNIFORM):
            self.lines.append(f"mad.lo.u32 %u{each}, %a, {number(1, 99)}, %b;")
        for each in range(3):
            self.lines.append(f"cvt.u64.u32 %q{each}, %r{each};")
        for each in range(PREDICATES):
            self.predicate(f"%p{each}")
        blocks = number(2, 9)
        for each in range(blocks):
            self.block(each, blocks)


def program(seed: int) -> str:
    """A kernel that always ends, and stores all of its registers at the end."""
    writer = _Writer(seed)
    writer.start()
    values = [f"%r{each}" for each in range(REGISTERS)] + [f"%u{each}" for each in range(UNIFORM)]
    stores = [f"st.global.u32 [%at+{64 + 4 * n}], {name};" for n, name in enumerate(values)]
    stores += [f"st.global.u64 [%at+{112 + 8 * n}], %q{n};" for n in range(2)]
    return "\n".join([_HEAD, *writer.lines, "END:", *stores, "ret;", "}"]) + "\n"
