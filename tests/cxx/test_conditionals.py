"""Which text of a source the preprocessor leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmkit.cxx.conditionals import compiled, defined_by
from gemmkit.cxx.conditions import condition


def left(text: str, tmp_path: Path, *options: str) -> str:
    """The words that are left, without directives."""
    seen = compiled(text, tmp_path, (str(tmp_path),), options)
    assert len(seen.text) == len(text)
    assert seen.text.count("\n") == text.count("\n")
    return " ".join(
        each
        for each in seen.text.splitlines()
        if each.strip() and not each.lstrip().startswith("#")
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3 == 7", 1),
        ("!0 == 1", 1),
        ("6 & 2 == 2", 0),
        ("1 ? 2 : 3", 2),
        ("unknown ? 2 : 2", 2),
        ("0x10u + 010 + 0b11UL", 27),
        ("-7 / 2", -3),
        ("-7 % 2", -1),
        ("1 << 4 >> 2", 4),
        ("unknown && 0", 0),
        ("1 || unknown", 1),
        ("unknown || 0", None),
        ("unknown + 1 > 2", None),
        ("1 / 0", None),
        ("1'000 == 1000", 1),
        ("(2 > 1) > 0", 1),
        ("true && !false", 1),
    ],
)
def test_values_of_conditions(text: str, value: int | None) -> None:
    assert condition(text) == value


@pytest.mark.parametrize("text", ["", "1 +", "(1", "1 2", "f(1)", "1.5 > 1", "'a' == 97", '"x"'])
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an integer|follows|there is no"):
        condition(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#if 0\na\n#else\nb\n#endif", "b"),
        ("#if 1\na\n#else\nb\n#endif", "a"),
        ("#ifdef X\na\n#endif\nb", "b"),
        ("#define X\n#ifdef X\na\n#endif\nb", "a b"),
        ("#define X\n#undef X\n#ifndef X\na\n#endif", "a"),
        ("#define X 3\n#if X == 1\na\n#elif X == 3\nb\n#elif X\nc\n#else\nd\n#endif", "b"),
        ("#define X Y\n#define Y 2\n#if X > 1\na\n#endif", "a"),
        ("#if defined(X) || !defined Y\na\n#endif", "a"),
        ("#if 0\n#if 1\na\n#else\nb\n#endif\n#else\nc\n#endif", "c"),
        ("#if 0\n#define X\n#endif\n#ifdef X\na\n#endif\nb", "b"),
        ("#if 1 + \\\n  1 == 2\na\n#endif", "  1 == 2 a"),
        ("# if 0 // no\na\n# endif", ""),
        ("#define x10 0\n#if 0x10 == 16 && 3u == 3\na\n#endif", "a"),
        ("/*\n#if 0\n*/\na", "/* */ a"),
        ('auto s = R"(\n#if 0\n)";\na', 'auto s = R"( )"; a'),
    ],
)
def test_branches(text: str, words: str, tmp_path: Path) -> None:
    assert left(text, tmp_path) == words


@pytest.mark.parametrize(
    "text",
    [
        "#if __CUDA_ARCH__ >= 900\na\n#else\nb\n#endif",
        "#if CUDA_VERSION > 12000\na\n#else\nb\n#endif",
        "#if F(1)\na\n#else\nb\n#endif",
        "#define F(x) x\n#if F(1)\na\n#else\nb\n#endif",
        "#if __has_include(<mma.h>)\na\n#else\nb\n#endif",
        "#if __cplusplus > 1\n#define X\n#endif\n#ifdef X\na\n#else\nb\n#endif",
    ],
)
def test_a_condition_on_what_others_define_stays_open(text: str, tmp_path: Path) -> None:
    assert left(text, tmp_path) == "a b"


def test_what_the_compiler_is(tmp_path: Path) -> None:
    text = "#ifdef __CUDA_ARCH__\na\n#else\nb\n#endif\n#ifndef __CUDACC_RTC__\nc\n#endif"
    assert left(text, tmp_path) == "a"


def test_options_define_macros(tmp_path: Path) -> None:
    text = "#if X == 4 && defined(Y) && !defined(Z)\na\n#endif"
    assert left(text, tmp_path) == ""
    assert left(text, tmp_path, "-DX=4", "-DY", "-DZ", "-UZ") == "a"
    assert left(text, tmp_path, "--define-macro=X=4", "-D Y=") == "a"
    assert defined_by(["-DX", "-DF(x)=x", "-O3"]) == {"X": "1", "F": None}


def test_macros_of_included_files(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text("#ifndef _A_H\n#define _A_H\n#define X 2\none\n#endif\n", "utf-8")
    (tmp_path / "b.h").write_text("#pragma once\n#include <a.h>\ntwo\n", "utf-8")
    (tmp_path / "c.h").write_text("three\n", "utf-8")
    text = '#include "b.h"\n#include "a.h"\n#if X == 2\nfour\n#else\n#include "c.h"\n#endif\n'
    assert left(text, tmp_path) == "four"
    seen = compiled(text, tmp_path, (str(tmp_path),))
    words = {path.name: "one" in each or "two" in each for path, each in seen.included.items()}
    assert words == {"a.h": True, "b.h": True, "c.h": False}
    assert not seen.included[tmp_path.resolve() / "c.h"].strip()


def test_a_file_that_is_included_for_each_of_several_types(tmp_path: Path) -> None:
    body = "#if T == 1\none\n#elif T == 2\ntwo\n#else\nthree\n#endif\n#undef T\n"
    (tmp_path / "body.h").write_text(body, "utf-8")
    text = '#define T 1\n#include "body.h"\n#define T 2\n#include "body.h"\n'
    (found,) = compiled(text, tmp_path, (str(tmp_path),)).included.values()
    assert [each for each in found.split() if each in ("one", "two", "three")] == ["one", "two"]


def test_files_that_include_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text('#include "a.h"\none\n', "utf-8")
    assert left('#include "a.h"\ntwo\n', tmp_path) == "two"


def test_conditions_without_an_end(tmp_path: Path) -> None:
    assert left("#endif\n#else\na\n#elif 1\n#if 0\nb", tmp_path) == "a"
